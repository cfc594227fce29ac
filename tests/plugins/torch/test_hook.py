"""The DDP communication hook: two workers and a summation service as real processes, packets lost on purpose."""

from __future__ import annotations

import logging
import math
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from checks import assert_names, names, until
from job import answers, run_job
from mlt.torch import BoundedLossState
from mlt.torch.rotation import BLOCK
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter
from transport_jobs import ETHERNET_SEGMENT, local_job

import mlt

STEPS = 8


@pytest.fixture(scope="module")
def lossless() -> list[Any]:
    return answers(run_job("ddp", services=1, steps=STEPS, bound=0.0))


@pytest.fixture(scope="module")
def bounded() -> list[Any]:
    return answers(run_job("ddp", services=1, steps=STEPS, bound=0.1, drop=0.03, seed=11))


def test_hook__replicas_bit_identical_after_losses(lossless: list[Any], bounded: list[Any]) -> None:
    assert bounded[0]["sha256"] == bounded[1]["sha256"]
    assert sum(step["missing_bytes"] for answer in bounded for step in answer["steps"]) > 0
    assert bounded[0]["sha256"] != lossless[0]["sha256"]


def test_hook__without_services_the_workers_average_among_themselves(lossless: list[Any]) -> None:
    exact = answers(run_job("ddp", workers=2, steps=STEPS, bound=0.0, drop=0.03, seed=11))
    assert exact[0]["sha256"] == exact[1]["sha256"]
    # Two workers: the sum has one order on both.
    assert exact[0]["sha256"] == lossless[0]["sha256"]
    for answer in exact:
        assert [step["bytes"] for step in answer["steps"]] == [answer["gradient_bytes"]] * STEPS
    lossy = answers(run_job("ddp", workers=3, steps=STEPS, bound=0.1, drop=0.03, seed=11), workers=3)
    assert len({answer["sha256"] for answer in lossy}) == 1
    for answer in lossy:
        assert all(0 <= step["loss_fraction"] <= 0.2 for step in answer["steps"])  # two hops


def test_hook__averages_half_precision_among_the_workers() -> None:
    told = answers(run_job("ddp", workers=3, steps=3, bound=0.0, drop=0.02, dtype="bfloat16"), workers=3)
    assert len({answer["sha256"] for answer in told}) == 1
    assert [step["missing_bytes"] for step in told[0]["steps"]] == [0, 0, 0]


def test_hook__schedule_decides_the_bound_of_each_step() -> None:
    told = answers(run_job("ddp", workers=2, steps=STEPS, phases=[[0, 0.0], [4, 0.5]], drop=0.05, seed=11))
    assert told[0]["sha256"] == told[1]["sha256"]
    missing = [sum(answer["steps"][step]["missing_bytes"] for answer in told) for step in range(STEPS)]
    assert missing[:4] == [0] * 4
    assert sum(missing[4:]) > 0


def test_hook__example_of_the_readme_trains() -> None:
    example = Path(__file__).resolve().parents[3] / "examples" / "ddp_bounded_loss.py"
    words = [sys.executable, "-m", "mlt", "launch", "-n", "2", sys.executable, str(example)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    losses = [float(text) for text in re.findall(r"^\[0\] step \d+: loss ([0-9.]+), ", done.stdout, re.MULTILINE)]
    assert len(losses) == 4
    assert losses[-1] < 0.1


def test_hook__bound_zero_repairs_everything(lossless: list[Any]) -> None:
    lossy = answers(run_job("ddp", services=1, steps=STEPS, bound=0.0, drop=0.03, seed=11))
    assert sum(step["repairs"] for answer in lossy for step in answer["steps"]) > 0
    assert {answer["sha256"] for answer in lossy} == {lossless[0]["sha256"], lossless[1]["sha256"]}
    assert len({answer["sha256"] for answer in lossy}) == 1


def test_hook__loss_stays_within_the_bound(bounded: list[Any]) -> None:
    for answer in bounded:
        assert all(0 <= step["loss_fraction"] <= 0.1 for step in answer["steps"])
        assert {call["loss_bound"] for call in answer["calls"]} == {0.1}


def test_hook__statistics_cover_every_step_and_byte(lossless: list[Any]) -> None:
    for answer in lossless:
        assert [step["step"] for step in answer["steps"]] == list(range(STEPS))
        for step in answer["steps"]:
            assert step["bytes"] == answer["gradient_bytes"]
            assert step["missing_bytes"] == 0
            assert 0 < step["exposed_seconds"] <= step["sync_seconds"]


def test_hook__keys_follow_the_parameters_when_buckets_are_rebuilt(lossless: list[Any]) -> None:
    for answer in lossless:
        first = answer["steps"][0]["buckets"]
        sizes: dict[int, set[int]] = {}
        for call in answer["calls"]:
            sizes.setdefault(call["key"], set()).add(call["elements"])
        assert all(len(elements) == 1 for elements in sizes.values())
        # DDP groups anew after the first step: the keys of later steps are the same from step to step.
        rest = [call["key"] for call in answer["calls"][first:]]
        per_step = answer["steps"][1]["buckets"]
        assert rest == rest[:per_step] * (STEPS - 1)
        assert per_step > 1
    assert [call["key"] for call in lossless[0]["calls"]] == [call["key"] for call in lossless[1]["calls"]]


def test_hook__last_bucket_is_the_front_layer(lossless: list[Any]) -> None:
    last_step = lossless[0]["calls"][-lossless[0]["steps"][-1]["buckets"] :]
    assert [call["layer"] for call in last_step] == list(reversed(range(len(last_step))))
    assert {call["layers"] for call in last_step} == {len(last_step)}


@pytest.mark.parametrize("services", [0, 1])
def test_hook__killed_worker_fails_the_backward_pass_with_its_rank(services: int) -> None:
    outcomes = run_job("ddp", services=services, steps=4, bound=0.1, die_at=2, victim=1, kill=1)
    told = outcomes[0].answer
    assert told["error"] is not None, outcomes[0].output
    assert_names(told["error"], "rank 1")
    assert told["seconds"] < 15


@pytest.mark.parametrize("services", [0, 1])
@pytest.mark.parametrize("hooked", [0, 1])
def test_hook__on_some_ranks_only_is_an_error_of_every_rank_at_once(services: int, hooked: int) -> None:
    outcomes = run_job("hook_on", services=services, ranks=[hooked])
    for outcome in outcomes[:2]:
        told = outcome.answer
        assert told["error"] is not None, outcome.output
        assert_names(told["error"], f"rank {hooked} called barrier", f"rank {1 - hooked} called all-reduce", "hook")
        assert told["seconds"] < 15
        assert told["after"] == [2.0] * 3


@pytest.mark.parametrize(("services", "by_services"), [(0, None), (1, None), (1, "asked"), (1, "given")])
def test_hook__that_rotates_on_some_ranks_only_is_an_error_of_every_rank(
    services: int, by_services: str | None
) -> None:
    outcomes = run_job("hook_on", services=services, by_services=by_services, ranks=[0, 1], rotating=[1])
    for outcome in outcomes[:2]:
        told = outcome.answer
        assert told["error"] is not None, outcome.output
        assert_names(told["error"], "rotate=True on group rank 1", "rotate=False on group rank 0", "the same")
        assert told["after"] == [2.0] * 3


def test_state__refuses_a_bound_outside_its_range() -> None:
    for bound in (-0.1, 1.0):
        with pytest.raises(ValueError, match=r"\[0, 1\)"):
            BoundedLossState(loss_bound=bound)
    with pytest.raises(ValueError, match="history"):
        BoundedLossState(history=0)


class Bucket:
    """The bucket that DDP passes to a hook."""

    def __init__(self, buffer: torch.Tensor | None = None) -> None:
        self._buffer = torch.ones(8) if buffer is None else buffer

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def parameters(self) -> list[torch.Tensor]:
        return [self._buffer]


def test_hook__a_bucket_that_takes_5_seconds_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with local_job(2) as contexts, caplog.at_level(logging.WARNING, "mlt"):
        early, late = (BoundedLossState(transport=context) for context in contexts)
        first: Any = early.synchronise(Bucket())  # type: ignore[arg-type]
        until(lambda: "still waiting" in caplog.text, seconds=20)
        assert_names(caplog.text, "rank 0: still waiting for the all_reduce after 5 s")
        second: Any = late.synchronise(Bucket())  # type: ignore[arg-type]
        assert first.wait().tolist() == second.wait().tolist() == [1.0] * 8


def averages(contexts: list[mlt.Context], tensors: list[torch.Tensor], **options: Any) -> list[BoundedLossState]:
    """Average one bucket of each worker, in place."""
    states = [BoundedLossState(transport=context, **options) for context in contexts]
    futures: list[Any] = [
        state.synchronise(Bucket(tensor))  # type: ignore[arg-type]
        for state, tensor in zip(states, tensors, strict=True)
    ]
    for future, tensor in zip(futures, tensors, strict=True):
        assert future.wait().data_ptr() == tensor.data_ptr()
    return states


def test_hook__the_figures_of_a_step_are_scalars_of_tensorboard(tmp_path: Path) -> None:
    with local_job(2) as contexts:
        (state, _) = averages(contexts, [torch.ones(1_000), torch.ones(1_000)], loss_bound=0.0)
    latest = state.latest
    assert latest is not None
    with SummaryWriter(str(tmp_path)) as writer:
        for name, value in latest.scalars().items():
            writer.add_scalar(name, value, latest.step)
    written = EventAccumulator(str(tmp_path))
    written.Reload()
    assert written.Tags()["scalars"] == list(latest.scalars())
    assert [(event.step, event.value) for event in written.Scalars("mlt/bytes")] == [(0, 4_000.0)]


class RecordingMlflow:
    """``mlflow.log_metrics`` with the checks of MLflow 3: of names, of values, and of the step."""

    def __init__(self) -> None:
        self.logged: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        for name, value in metrics.items():
            assert re.fullmatch(r"[\w.: /-]+", name), name
            assert isinstance(value, float), (name, value)
            assert math.isfinite(value), (name, value)
        assert step is None or isinstance(step, int)
        self.logged.append((step, metrics))


def test_hook__the_figures_of_a_step_are_metrics_of_mlflow() -> None:
    mlflow = RecordingMlflow()
    with local_job(2) as contexts:
        (state, _) = averages(contexts, [torch.ones(1_000), torch.ones(1_000)], loss_bound=0.0)
    latest = state.latest
    assert latest is not None
    mlflow.log_metrics(latest.scalars(), step=latest.step)
    ((step, metrics),) = mlflow.logged
    assert step == 0
    assert metrics.keys() == {
        *("mlt/gradient_loss", "mlt/exchange_ms", "mlt/exposed_ms", "mlt/bytes", "mlt/repairs"),
    }
    assert metrics["mlt/bytes"] == 4_000.0


def test_hook__a_line_of_the_log_every_so_many_steps(caplog: pytest.LogCaptureFixture) -> None:
    with local_job(2) as contexts, caplog.at_level(logging.INFO, "mlt"):
        states = [BoundedLossState(transport=contexts[0], log_every=3), BoundedLossState(transport=contexts[1])]
        for _ in range(7):
            futures: list[Any] = [state.synchronise(Bucket(torch.ones(1_000))) for state in states]  # type: ignore[arg-type]
            for future in futures:
                future.wait()
    lines = [record.message for record in caplog.records if "bucket" in record.message]
    assert [line.split(", ")[0] for line in lines] == [f"rank 0: step {step}: 4 KB in 1 bucket" for step in (2, 5)]
    assert lines[0] == f"rank 0: {states[0].steps[2]}"


@pytest.mark.parametrize("bad", [1e30, float("nan")])
def test_hook__a_worker_whose_norm_is_far_from_the_others_is_named_at_every_worker(bad: float) -> None:
    with local_job(3) as contexts:
        states = [BoundedLossState(transport=one, loss_bound=0.0, max_norm_ratio=100) for one in contexts]
        tensors = [torch.ones(1_000) for _ in contexts]
        tensors[2][7] = bad
        for error in together(states, tensors):
            assert error is not None
            assert_names(str(error), "rank 2's tensors", "median", "gradient bucket 0 of step 0")
        tensors = [torch.full((1_000,), float(rank)) for rank in range(3)]
        assert together(states, tensors) == [None] * 3
        assert torch.equal(tensors[0], torch.ones(1_000))


@pytest.mark.parametrize("rotate", [False, True])
def test_hook__a_worker_whose_norm_is_far_from_the_others_is_dropped(rotate: bool) -> None:
    with local_job(3) as contexts:
        states = [BoundedLossState(transport=one, rotate=rotate, max_norm_ratio=100, max_dropped=1) for one in contexts]
        tensors = [torch.full((BLOCK,), 1.0 + rank) for rank in range(3)]
        tensors[2][7] = 1e30
        assert together(states, tensors) == [None] * 3
        for tensor in tensors:
            torch.testing.assert_close(tensor, torch.full((BLOCK,), 1.5))


def test_hook__that_compares_norms_on_some_ranks_only_is_an_error_of_every_rank() -> None:
    for outcome in run_job("hook_on", ranks=[0, 1], comparing=[1])[:2]:
        told = outcome.answer
        assert told["error"] is not None, outcome.output
        assert_names(told["error"], "max_norm_ratio=100 on group rank 1", "max_norm_ratio=None on group rank 0")
        assert told["after"] == [2.0] * 3


def together(states: list[BoundedLossState], tensors: list[torch.Tensor]) -> list[Exception | None]:
    """Averages a bucket at all workers, which wait for each other; their errors."""

    def one(state: BoundedLossState, tensor: torch.Tensor) -> Exception | None:
        try:
            state.synchronise(Bucket(tensor)).wait()  # type: ignore[arg-type]
        except Exception as error:
            return error
        return None

    with ThreadPoolExecutor() as threads:
        return list(threads.map(one, states, tensors))


def test_hook__rotation_leaves_a_part_of_what_a_lost_segment_would_take_whole() -> None:
    elements = 64 * BLOCK
    lossy = mlt.Faults(drop=0.05, seed=5)
    with local_job(2, faults=lossy, segment_bytes=ETHERNET_SEGMENT, operation_timeout=60.0) as contexts:
        # One element of each block is not 0, at one of two workers: lost alone, it would be 0.
        tensors = [torch.zeros(elements) for _ in contexts]
        tensors[1][::BLOCK] = 2.0
        states = averages(contexts, tensors, loss_bound=0.5, rotate=True)
        assert torch.equal(tensors[0], tensors[1])
        assert sum(state.latest.missing_bytes for state in states if state.latest) > 0
        spikes = tensors[0][::BLOCK]
        assert (spikes > 0.2).all()  # without loss 1
        assert (spikes < 0.99).any()


def test_hook__rotation_leaves_what_cannot_lose_as_it_is_to_the_last_bit() -> None:
    with local_job(2) as contexts:
        one = torch.randn(10_000, generator=torch.Generator().manual_seed(1))
        tensors = [one.clone(), one.clone()]
        averages(contexts, tensors, loss_bound=0.0, rotate=True)
        assert torch.equal(tensors[0], one)
        half = Bucket(torch.ones(8, dtype=torch.bfloat16))
        with pytest.raises(TypeError, match=names("bfloat16", "float32, float64")):
            BoundedLossState(transport=contexts[0], rotate=True).synchronise(half)  # type: ignore[arg-type]
