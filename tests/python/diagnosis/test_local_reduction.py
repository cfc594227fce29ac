"""The model of BytePS's section 4.2: the paper's numbers, and properties of J(x) and of the advice."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlt.diagnosis.local_reduction import (
    Advice,
    Device,
    Host,
    advise,
    best_part,
    completion_seconds,
    components,
    gpus_per_switch,
    ring_seconds,
)

GB = 1e9
RATES = st.floats(1e9, 1e12)
# The paper gives its links 13.1 GB/s and prints J* = 0.129 s and J(0) = 0.141 s. At that rate its own formula has
# 0.122 s and 0.134 s, and at 12.4 GB/s both printed times; x* and the ratio of the times are the same at every rate.
PRINTED = 12.4e9 * 8
MEASURED = 13.1e9 * 8


def seconds(x: float, rate: float, gpus: int = 4) -> float:
    return completion_seconds(x, gpus=gpus, size=GB, gpu_link=rate, cpu_link=rate)


def test_model__has_the_numbers_that_the_paper_prints() -> None:
    assert best_part(gpus=4, gpu_link=PRINTED, cpu_link=PRINTED) == pytest.approx(1 / 5)
    assert seconds(1 / 5, PRINTED) == pytest.approx(0.129, abs=5e-4)
    assert seconds(0, PRINTED) == pytest.approx(0.141, abs=5e-4)
    assert seconds(0, MEASURED) / seconds(1 / 5, MEASURED) - 1 == pytest.approx(0.09, abs=5e-3)  # "9% difference"


@pytest.mark.parametrize("x", [0, 0.1, 0.2, 0.5, 1])
def test_model__is_the_formula_that_the_paper_prints_for_four_gpus(x: float) -> None:
    assert seconds(x, MEASURED) == pytest.approx(max((3 * x + 1) / 13.1, (7 - 3 * x) / 52.4))


def test_model__cpu_assisted_is_23_7_percent_faster_than_a_ring() -> None:
    ring = ring_seconds(gpus=8, size=GB, rate=80e9)
    assert 1 - seconds(0, MEASURED) / ring == pytest.approx(0.237, abs=5e-4)


@given(st.integers(1, 16), RATES, RATES, st.floats(0, 1))
def test_best_part__no_other_part_takes_less_time(gpus: int, gpu_link: float, cpu_link: float, x: float) -> None:
    best = best_part(gpus=gpus, gpu_link=gpu_link, cpu_link=cpu_link)
    assert 0 <= best <= 1

    def at(part: float) -> float:
        return completion_seconds(part, gpus=gpus, size=GB, gpu_link=gpu_link, cpu_link=cpu_link)

    assert at(best) <= at(x) * (1 + 1e-9)


@given(st.integers(1, 16), RATES, RATES, st.floats(0, 1), st.floats(1, 1e12))
def test_model__time_is_in_proportion_to_the_size(
    gpus: int, gpu_link: float, cpu_link: float, x: float, size: float
) -> None:
    one, many = (
        completion_seconds(x, gpus=gpus, size=given, gpu_link=gpu_link, cpu_link=cpu_link) for given in (1.0, size)
    )
    assert many == pytest.approx(one * size)


@given(st.integers(2, 16), st.integers(2, 4), RATES)
def test_model__cpu_assisted_beats_a_ring_whatever_the_numbers(gpus: int, switches: int, rate: float) -> None:
    """The paper's claim for n, p >= 2, where copies between switches are no faster than the links."""
    assert seconds(0, rate, gpus) < ring_seconds(gpus=gpus * switches, size=GB, rate=rate) * (1 + 1e-9)


def figure_8() -> Host:
    """Four switches of two GPUs each, NVLink, and the NIC on the first."""
    gpus = tuple(Device(f"GPU {n}", f"P{n // 2}", n // 4) for n in range(8))
    return Host(gpus, (Device("mlx5_0", "P0", 0),), frozenset(combinations(range(8), 2)))


def test_advise__figure_8_has_the_root_gpu_2_and_gpu_3_in_turn() -> None:
    assert advise(figure_8()) == Advice("reduce-broadcast", (2, 3))
    assert advise(figure_8()).root == 2


def test_advise__figure_6_sums_in_the_cpu() -> None:
    gpus = tuple(Device(f"GPU {n}", f"P{n // 4}", n // 4) for n in range(8))
    host = Host(gpus, (Device("mlx5_0", "of its own", 0),))
    assert advise(host) == Advice("cpu-assisted")
    assert gpus_per_switch(host) == 4


def test_advise__a_nic_on_every_switch_is_symmetric() -> None:
    host = figure_8()
    nics = tuple(Device(f"mlx5_{n}", f"P{n}", n // 2) for n in range(4))
    assert advise(Host(host.gpus, nics, host.nvlinks)) == Advice("reduce-scatter-all-gather")
    assert advise(Host(host.gpus, nics)) == Advice("cpu-assisted")


@pytest.mark.parametrize("gpus", [(), (Device("GPU 0", "P0"),)])
def test_advise__fewer_than_two_gpus_have_nothing_to_reduce(gpus: tuple[Device, ...]) -> None:
    assert advise(Host(gpus, (Device("eth0", "P0"),))) == Advice("none")


def test_advise__gpus_of_one_switch_need_neither_nvlink_nor_the_cpu() -> None:
    assert advise(Host((Device("a", "P0"), Device("b", "P0")))).strategy == "reduce-scatter-all-gather"


devices = st.builds(
    Device, st.just("one"), st.sampled_from(["P0", "P1", "P2", "P3"]), st.one_of(st.none(), st.integers(0, 1))
)


@given(st.lists(devices, max_size=8), st.lists(devices, max_size=3), st.booleans())
def test_advise__a_root_shares_no_switch_with_a_nic(gpus: list[Device], nics: list[Device], linked: bool) -> None:
    pairs = frozenset(combinations(range(len(gpus)), 2)) if linked else frozenset()
    host = Host(tuple(gpus), tuple(nics), pairs)
    advice = advise(host)
    taken = {nic.switch for nic in nics}
    assert bool(advice.roots) == (advice.strategy == "reduce-broadcast")
    assert all(host.gpus[root].switch not in taken for root in advice.roots)
    assert advise(host) == advice
    assert not linked or advice.strategy != "cpu-assisted"


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=12))
def test_components__are_a_partition_that_no_pair_crosses(count: int, pairs: list[tuple[int, int]]) -> None:
    inside = [pair for pair in pairs if max(pair) < count]
    found = components(count, inside)
    assert sorted(member for members in found for member in members) == list(range(count))
    assert all(any({*pair} <= {*members} for members in found) for pair in inside)
