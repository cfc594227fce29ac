"""The times at which replicas are made equal again; ``test_resynchronisation.py`` has what that does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mlt.torch.resynchronisation import Drift
from mlt.torch.resynchronisation_schedule import ResynchronisationSchedule

from mlt._gradients.statistics import StepLog


class Runs:
    """Stands in for a ``Resynchronisation`` of ``covered``: the steps at which it ran."""

    def __init__(self, *covered: torch.Tensor) -> None:
        self.steps: list[int] = []
        self.is_drifting = False
        self._covered = covered

    def run(self, step: int) -> Drift:
        self.steps.append(step)
        return Drift(step, 0.5, 0.1, 0.01)

    def covers(self, parameters: Any) -> bool:
        return all(any(one is known for known in self._covered) for one in parameters)

    def mark_drifting(self) -> None:
        self.is_drifting = True


def step_of(log: StepLog) -> None:
    log.push(first=True, last=True)


def made(runs: Runs, steps: int, **options: Any) -> tuple[ResynchronisationSchedule, StepLog, torch.nn.Module]:
    log, replica = StepLog(8), torch.nn.Linear(1, 1)
    schedule = ResynchronisationSchedule(log, history=8, **options)
    schedule.set(runs, steps, replica, 0)  # type: ignore[arg-type]
    return schedule, log, replica


def test_schedule__runs_before_the_forward_pass_after_every_so_many_steps() -> None:
    runs = Runs()
    schedule, log, replica = made(runs, 3, is_required=True)
    for _ in range(7):
        replica(torch.ones(1))
        step_of(log)
    assert runs.steps == [3, 6]
    assert runs.is_drifting
    assert [drift.step for drift in schedule.drifts] == [3, 6]


def test_schedule__waits_for_a_forward_pass_of_training() -> None:
    runs = Runs()
    _, log, replica = made(runs, 1, is_required=False)
    assert not runs.is_drifting
    step_of(log)
    replica.eval()
    replica(torch.ones(1))
    replica.train()
    with torch.no_grad():
        replica(torch.ones(1))
    assert runs.steps == []
    replica(torch.ones(1))
    assert runs.steps == [1]


def test_check__an_overdue_run_is_an_error_at_the_first_bucket_of_a_step() -> None:
    schedule, log, _ = made(Runs(), 2, is_required=True)
    for _ in range(4):
        schedule.check(first=True)
        step_of(log)
    schedule.check(first=True)
    step_of(log)
    schedule.check(first=False)
    with pytest.raises(RuntimeError, match="every 2 steps"):
        schedule.check(first=True)
    schedule.run()
    schedule.check(first=True)


def test_check__lossy_results_need_a_schedule_that_covers_the_parameters() -> None:
    own, other = torch.ones(1), torch.ones(1)
    unset = ResynchronisationSchedule(StepLog(8), is_required=True, history=8)
    with pytest.raises(RuntimeError, match="resynchronise_every"):
        unset.check(first=True)
    with pytest.raises(RuntimeError, match="resynchronise_every"):
        unset.run()
    ResynchronisationSchedule(StepLog(8), is_required=False, history=8).check(first=True)
    schedule, _, _ = made(Runs(own), 2, is_required=True)
    schedule.check_covers([own])
    with pytest.raises(RuntimeError, match="does not make equal again"):
        schedule.check_covers([own, other])
    made(Runs(own), 2, is_required=False)[0].check_covers([other])
