"""The thresholds model's predictions against the network simulator: NICs, cables and a switch port of src/sim."""

from __future__ import annotations

from functools import cache

import pytest
from mlt.switch_configs.derive import problem_of
from mlt.switch_configs.model_layers import load_layers
from mlt.switch_configs.queue_simulation import ClassParameters
from mlt.switch_configs.threshold_check import check_predictions, parameters
from mlt.switch_configs.thresholds import ClassThresholds, ModelOptions, Problem, optimise
from switch_lab import LAYERS, example

from mlt.simulation.switch_port import simulate

PACKETS = 2_000_000


@cache
def solved(load: float, workers: int, burst: int | None) -> tuple[Problem, tuple[ClassThresholds, ...]]:
    options = ModelOptions(load=load, workers=workers, burst_packets=burst, granularity_bytes=40960)
    problem = problem_of(load_layers(LAYERS), example().switch, options)
    return problem, optimise(problem)


# docs/switch-thresholds.md: shares of small gradients lost by the two classes that carry 97 % of the bytes.
TABLE = {
    (0.9, 1, None): (0.000, 0.001),
    (1.0, 1, None): (0.02, 0.11),
    (1.0, 2, 32): (0.06, 0.14),
    (0.9, 8, 16): (0.09, 0.08),
    (1.0, 8, 16): (0.17, 0.20),
}


@pytest.mark.parametrize(("load", "workers", "burst"), list(TABLE))
def test_simulate__the_derived_thresholds_lose_as_documented(load: float, workers: int, burst: int | None) -> None:
    problem, rows = solved(load, workers, burst)
    options = {"packets": PACKETS, "seed": 1, "burst": problem.group_packets, "senders": workers}
    found = simulate(parameters(problem, rows), packet_bytes=problem.packet_bytes, **options)
    assert found == simulate(parameters(problem, rows), packet_bytes=problem.packet_bytes, **options)
    for row, seen, check in zip(rows, found, check_predictions(problem, rows), strict=True):
        if check.enough:
            assert abs(row.small_loss - seen.small) < 0.2  # as far as the model is from the simulated queue
            assert abs(check.simulated.small - seen.small) < 0.12
        assert seen.large < 0.005
    for seen, expected in zip(found[4:], TABLE[load, workers, burst], strict=True):
        assert seen.small == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize(("load", "workers", "burst"), list(TABLE))
def test_simulate__nics_of_the_port_s_speed_lose_no_more(load: float, workers: int, burst: int | None) -> None:
    """A burst that arrives at once is the worse case: with equal links one worker's burst never waits at the port."""
    problem, rows = solved(load, workers, burst)
    found = simulate(
        parameters(problem, rows),
        packets=PACKETS,
        seed=1,
        burst=problem.group_packets,
        senders=workers,
        packet_bytes=problem.packet_bytes,
        nic_speed=1.0,
    )
    for seen, expected in zip(found[4:], TABLE[load, workers, burst], strict=True):
        assert seen.small <= expected + 0.05
    if workers == 1:
        assert all(seen.small == seen.large == 0 for seen in found)


def test_simulate__rejects() -> None:
    entry = ClassParameters(load=0.0, small_ratio=0.5, threshold=2, limit=4)
    with pytest.raises(ValueError, match="more than 0"):
        simulate([entry], packets=10, seed=1)
