"""The rank that failed first: by the launcher's file, and by the ends of those that wrote nothing."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlt._shared.first_failure import VARIABLE, FailureLog, record


@pytest.fixture
def log() -> Iterator[FailureLog]:
    with FailureLog() as log:
        yield log


def soon(seconds: float = 1.0) -> float:
    return time.monotonic() + seconds


def test_first__is_the_first_to_end_where_none_has_recorded(log: FailureLog) -> None:
    assert log.first({2: soon(1), 0: soon(2)}) == 2


def test_first__is_the_one_that_recorded_first_though_it_ended_last(log: FailureLog) -> None:
    record(1, None, log.environment)
    record(0, 1, log.environment)
    assert log.first({0: soon(1), 1: soon(2)}) == 1


def test_first__is_the_one_that_another_is_about_if_it_recorded_nothing(log: FailureLog) -> None:
    """A killed rank: the others may notice before the launcher does."""
    record(0, 2, log.environment)
    record(1, 2, log.environment)
    assert log.first({0: soon(1), 2: soon(2), 1: soon(3)}) == 2
    assert log.first({0: soon(1), 1: soon(3)}) == 0  # rank 2 ended with status 0


def test_first__ignores_a_rank_that_blames_one_which_failed_later(log: FailureLog) -> None:
    record(0, 1, log.environment)
    record(1, 0, log.environment)
    assert log.first({0: soon(2), 1: soon(1)}) == 0


def test_first__takes_the_last_record_of_a_program_that_went_on_after_a_failure(log: FailureLog) -> None:
    record(0, 7, log.environment)
    record(1, None, log.environment)
    record(0, 1, log.environment)
    assert log.first({0: soon(1), 1: soon(2)}) == 1


def test_record__raises_nothing_and_makes_no_file(tmp_path: Path) -> None:
    record(0, None, {})
    record(0, None, {VARIABLE: ""})
    record(0, None, {VARIABLE: str(tmp_path / "gone" / "failures")})
    record(0, None, {VARIABLE: str(tmp_path / "failures")})
    record(0, None, {VARIABLE: str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


def test_log__without_a_folder_goes_by_the_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with FailureLog() as log:
        assert log.environment == {}
        assert log.first({1: soon(2), 2: soon(1)}) == 2


def test_log__ignores_what_is_no_record_and_removes_its_file(log: FailureLog) -> None:
    file = Path(log.environment[VARIABLE])
    file.write_bytes(b"\xff\xfe\nnothing\n1 2\n")
    assert log.first({3: soon()}) == 3
    with log:
        pass
    assert not file.exists()
    assert log.first({3: soon()}) == 3
