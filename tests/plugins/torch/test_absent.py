"""Ranks stopped for good or absent, forgotten services, wrong sizes: the error names the culprit in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checks import assert_names
from job import answers, run_job

PROGRAMS = Path(__file__).with_name("absent_programs.py")
TIMEOUT_SECONDS = 2.0
SLACK_SECONDS = 4.0


@pytest.mark.parametrize("at", ["init", "connect"])
def test_stopped_rank__is_named_by_the_start(at: str, tmp_path: Path) -> None:
    outcomes = run_job(
        "stopped", workers=3, programs=PROGRAMS, stop=1, at=at, timeout=TIMEOUT_SECONDS, place=str(tmp_path / "store")
    )
    for rank in (0, 2):
        assert outcomes[rank].status == 0, outcomes[rank]
        told = outcomes[rank].answer
        assert_names(told["error"], "rank 1")
        assert told["seconds"] < TIMEOUT_SECONDS + SLACK_SECONDS


SUSPENDED = {"MLT_PEER_TIMEOUT": "1s", "MLT_SUSPENDED_TIMEOUT": "2s"}


@pytest.mark.parametrize("at", ["call", "ddp"])
@pytest.mark.parametrize(
    ("timeout", "environment", "facts"),
    [(TIMEOUT_SECONDS, {}, ("rank 1", "timed out")), (60.0, SUSPENDED, ("rank 1", "MLT_SUSPENDED_TIMEOUT"))],
    ids=["group", "suspended"],
)
def test_stopped_rank__is_named_within_the_shorter_of_both_timeouts(
    at: str, timeout: float, environment: dict[str, str], facts: tuple[str, ...]
) -> None:
    outcomes = run_job("stopped", workers=3, programs=PROGRAMS, stop=1, at=at, timeout=timeout, environment=environment)
    for rank in (0, 2):
        assert outcomes[rank].status == 0, outcomes[rank]
        told: dict[str, Any] = outcomes[rank].answer
        assert_names(told["error"], *facts)
        assert told["seconds"] < TIMEOUT_SECONDS + SLACK_SECONDS
        assert told["destroy"] < 10


def test_forgotten_service__is_named_within_the_groups_timeout() -> None:
    for told in answers(run_job("forgotten_service", programs=PROGRAMS, timeout=TIMEOUT_SECONDS)):
        assert_names(told["error"], "rank 2", "service")
        assert told["seconds"] < TIMEOUT_SECONDS + SLACK_SECONDS


@pytest.mark.parametrize(
    ("sizes", "facts"),
    [([3, 3], ["rank 2"]), ([2, 3], ["expects 3", "expects 2", "WORLD_SIZE"])],
    ids=["too-large", "different"],
)
def test_world_size__that_is_wrong_is_an_error_in_time(sizes: list[int], facts: list[str], tmp_path: Path) -> None:
    outcomes = run_job(
        "world_size", programs=PROGRAMS, sizes=sizes, timeout=TIMEOUT_SECONDS, place=str(tmp_path / "store")
    )
    for told in answers(outcomes):
        assert_names(told["error"], *facts)
        assert told["seconds"] < TIMEOUT_SECONDS + SLACK_SECONDS
