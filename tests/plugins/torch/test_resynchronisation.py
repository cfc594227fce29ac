"""Replicas that lossy results let drift apart, and what makes them equal again; between real processes."""

from __future__ import annotations

import doctest
import logging
from pathlib import Path
from typing import Any

import mlt.torch
import pytest
import torch
from checks import assert_names, in_threads, names
from job import answers, run_job
from mlt.torch import resynchronisation
from mlt.torch.resynchronisation import Drift, may_drift
from transport_jobs import local_job

PROGRAMS = Path(__file__).with_name("resynchronisation_programs.py")
WORKERS, EVERY, STEPS = 3, 5, 17


@pytest.fixture(scope="module", params=["mean", "broadcast"])
def drifting(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    options = {"steps": STEPS, "every": EVERY, "bound": 0.2, "drop": 0.05, "by": request.param}
    return answers(run_job("drift", workers=WORKERS, programs=PROGRAMS, **options), workers=WORKERS)


def test_examples() -> None:
    assert doctest.testmod(resynchronisation).failed == 0


def test_resynchronise_every__replicas_drift_and_are_equal_to_the_last_bit_again(
    drifting: list[dict[str, Any]],
) -> None:
    # After each step; before the forward passes 5, 10 and 15 they are made equal, and then drift apart again.
    steps = [{told["digests"][step] for told in drifting} for step in range(STEPS)]
    assert [len(steps[step]) > 1 for step in range(1, STEPS)] == [True] * (STEPS - 1)
    for before in (5, 10, 15):
        assert len({told["before_step"][str(before)] for told in drifting}) == 1
    # Parameters and the optimizer's state after the last one, which the program asked for.
    assert len({told["final"] for told in drifting}) == 1
    assert len({told["final_state"] for told in drifting}) == 1


def test_resynchronise_every__drift_is_measured_alike_on_every_rank(drifting: list[dict[str, Any]]) -> None:
    assert drifting[0]["drifts"] == drifting[1]["drifts"] == drifting[2]["drifts"]
    drifts = drifting[0]["drifts"]
    assert [step for step, _, _ in drifts] == [5, 10, 15, 17]
    for _, greatest, relative in drifts:
        assert 0 < greatest < 0.1  # a learning rate of 0.05
        assert 0 < relative < 0.1
    for told in drifting:
        # The largest difference between two ranks, as the program gathered it: one from the middle is at least half.
        for (_, greatest, _), apart in zip(drifts, told["apart"], strict=True):
            assert apart / 2 * 0.999 <= greatest <= apart * 1.001
        noted = {int(step): value for step, value in told["statistics"].items()}
        assert noted == {step: greatest for step, greatest, _ in drifts[:-1]}


def test_resynchronise_every__loses_both_ways_within_the_bound(drifting: list[dict[str, Any]]) -> None:
    for told in drifting:
        # Of a ring of three, sums and results of two chunks each.
        assert 0 < told["loss"] <= 0.2 * 4 / 3 * 1.01


def test_verify_replicas__knows_of_replicas_that_may_drift(drifting: list[dict[str, Any]]) -> None:
    for told in drifting:
        assert_names(told["refused"], "the replicas differ", "lossy_results", "resynchronise()")
        assert told["verified"]


def test_hook__lossy_results_without_resynchronisation_are_refused() -> None:
    told = answers(run_job("unsynchronised", workers=2, programs=PROGRAMS), workers=2)
    for error in told:
        assert_names(error, "lossy_results lets the replicas drift apart", "resynchronise_every")


def test_hook__parameters_that_are_not_made_equal_again_are_refused() -> None:
    told = answers(run_job("other_model", workers=2, programs=PROGRAMS), workers=2)
    for error in told:
        assert_names(error, "parameters that resynchronise_every does not make equal again", "a state of its own")


def test_hook__a_forward_pass_that_never_resynchronises_is_an_error() -> None:
    told = answers(run_job("never_forward", workers=2, programs=PROGRAMS), workers=2)
    for error, steps in told:
        assert_names(error, "every 2 steps", "not in twice as many")
        assert steps == 5


def test_hook__join_is_refused() -> None:
    told = answers(run_job("joined", workers=2, programs=PROGRAMS), workers=2)
    for error in told:
        assert_names(error, "resynchronise_every and DDP's join() do not go together")


def test_hook__services_may_lose_both_ways_too() -> None:
    options = {"steps": 12, "every": 4, "bound": 0.2, "drop": 0.05, "by": "mean"}
    told = answers(run_job("drift", services=1, workers=2, programs=PROGRAMS, **options))
    assert told[0]["digests"][2] != told[1]["digests"][2]
    assert told[0]["before_step"]["8"] == told[1]["before_step"]["8"]
    assert told[0]["final"] == told[1]["final"]


def test_state__refuses_what_makes_no_sense() -> None:
    with local_job(2) as (context, _):
        model = torch.nn.Linear(2, 2)
        state = mlt.torch.BoundedLossState(context, lossy_results=True)
        with pytest.raises(RuntimeError, match=names("resynchronise_every")):
            state.resynchronise()
        for steps in (0, -1, 2.5, True):
            with pytest.raises(ValueError, match=names(steps, "1 step or more")):
                state.resynchronise_every(steps, model)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=names("median", "mean", "broadcast")):
            state.resynchronise_every(5, model, by="median")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=names("root is 2", "0 to 1")):
            state.resynchronise_every(5, model, by="broadcast", root=2)
        assert not may_drift(model)
        state.resynchronise_every(5, model)
        assert may_drift(model)
        with pytest.raises(ValueError, match="called before"):
            state.resynchronise_every(5, model)
        assert state.drifts == ()
        with pytest.raises(ValueError, match="lossy_results is 1"):
            mlt.torch.BoundedLossState(context, lossy_results=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_resynchronise__makes_every_type_equal_and_leaves_frozen_parameters(
    dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    with local_job(2) as contexts:
        models, states = [], []
        for rank, context in enumerate(contexts):
            model = torch.nn.ParameterList()
            model.append(torch.nn.Parameter(torch.full((3, 2), 1 + 2 * rank, dtype=dtype)))
            model.append(torch.nn.Parameter(torch.full((4,), float(rank)), requires_grad=False))
            state = mlt.torch.BoundedLossState(context)
            state.resynchronise_every(5, model)
            models.append(model)
            states.append(state)
        with caplog.at_level(logging.INFO, "mlt"):
            drifts: list[Drift] = []
            in_threads(lambda state: drifts.append(state.resynchronise()), [(state,) for state in states])
        for rank, model in enumerate(models):
            assert torch.equal(model[0], torch.full((3, 2), 2.0).to(dtype))
            assert model[1].tolist() == [float(rank)] * 4
        assert [(drift.step, drift.greatest, round(drift.relative, 6)) for drift in drifts] == [(0, 1.0, 0.5)] * 2
        assert_names(caplog.text, "rank 0", "rank 1", "re-synchronised after 0 steps", "up to 1, 50 % of their norm")


def resynchronised(values: list[torch.Tensor], **options: Any) -> list[torch.Tensor]:
    """A parameter of each rank after a re-synchronisation."""
    with local_job(len(values)) as contexts:
        models = [torch.nn.ParameterList([torch.nn.Parameter(value)]) for value in values]
        states = [mlt.torch.BoundedLossState(context) for context in contexts]
        for state, model in zip(states, models, strict=True):
            state.resynchronise_every(5, model, **options)
        in_threads(lambda state: state.resynchronise(), [(state,) for state in states])
        assert {state.drifts[0].greatest for state in states} == {states[0].drifts[0].greatest}
        return [model[0].detach() for model in models]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("by", ["mean", "broadcast"])
def test_resynchronise__leaves_equal_replicas_as_they_are_and_large_values_finite(dtype: torch.dtype, by: str) -> None:
    value = torch.tensor([40_000.0, 1.0078125, 7.0, 1e-3], dtype=dtype)
    for found in resynchronised([value.clone() for _ in range(3)], by=by):
        assert torch.equal(found, value)


def test_resynchronise__of_a_nan_is_a_nan_in_the_drift() -> None:
    with local_job(2) as contexts:
        models = [torch.nn.Linear(2, 2) for _ in contexts]
        with torch.no_grad():
            models[1].weight[0, 0] = float("nan")
        states = [mlt.torch.BoundedLossState(context) for context in contexts]
        for state, model in zip(states, models, strict=True):
            state.resynchronise_every(5, model)
        in_threads(lambda state: state.resynchronise(), [(state,) for state in states])
        assert all(state.drifts[0].greatest != state.drifts[0].greatest for state in states)


def test_resynchronise__names_ranks_whose_optimizer_has_another_state() -> None:
    with local_job(2) as contexts:
        errors: list[str] = []
        states = []
        for rank, context in enumerate(contexts):
            model = torch.nn.Linear(3, 3)
            optimizer = torch.optim.Adam(model.parameters())
            if rank == 0:  # the other has skipped its first step
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
            state = mlt.torch.BoundedLossState(context)
            state.resynchronise_every(5, model, optimizer)
            states.append(state)

        def run(state: mlt.torch.BoundedLossState) -> None:
            try:
                state.resynchronise()
            except RuntimeError as error:
                errors.append(str(error))

        in_threads(run, [(state,) for state in states])
        assert len(errors) == 2
        for error in errors:
            assert_names(error, "optimizer's state of rank(s) 1", "not those of rank 0")


def test_resynchronise__adam_keeps_its_steps() -> None:
    with local_job(3) as contexts:
        optimizers, states = [], []
        for rank, context in enumerate(contexts):
            model = torch.nn.Linear(3, 3)
            optimizer = torch.optim.Adam(model.parameters())
            model(torch.full((1, 3), rank + 1.0)).sum().backward()
            optimizer.step()
            state = mlt.torch.BoundedLossState(context)
            state.resynchronise_every(5, model, optimizer)
            optimizers.append(optimizer)
            states.append(state)
        in_threads(lambda state: state.resynchronise(), [(state,) for state in states])
        for optimizer in optimizers:
            for own, first in zip(optimizer.state.values(), optimizers[0].state.values(), strict=True):
                assert own["step"] == 1
                assert torch.equal(own["exp_avg"], first["exp_avg"])
                assert torch.equal(own["exp_avg_sq"], first["exp_avg_sq"])
