"""The flight recorder: the file of a rank whose call failed, and what ``mlt doctor --recorder`` makes of all files."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from checks import assert_names, names
from job import answers, run_job
from mlt.torch import recorder
from mlt.torch.recorder import CAPACITY, FlightRecorder
from mlt.torch.work import MltWork

from mlt._shared.flight_record import Record
from mlt.diagnosis.flight_records import examine_records
from mlt.errors import ConfigError

PROGRAMS = Path(__file__).with_name("recorder_programs.py")


@pytest.fixture(autouse=True)
def no_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_replica", None)


def record_of(folder: Path, rank: int = 0) -> Record:
    return Record.model_validate_json((folder / f"rank{rank}.json").read_text())


def test_file__has_the_last_calls_with_their_ends(tmp_path: Path) -> None:
    flight = FlightRecorder(tmp_path / "new")
    for number in range(1, CAPACITY + 1):
        flight.begin("barrier", "0", number, []).end(None)
    work = MltWork("sent")
    flight.begin("send to rank 1, tag 3", "0", None, torch.ones(2, dtype=torch.float16)).watch(work)
    failed = flight.begin("all_reduce", "0", CAPACITY + 1, [torch.ones(3), [torch.ones(1, dtype=torch.int64)]])
    flight.begin("broadcast", "0", CAPACITY + 2, torch.ones(3))
    assert not (tmp_path / "new").exists()
    failed.end(RuntimeError("rank 1 died"))
    failed.end(None)  # the first end counts
    record = record_of(tmp_path / "new")
    assert (record.rank, record.world_size, len(record.calls)) == (0, 1, CAPACITY)
    first, (sent, reduced, begun) = record.calls[0], record.calls[-3:]
    assert (first.number, first.state, first.bytes, first.types) == (4, "completed", 0, [])
    assert (sent.number, sent.state, sent.bytes, sent.types) == (None, "in progress", 4, ["float16"])
    assert (reduced.state, reduced.error, reduced.bytes) == ("failed", "rank 1 died", 20)
    assert reduced.types == ["float32", "int64"]
    assert (begun.state, begun.seconds) == ("in progress", None)


def test_file__a_call_that_ended_without_a_wait_is_complete(tmp_path: Path) -> None:
    flight = FlightRecorder(tmp_path)
    ended, dropped = MltWork("ended"), MltWork("dropped")
    for work in (ended, dropped):
        flight.begin("send", "0", None, []).watch(work)
    ended.run(lambda: None)
    del work, dropped
    flight.begin("recv", "0", None, []).end(RuntimeError("late"))
    assert [call.state for call in record_of(tmp_path).calls] == ["ended", "ended", "failed"]


def test_file__is_written_once_a_second_with_every_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "SECONDS_BETWEEN_FILES", 0.2)
    flight = FlightRecorder(tmp_path)
    flight.begin("barrier", "0", 1, []).end(RuntimeError("first"))
    flight.begin("barrier", "0", 2, []).end(RuntimeError("second"))
    flight.begin("barrier", "0", 3, []).end(RuntimeError("third"))
    assert len(record_of(tmp_path).calls) == 1
    end = time.monotonic() + 10
    while len(record_of(tmp_path).calls) != 3:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_file__what_failed_last_is_written_when_the_process_ends(tmp_path: Path) -> None:
    program = """
from mlt.torch import recorder
for number in (1, 2):
    recorder.begin("barrier", "0", number, []).end(RuntimeError("late"))
"""
    environment = {**os.environ, "MLT_FLIGHT_RECORDER": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert [call.state for call in record_of(tmp_path).calls] == ["failed", "failed"]


def test_flush__is_not_for_a_forked_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flight = FlightRecorder(tmp_path)
    flight.begin("barrier", "0", 1, []).end(RuntimeError("first"))
    flight.begin("barrier", "0", 2, []).end(RuntimeError("second"))
    own = os.getpid()
    monkeypatch.setattr(recorder.os, "getpid", lambda: own + 1)
    flight.flush()
    assert len(record_of(tmp_path).calls) == 1


def test_file__a_failure_to_write_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "mlt"):
        FlightRecorder(tmp_path / "file").begin("barrier", "0", 1, []).end(RuntimeError("no folder"))
    assert_names(caplog.text, str(tmp_path / "file"), "cannot write")


@pytest.mark.parametrize("rank", ["x", "99999999999999999999"])
def test_file__whatever_fails_while_it_is_written_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    flight = FlightRecorder(tmp_path)
    work = MltWork("mlt barrier", entry=flight.begin("barrier", "0", 1, []))

    def fail() -> None:
        raise RuntimeError("a name that UTF-8 lacks: \udc80")

    with caplog.at_level(logging.WARNING, "mlt"):
        work.run(fail)
    assert_names(caplog.text, str(tmp_path))
    with pytest.raises(RuntimeError, match="UTF-8"):
        work.wait()


def test_file__a_failure_while_it_is_written_is_written_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flight = FlightRecorder(tmp_path)
    monkeypatch.setattr(recorder, "SECONDS_BETWEEN_FILES", 0.0)
    first, second = (flight.begin("barrier", "0", number, []) for number in (1, 2))
    write = recorder.write_text

    def write_twice(path: Path, text: str) -> None:
        second.end(RuntimeError("in a finalizer"))  # would wait for itself
        write(path, text)

    monkeypatch.setattr(recorder, "write_text", write_twice)
    first.end(RuntimeError("first"))
    assert [call.state for call in record_of(tmp_path).calls] == ["failed", "failed"]


def test_entry__sparse_tensors_have_a_size_too(tmp_path: Path) -> None:
    flight = FlightRecorder(tmp_path)
    flight.begin("all_reduce", "0", 1, torch.eye(3).to_sparse()).end(RuntimeError("x"))
    assert record_of(tmp_path).calls[0].types == ["float32"]


def test_begin__nothing_is_recorded_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLT_FLIGHT_RECORDER", raising=False)
    recorder._of_this_process.cache_clear()
    assert recorder.begin("barrier", "0", 1, []) is None


def test_check__names_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for folder in ("file", "file/below", ""):
        monkeypatch.setenv("MLT_FLIGHT_RECORDER", str(tmp_path / folder) if folder else "")
        if folder:
            with pytest.raises(ConfigError, match=names("MLT_FLIGHT_RECORDER", str(tmp_path / folder), "unset")):
                recorder.check()
        else:
            recorder.check()
    monkeypatch.setenv("MLT_FLIGHT_RECORDER", str(tmp_path / "new" / "below"))
    recorder.check()
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_init__ends_with_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MLT_FLIGHT_RECORDER", str(tmp_path / "file"))
    program = """
import torch.distributed as dist
dist.init_process_group("mlt", store=dist.HashStore(), rank=0, world_size=1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert_names(done.stderr, "ConfigError", "MLT_FLIGHT_RECORDER", "it is a file")


def test_file__of_a_replica_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_replica", recorder.Replica("train_0:ab/1", rank=2, count=3))
    FlightRecorder(tmp_path).begin("barrier", "torchft 5", 1, []).end(RuntimeError("x"))
    (file,) = tmp_path.iterdir()
    record = Record.model_validate_json(file.read_text())
    assert file.name == record.file_name == "rank-train_0_ab_1.json"
    assert (record.rank, record.world_size, record.replica) == (2, 3, "train_0:ab/1")
    assert_names(next(iter(examine_records(tmp_path))).what, "rank 2", "replica train_0:ab/1")


def test_ranks__whose_sizes_differ_have_files_that_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLT_FLIGHT_RECORDER", str(tmp_path))
    assert all(answers(run_job("differ_in_size", programs=PROGRAMS)))
    found = [finding.what for finding in examine_records(tmp_path)]
    assert_names(found[-1], "call 2 differs", "rank 0 all_reduce of 4 KB", "rank 1 all_reduce of 4 KB", "float64")


def test_ranks__whose_calls_differ_have_files_that_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLT_FLIGHT_RECORDER", str(tmp_path))
    assert all(answers(run_job("differ", programs=PROGRAMS, workers=3), workers=3))
    last = [record_of(tmp_path, rank).calls[-1] for rank in range(3)]
    assert [(call.call, call.number, call.state) for call in last] == [
        ("all_reduce", 3, "failed"),
        ("all_reduce", 3, "failed"),
        ("barrier", 3, "failed"),
    ]
    found = [finding.what for finding in examine_records(tmp_path)]
    for rank in range(3):
        assert_names(found[rank], f"rank {rank} ", "call 3", "failed")
    assert_names(found[-1], "call 3 differs", "rank 0 all_reduce", "4 KB", "float32", "rank 2 barrier")


def test_ranks__a_killed_one_has_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLT_FLIGHT_RECORDER", str(tmp_path))
    first, second, dead = run_job("killed", programs=PROGRAMS, workers=3)
    assert dead.status != 0
    for outcome in (first, second):
        assert_names(outcome.output, "rank 2", "gradient bucket 0 of step 2", "(bias, weight)")
    found = [finding.what for finding in examine_records(tmp_path)]
    assert any("rank 2 has no file" in text for text in found)
    bucket = record_of(tmp_path, 1).calls[-1]
    assert (bucket.group, bucket.state) == ("bounded_loss_hook", "failed")
