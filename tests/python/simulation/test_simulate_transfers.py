"""``_core.simulate_transfers``: arithmetic, determinism, and an error for every bad argument."""

from __future__ import annotations

from typing import Any

import pytest
from checks import names

from mlt import _core

RATE = 1.25e9
SEGMENT = 1_432
# A full packet on the wire: MLT's header, UDP, IPv4, Ethernet, preamble and gap.
WIRE = SEGMENT + 40 + 66


def star(hosts: int, transfers: list[Any], **changed: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "hosts": hosts,
        "switches": 1,
        "cables": [(host, hosts, RATE, 1_000) for host in range(hosts)],
        "transfers": transfers,
    }
    settings.update(changed)
    return _core.simulate_transfers(**settings)


@pytest.mark.parametrize("size", [1_000_000, 40_000_000])
def test_two_hosts__take_the_bytes_on_the_wire_over_the_rate(size: int) -> None:
    packets = -(-size // SEGMENT)
    expected = (size + packets * (WIRE - SEGMENT)) / RATE + WIRE / RATE + 2e-6
    result = star(2, [(0, 1, size, 0, [])])
    assert result["finish_ns"][0] * 1e-9 == pytest.approx(expected, rel=0.02)
    assert result["data_packets"] == packets
    assert result["drops"] == 0


def test_two_hosts__time_is_never_below_the_wire() -> None:
    result = star(2, [(0, 1, 14_320, 0, [])])
    assert result["finish_ns"][0] * 1e-9 >= 10 * WIRE / RATE + 2e-6


def test_after__waits_for_what_it_names() -> None:
    result = star(3, [(0, 1, 400_000, 0, []), (1, 2, 400_000, 0, [0]), (1, 0, 4, 5_000_000, [])])
    first, second, third = result["finish_ns"]
    assert second >= 1.95 * first
    assert third >= 5_000_000


def test_loss__is_repaired_or_bounded() -> None:
    transfers = [(0, 1, 4_000_000, 0, [])]
    whole = star(2, transfers)
    repaired = star(2, transfers, loss=0.02, seed=3)
    bounded = star(2, transfers, loss=0.02, loss_bound=0.2, seed=3)
    assert repaired["drops"] > 0
    assert repaired["data_packets"] > whole["data_packets"] == bounded["data_packets"]
    assert repaired["finish_ns"][0] > bounded["finish_ns"][0]


def test_seed__gives_the_same_run_and_another_another() -> None:
    transfers = [(host, 4, 1_000_000, 0, []) for host in range(4)]
    first, again, other = (star(5, transfers, loss=0.01, seed=seed) for seed in (7, 7, 8))
    assert first == again
    assert first["digest"] != other["digest"]


def test_progress__is_called_and_may_stop() -> None:
    heard: list[int] = []
    transfers = [(0, 1, 4_000_000, 0, []), (1, 0, 40_000_000, 0, [0])]
    star(2, transfers, progress=heard.append)
    assert heard
    assert heard == sorted(heard)
    assert set(heard) <= {0, 1, 2}

    def stop(_: int) -> None:
        raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        star(2, transfers, progress=stop)


GOOD = (0, 1, 4_000, 0, [])
FINE: dict[str, Any] = {
    "hosts": 2,
    "switches": 1,
    "cables": [(0, 2, RATE, 0), (1, 2, RATE, 0)],
    "transfers": [GOOD],
}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"hosts": 1}, r"hosts is 1; expected 2 to 256"),
    ({"hosts": 257}, r"hosts is 257"),
    ({"switches": 70_000}, r"switches is 70000"),
    ({"cables": [(0, 9, RATE, 0)]}, r"cables\[0\] end b is 9; expected a node from 0 to 2"),
    ({"cables": [(0, 0, RATE, 0)]}, r"cables\[0\] end b is 0; expected another node"),
    ({"cables": [(0, 2, 0.0, 0)]}, r"cables\[0\] rate is 0"),
    ({"cables": [(0, 2, float("nan"), 0)]}, r"cables\[0\] rate is nan"),
    ({"cables": [(0, 2, RATE, -1)]}, r"cables\[0\] propagation is -1"),
    ({"cables": [(0, 2, RATE, 0)]}, r"cables: none leads to host 1"),
    ({"switches": 2, "cables": [(0, 2, RATE, 0), (1, 3, RATE, 0)]}, r"transfers\[0\]: no way leads from host 0"),
    ({"transfers": [(2, 1, 4_000, 0, [])]}, r"transfers\[0\] from is 2; expected a host from 0 to 1"),
    ({"transfers": [(0, 2, 4_000, 0, [])]}, r"transfers\[0\] to is 2"),
    ({"transfers": [(0, 0, 4_000, 0, [])]}, r"transfers\[0\] to is 0; expected another host"),
    ({"transfers": [GOOD, (0, 1, 6, 0, [])]}, r"transfers\[1\] bytes is 6; expected a multiple of 4"),
    ({"transfers": [(0, 1, 1 << 32, 0, [])]}, r"transfers\[0\] bytes is 4294967296"),
    ({"transfers": [(0, 1, 4, -1, [])]}, r"transfers\[0\] start_ns is -1"),
    ({"transfers": [(0, 1, 4, 0, [3])]}, r"transfers\[0\] after\[0\] is 3; expected another transfer's index"),
    ({"transfers": [GOOD, (0, 1, 4, 0, [0])]}, r"transfers\[1\] after\[0\] is 0; expected a transfer to host 0"),
    ({"transfers": [(0, 1, 4, 0, [1]), (1, 0, 4, 0, [0])]}, r"transfers\[0\] after: it waits"),
    ({"ways": [(0, 1, [[0, 1]])]}, r"ways\[0\] way\[0\]: no cable joins 0 and 1"),
    ({"ways": [(0, 1, [[0, 2, 1]] * 2)]}, r"the number of ways in ways\[0\] is 2; expected 1 to 1"),
    ({"ways": [(0, 2, [[0, 2]])]}, r"ways\[0\] to is 2; expected a host from 0 to 1"),
    ({"line_rates": [1e9]}, r"the number of line_rates is 1; expected 2, or none"),
    ({"line_rates": [1e9, 1.0]}, r"line_rates\[1\] is 1"),
    ({"buffers": [1, 2]}, r"the number of buffers is 2; expected 1, or none"),
    ({"buffers": [99]}, r"buffers\[0\] is 99; expected room for two packets"),
    ({"paths": 17}, r"paths is 17; expected 1 to 16"),
    ({"queue_limit_bytes": 100}, r"queue_limit_bytes is 100"),
    ({"queue_threshold_bytes": 0}, r"queue_threshold_bytes is 0"),
    ({"loss": 0.9}, r"loss is 0.9"),
    ({"loss_bound": 1.0}, r"loss_bound is 1"),
    ({"segment_bytes": 1_001}, r"segment_bytes is 1001"),
    ({"limit_ns": 0}, r"limit_ns is 0"),
]


@pytest.mark.parametrize(("changed", "message"), BAD)
def test_bad_arguments__are_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.simulate_transfers(**{**FINE, **changed})


def test_wrong_types__are_named() -> None:
    with pytest.raises(TypeError, match=names("transfers[1]", "(0, 1)", "bytes")):
        star(2, [GOOD, (0, 1)])
    with pytest.raises(TypeError, match=r"cables\[0\] is 'a'"):
        star(2, [GOOD], cables=["a"])
    with pytest.raises(TypeError, match=names("ways[0]", "(0, 1)", "[[from")):
        star(2, [GOOD], ways=[(0, 1)])


def test_limit__names_the_late_transfer() -> None:
    with pytest.raises(RuntimeError, match=names("transfers[1]", "limit_ns = 100000", "1 others")):
        star(2, [(0, 1, 4, 0, []), (0, 1, 4_000_000, 0, []), (1, 0, 4_000_000, 0, [])], limit_ns=100_000)


def test_no_transfers__takes_no_time() -> None:
    assert star(2, [])["finish_ns"] == []
