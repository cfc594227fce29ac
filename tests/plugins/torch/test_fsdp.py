"""FSDP2 over the backend: exact as it is, and with gradients of which a bounded part may be lost."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from checks import assert_names, names
from job import answers, run_job
from mlt.torch import LossyReduceScatter, fsdp
from torch.distributed.fsdp import FSDPModule

STEPS = 4
needs_custom_reduce_scatter = pytest.mark.skipif(
    not hasattr(FSDPModule, "set_custom_reduce_scatter"), reason="torch 2.9 and newer let it be replaced"
)


OTHER_SUMS: dict[str, dict[str, Any]] = {
    "factor": {"factor": 3.0},  # PREMUL_SUM
    "float16": {"reduce": "float16"},  # SUM, divided before and after
    "bfloat16": {"reduce": "bfloat16"},
}
RUNS = {
    "exact": {},
    "bound 0": {"bound": 0.0},
    "bound": {"bound": 0.1},
    "phases": {"phases": [[0, 0.0], [2, 0.5]]},
    **OTHER_SUMS,
    **{f"{name}, bound 0": {**options, "bound": 0.0} for name, options in OTHER_SUMS.items()},
}


@pytest.fixture(scope="module")
def told() -> dict[str, list[Any]]:
    """Both ranks' answers by run, on a network that loses 5 %."""
    runs = {name: {**options, "steps": STEPS} for name, options in RUNS.items()}
    both = answers(run_job("fsdp", runs=runs, drop=0.05, seed=3))
    return {name: [answer[name] for answer in both] for name in runs}


def digests(run: list[Any]) -> set[str]:
    return {answer["sha256"] for answer in run}


def test_examples() -> None:
    assert doctest.testmod(fsdp).failed == 0


@needs_custom_reduce_scatter
@pytest.mark.parametrize(("run", "plain"), [("bound 0", "exact"), *((f"{name}, bound 0", name) for name in OTHER_SUMS)])
def test_bound_zero__is_the_exact_way_to_the_last_bit(told: dict[str, list[Any]], run: str, plain: str) -> None:
    assert digests(told[run]) == digests(told[plain])
    assert len(digests(told[run])) == 1


@needs_custom_reduce_scatter
def test_statistics__count_every_step_layer_and_byte(told: dict[str, list[Any]]) -> None:
    for answer in told["bound 0"]:
        assert [step["step"] for step in answer["steps"]] == list(range(STEPS))
        assert {step["buckets"] for step in answer["steps"]} == {3}  # two layers of their own, and the rest
        assert {step["missing_bytes"] for step in answer["steps"]} == {0}
        assert len({step["bytes"] for step in answer["steps"]}) == 1
        assert answer["steps"][0]["bytes"] > 0
        # The first pass does not know how many follow; then the layers count down to the front one.
        assert answer["layers"] == [0, 0, 0, *[2, 1, 0] * (STEPS - 1)]


@needs_custom_reduce_scatter
def test_bound__is_kept_and_parameters_stay_the_same_on_all_ranks(told: dict[str, list[Any]]) -> None:
    assert len(digests(told["bound"])) == 1
    assert digests(told["bound"]) != digests(told["exact"])
    steps = [step for answer in told["bound"] for step in answer["steps"]]
    assert sum(step["missing_bytes"] for step in steps) > 0
    assert all(0 <= step["loss_fraction"] <= 0.1 for step in steps)


@needs_custom_reduce_scatter
def test_schedule__decides_the_bound_of_each_step(told: dict[str, list[Any]]) -> None:
    missing = [sum(answer["steps"][step]["missing_bytes"] for answer in told["phases"]) for step in range(STEPS)]
    assert missing[:2] == [0, 0]
    assert sum(missing[2:]) > 0


@needs_custom_reduce_scatter
def test_steps__are_the_backward_passes_that_reduce_and_one_that_fails_does_not_stop_them() -> None:
    for answer in answers(run_job("fsdp_failure")):
        assert_names(answer["error"], "the program failed")
        # The pass without reduction is none. Step 1 failed after its first layer; steps 2 and 3 are whole.
        assert answer["steps"] == [[0, 2], [2, 2], [3, 2]]
        assert answer["asked"] == [[0, 0], [0, 0], [1, 1], [2, 1], [2, 0], [3, 1], [3, 0]]


@needs_custom_reduce_scatter
def test_backward_pass__names_the_rank_that_was_killed() -> None:
    outcomes = run_job("fsdp_victim", kill=1)
    told = outcomes[0].answer
    assert told["error"] is not None, outcomes[0].output
    assert_names(told["error"], "rank 1", "reduce_scatter")
    assert told["seconds"] < 15


@needs_custom_reduce_scatter
def test_elements__are_not_smaller_for_what_is_lost() -> None:
    told = answers(run_job("lossy_shares", workers=3, drop=0.05, seed=4), workers=3)
    assert sum(sum(answer["missing"]) for answer in told) > 0
    for answer in told:
        assert len(answer["missing"]) == 7  # outside of a backward pass every call is a step
        for name, values in answer["values"].items():
            assert values == [{"sum": 3.0, "mean": 1.0, "product": 1.5, "own": 6.0}[name.partition(" ")[0]]], name
        assert_names(answer["errors"][0], "int32")
        assert_names(answer["errors"][1], "MAX")


@pytest.mark.parametrize("given", [{"loss_bound": 1.0}, {"loss_bound": -0.1}, {"history": 0}])
def test_arguments__outside_their_range_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=names(next(iter(given.values())))):
        LossyReduceScatter(**given)


def test_set_on__refuses_a_model_that_is_not_sharded() -> None:
    with pytest.raises(TypeError, match=names("Linear", "fully_shard")):
        LossyReduceScatter().set_on(torch.nn.Linear(1, 1))


@needs_custom_reduce_scatter
def test_set_on__refuses_shards_over_another_backend_and_sets_nothing() -> None:
    for answer in answers(run_job("fsdp_over_gloo")):
        assert_names(answer["error"], "LossyReduceScatter", "3.weight", "gloo", '"mlt"')
        assert answer["steps"] == 0


def test_group__of_another_backend_is_refused(tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        with pytest.raises(TypeError, match=names("LossyReduceScatter", "gloo", "mlt")):
            LossyReduceScatter()(torch.ones(1), torch.ones(1), dist.group.WORLD, dist.ReduceOp.SUM)
    finally:
        dist.destroy_process_group()
