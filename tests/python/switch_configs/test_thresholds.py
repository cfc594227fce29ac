"""The loss model against closed forms and a packet simulation; the optimiser against brute force."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks import names
from hypothesis import given
from hypothesis import strategies as st
from mlt.switch_configs.derive import Derived, policy_of, problem_of
from mlt.switch_configs.errors import PolicyError
from mlt.switch_configs.model_layers import Layer, ModelClass, classes_of, default_cost, load_layers
from mlt.switch_configs.policy import Switch
from mlt.switch_configs.queue_model import mm1m_loss, shared_loss, split_loss
from mlt.switch_configs.queue_simulation import ClassParameters, simulate
from mlt.switch_configs.thresholds import ModelOptions, Problem, class_loads, gathered_packets, optimise, predict
from switch_lab import LAYERS, example


@given(st.floats(0.05, 3), st.integers(0, 60))
def test_mm1m_loss__is_the_chain_written_out(load: float, capacity: int) -> None:
    weights = [load**n for n in range(capacity + 1)]
    assert float(mm1m_loss(load, capacity)) == pytest.approx(weights[-1] / sum(weights), rel=1e-9)


@given(st.floats(0.05, 3), st.floats(0.05, 0.95), st.integers(1, 20), st.integers(0, 20))
def test_shared_loss__is_the_chain_written_out(load: float, theta: float, s: int, more: int) -> None:
    weights = [load ** min(n, s) * ((1 - theta) * load) ** max(0, n - s) for n in range(s + more + 1)]
    loss = shared_loss(load, theta, s, s + more)
    assert float(loss.small) == pytest.approx(sum(weights[s:]) / sum(weights), rel=1e-9)
    assert float(loss.large) == pytest.approx(weights[-1] / sum(weights), rel=1e-9)


def test_loss__no_overflow_at_thousands_of_packets_and_the_fluid_limit() -> None:
    assert float(mm1m_loss(2.0, 5000)) == pytest.approx(0.5)
    assert float(mm1m_loss(1.0, 99)) == pytest.approx(0.01)
    loss = shared_loss(1.5, 0.5, 1000, 3000)
    # Large ones alone fit (0.75); small ones keep what is left: 0.25 of 0.75.
    assert float(loss.small) == pytest.approx(2 / 3, rel=1e-2)
    assert float(loss.large) < 1e-9


@pytest.mark.parametrize(("load", "theta", "s", "limit"), [(0.9, 0.5, 5, 12), (1.2, 0.5, 10, 20), (2.0, 0.4, 8, 24)])
def test_shared_loss__agrees_with_the_simulation_and_the_split_model_does_not(
    load: float, theta: float, s: int, limit: int
) -> None:
    entry = ClassParameters(load=load, small_ratio=theta, threshold=s, limit=limit)
    measured = simulate([entry], packets=100_000, seed=1)[0]
    shared, split = shared_loss(load, theta, s, limit), split_loss(load, theta, s, limit)
    assert measured.small == pytest.approx(float(shared.small), abs=0.02)
    assert measured.large == pytest.approx(float(shared.large), abs=0.01)
    assert abs(measured.large - float(split.large)) > 0.04


def test_class_loads__the_second_class_sees_what_the_first_leaves() -> None:
    upper = ClassParameters(load=0.5, small_ratio=0.5, threshold=5, limit=12)
    lower = ClassParameters(load=0.7, small_ratio=0.5, threshold=10, limit=20)
    loss = shared_loss(0.5, 0.5, 5, 12)
    carried = 0.5 * (1 - (float(loss.small) + float(loss.large)) / 2)
    load = class_loads([0.5, 0.7], [carried, 0.0])[1]
    measured = simulate([upper, lower], packets=100_000, seed=2)[1]
    assert measured.small == pytest.approx(float(shared_loss(load, 0.5, 10, 20).small), abs=0.03)


def test_simulate__is_repeatable_and_strict() -> None:
    classes = [ClassParameters(load=0.9, small_ratio=0.5, threshold=50, limit=60)] * 2
    first = simulate(classes, packets=20_000, seed=7)
    assert first == simulate(classes, packets=20_000, seed=7)
    assert first != simulate(classes, packets=20_000, seed=8)
    assert first[0].small < 0.05 < 0.5 < first[1].small


def brute_force(problem: Problem, loads: list[float]) -> float:
    total = sum(entry.size_bytes for entry in problem.classes)
    bursts = gathered_packets(problem, [problem.load * entry.size_bytes / total for entry in problem.classes], loads)
    grid = range(problem.granularity_bytes, problem.buffer_bytes + 1, problem.granularity_bytes)
    pairs = [(s, limit) for s in grid for limit in grid if s < limit]
    best = float("inf")
    for one, other in product(pairs, pairs):
        if not one[0] < other[0] or one[1] > other[1] or one[1] + other[1] > problem.buffer_bytes:
            continue
        cost = 0.0
        for entry, load, burst, (s, limit) in zip(problem.classes, loads, bursts, (one, other), strict=True):
            loss = predict(problem, load, np.array([s]), np.array([limit]), burst=burst)
            small, large = entry.rounds_per_percent_small, entry.rounds_per_percent_large
            cost += 100 * 0.5 * (small * float(loss.small[0]) + large * float(loss.large[0]))
        best = min(best, cost)
    return best


def derive(layers: tuple[Layer, ...], switch: Switch, **options: Any) -> Derived:
    return policy_of(problem_of(layers, switch, ModelOptions(**options)), switch)


def test_optimise__is_as_good_as_trying_everything() -> None:
    classes = tuple(
        ModelClass(layers=("a",), size_bytes=size, rounds_per_percent_small=small, rounds_per_percent_large=large)
        for size, small, large in ((60, 0.1, 2.0), (50, 0.5, 9.0))
    )
    problem = Problem(
        classes=classes, buffer_bytes=30_000, packet_bytes=1500, load=1.1, granularity_bytes=1500, burst_packets=1
    )
    found = optimise(problem)
    total = sum(row.extra_rounds for row in found)
    # A price per byte cannot reach every split of the buffer; what it misses is at most the last step.
    assert total <= brute_force(problem, [row.load for row in found]) * 1.10 + 1e-12
    assert sum(row.limit_bytes for row in found) <= problem.buffer_bytes


def test_optimise__keeps_the_policy_rules_for_both_models() -> None:
    layers = load_layers(LAYERS)
    for model in ("shared", "split"):
        derived = derive(layers, example().switch, load=1.0, model=model)
        policy, rows = derived.policy, derived.rows
        thresholds = [data.wred.min_threshold_bytes for data in policy.data]
        limits = [data.limit_bytes for data in policy.data]
        assert thresholds == sorted(set(thresholds))
        assert limits == sorted(limits)
        assert all(s < limit for s, limit in zip(thresholds, limits, strict=True))
        assert sum(limits) <= policy.switch.shared_buffer_bytes
        assert all(0 <= row.large_loss <= row.small_loss <= 1 for row in rows) or model == "split"


def test_derive__the_example_has_the_derived_thresholds() -> None:
    policy = derive(load_layers(LAYERS), example().switch, load=1.0, workers=8, burst_packets=16).policy
    assert policy.data == example().data
    assert policy.control == example().control


def test_problem__rejects_unsolvable_input() -> None:
    layers = load_layers(LAYERS)
    tiny = example().switch.model_copy(update={"shared_buffer_bytes": 40_000})
    with pytest.raises(ValueError, match="granularity"):
        derive(layers, tiny, load=1.0)
    with pytest.raises(ValueError, match=names("1000 B", "packet")):
        derive(layers, example().switch, load=1.0, granularity_bytes=1000)
    for load in (0.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="load"):
            derive(layers, example().switch, load=load)


def test_classes_of__even_by_number_of_layers_and_costs_rise_to_the_back() -> None:
    layers = load_layers(LAYERS)
    classes = classes_of(layers, 6)
    assert sum(len(entry.layers) for entry in classes) == len(layers)
    assert sum(entry.size_bytes for entry in classes) == 4 * 138_357_544
    assert default_cost(0, 16)[0] < default_cost(15, 16)[0]
    assert default_cost(0, 16)[1] / default_cost(0, 16)[0] == pytest.approx(20 / 0.4)
    with pytest.raises(PolicyError, match=names("2 layers", "3 classes")):
        classes_of(layers[:2], 3)


def test_load_layers__names_the_bad_entry(tmp_path: Path) -> None:
    file = tmp_path / "layers.json"
    for body, words in (
        ([{"name": "a", "elements": 0}], "layer 0.elements"),
        ([{"name": "a", "elements": 1, "rounds_per_percent_small": 1}], "both costs"),
        ([], "no layers"),
    ):
        file.write_text(json.dumps(body), encoding="utf-8")
        with pytest.raises(PolicyError, match=words):
            load_layers(file)
