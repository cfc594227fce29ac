"""The communication hook with sparse gradients, ``join``, ``no_sync``, every type and torch's own hooks.

Each beside the same training over gloo, between real processes that lose packets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checks import assert_names
from job import answers, run_job

PROGRAMS = Path(__file__).with_name("hook_forms_programs.py")
WIDTH = 64  # of a row of the tables


def run(program: str, *, workers: int = 2, **options: Any) -> list[Any]:
    return answers(run_job(program, programs=PROGRAMS, workers=workers, **options), workers=workers)


@pytest.mark.parametrize("workers", [2, 3])
def test_hook__sparse_gradients_are_averaged_exactly(workers: int) -> None:
    told = run("sparse", workers=workers, drop=0.05)
    for name in ("tables", "with head"):
        assert len({rank[name]["hook"] for rank in told}) == 1
        for rank in told:
            found = rank[name]
            assert found["difference"] < 1e-6
            if workers == 2:  # of more, the order of a sum differs
                assert found["gloo"] == found["plain"] == found["hook"]
            assert [step["missing"] for step in found["steps"]] == [0] * 4
            # Each row of both tables: an index of 8 bytes, and the values.
            sent = [2 * count * (8 + 4 * WIDTH) for count in found["rows"]]
            head = 4 * (3 * WIDTH + 3) if name == "with head" else 0
            assert [step["bytes"] for step in found["steps"]] == [size + head for size in sent]
            assert {step["buckets"] for step in found["steps"]} == {3 if head else 2}
            assert rank["dense"] < 1e-6


def test_hook__sparse_gradients_of_different_shapes_are_an_error_of_every_rank() -> None:
    for rank, told in enumerate(run("sparse_failure")):
        assert_names(told["error"], "gradient bucket 0 of step 0 (second.weight)", f"rank {1 - rank}", "[600, 5]")
        assert told["after"] == [2.0] * 3


def test_hook__gradients_that_are_sparse_on_one_rank_only_are_an_error_of_every_rank() -> None:
    for told in run("sparse_on_one_rank"):
        assert len(told["errors"]) == 2  # also of a caller that tries again
        for error in told["errors"]:
            assert_names(
                error,
                "gradient bucket 0 (second.weight) is sparse on group rank 1 and dense on group rank 0",
                "`sparse`",
            )
        assert told["seconds"] < 10.0  # at once, not after the time limit of a collective
        assert told["after"] == [2.0] * 3


@pytest.mark.parametrize("program", ["sparse_layers_on_one_rank", "sparse_layers_below_a_large_one"])
def test_hook__layers_that_are_sparse_on_one_rank_only_are_an_error_of_every_rank(program: str) -> None:
    for told in run(program):
        assert len(told["errors"]) == 2
        for error in told["errors"]:
            assert_names(error, "gradient bucket", "group rank 0", "group rank 1", "`sparse`")
        assert told["seconds"] < 10.0
        assert told["after"] == [2.0] * 3


def test_hook__ranks_with_fewer_batches_join() -> None:
    told = run("joined")
    assert {rank[one] for rank in told for one in ("gloo", "hook", "divided")} == {told[0]["gloo"]}
    (divided,) = {one for rank in told for one in rank["by those that are left"]}
    assert divided != told[0]["gloo"]
    # Rank 0 has 3 batches, and contributes zeros to the other two steps.
    assert [len(rank["steps"]) for rank in told] == [5, 5]


def test_hook__ranks_with_fewer_batches_join_with_sparse_gradients() -> None:
    told = run("joined_sparse")
    assert {rank[one] for rank in told for one in ("gloo", "hook")} == {told[0]["gloo"]}


def test_hook__gradients_are_accumulated_without_synchronisation() -> None:
    told = run("accumulated")
    for name in ("layers", "tables"):
        assert {rank[name][one] for rank in told for one in ("gloo", "hook")} == {told[0][name]["gloo"]}
        assert [rank[name]["steps"] for rank in told] == [2, 2]


def test_hook__every_type_of_gradient() -> None:
    told = run("types", drop=0.05)
    limits = {"torch.float64": 0.0, "torch.float16": 1e-3, "torch.bfloat16": 1e-2}
    assert told[0].keys() == limits.keys()
    for name, limit in limits.items():
        for one in ("hook", "bounded"):
            assert told[0][name][one] == told[1][name][one]
        assert told[0][name]["difference"] <= limit
        assert sum(rank[name]["missing"] for rank in told) > 0
        assert max(rank[name]["largest"] for rank in told) <= 0.2


def test_hook__compression_hooks_of_torch_stack() -> None:
    told = run("stacked", drop=0.05)
    limits = {
        "fp16 around": 1e-5,
        "fp16, group": 0.05,
        "bf16 by hand": 1e-4,
        "PowerSGD": 1e-5,
        "PowerSGD, group": 0.05,
        "fp16, lossy": 0.05,
    }
    for name in (*limits, "fp16 around, lossy"):
        assert told[0][name]["digest"] == told[1][name]["digest"], name
    for name, limit in limits.items():
        assert told[0][name]["difference"] <= limit, name
    elements = 2 * (64 * 64 + 64) + 4 * 64 + 4
    assert {step["bytes"] for step in told[0]["fp16 around"]["steps"]} == {2 * elements}
    for name in ("fp16 around, lossy", "fp16, group", "PowerSGD, group"):
        assert sum(rank[name]["missing"] for rank in told) > 0, name
    assert max(rank["fp16 around, lossy"]["largest"] for rank in told) <= 0.2
