"""``mlt doctor --recorder``: findings from files of flight recorders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from checks import assert_names, names

from mlt._shared.flight_record import Call, Record, State
from mlt.diagnosis.flight_records import examine_records
from mlt.errors import ConfigError


def call(
    what: str,
    number: int | None,
    state: State = "completed",
    *,
    group: str = "0",
    error: str = "",
    size: int = 4096,
    types: Sequence[str] = ("float32",),
) -> Call:
    seconds = None if state == "in progress" else 0.25
    return Call(
        call=what, group=group, number=number, bytes=size, types=list(types), began=1.0, seconds=seconds, state=state,
        error=error or None,
    )  # fmt: skip


def write(folder: Path, rank: int, *calls: Call, size: int = 3, at: float = 9.0) -> None:
    record = Record(rank=rank, world_size=size, host=f"host{rank}", pid=70 + rank, written=at, calls=list(calls))
    (folder / record.file_name).write_text(record.model_dump_json())


def found(folder: Path) -> list[tuple[str, str]]:
    return [(finding.level, finding.what) for finding in examine_records(folder)]


def test_records__name_the_failed_call_and_ranks_without_a_file(tmp_path: Path) -> None:
    write(tmp_path, 0, call("broadcast", 1), call("all_reduce", 2, "failed", error="rank 2 died"))
    write(tmp_path, 1, call("broadcast", 1), call("all_reduce", 2, "failed", error="rank 2 died"))
    first, second, missing, group = found(tmp_path)
    assert first[0] == second[0] == missing[0] == "problem"
    assert_names(first[1], "rank 0 (host0, pid 70)", "all_reduce", "4 KiB", "float32", "call 2", "250", "rank 2 died")
    assert_names(second[1], "rank 1 (host1, pid 71)")
    assert_names(missing[1], "rank 2 has no file")
    assert group == ("ok", "group '0': ranks 0, 1 began 2 calls")


def test_records__name_who_is_behind(tmp_path: Path) -> None:
    timed_out = "ranks 1 and 2 did not call it"
    write(tmp_path, 0, call("all_reduce", 1), call("barrier", 2, "failed", error=timed_out))
    write(tmp_path, 1, call("all_reduce", 1), call("send to rank 0, tag 1", None, "failed", error="timeout"))
    write(tmp_path, 2, call("all_reduce", 1, "failed", error="late"))
    behind = found(tmp_path)[-1]
    assert behind[0] == "problem"
    assert_names(behind[1], "group '0'", "ranks 1, 2 began 1 and 1 of 2 calls", "barrier")


def test_records__name_the_first_calls_that_differ(tmp_path: Path) -> None:
    for rank in range(3):
        odd = "broadcast" if rank == 1 else "all_reduce"
        write(tmp_path, rank, call("barrier", 1), call(odd, 2), call(odd, 3, "failed", error="differ"))
    differs = found(tmp_path)[-1]
    assert_names(differs[1], "call 2 differs", "rank 0 all_reduce", "rank 1 broadcast", "rank 2 all_reduce")


@pytest.mark.parametrize("other", [{"size": 8192}, {"types": ("int32",)}])
def test_records__name_a_failed_call_that_differs_in_size_or_type_only(tmp_path: Path, other: dict[str, Any]) -> None:
    for rank in range(3):
        its = other if rank == 1 else {}
        write(tmp_path, rank, call("all_reduce", 1), call("all_reduce", 2, "failed", error="differ", **its))
    differs = found(tmp_path)[-1]
    assert_names(differs[1], "call 2 differs", "rank 0 all_reduce of 4 KiB of float32", "rank 1 all_reduce of")
    assert_names(differs[1], "8 KiB of float32" if "size" in other else "4 KiB of int32")


def test_records__sizes_of_calls_that_succeeded_or_depend_on_the_rank_are_no_difference(tmp_path: Path) -> None:
    for rank in range(3):
        write(
            tmp_path, rank, call("reduce", 1, size=rank), call("gather", 2, "failed", error="x", size=rank),
            call("all_reduce", 3, "failed", error="x"),
        )  # fmt: skip
    assert found(tmp_path)[-1] == ("ok", "group '0': ranks 0, 1, 2 began 3 calls")


def test_records__groups_are_compared_on_their_own(tmp_path: Path) -> None:
    write(tmp_path, 0, call("barrier", 1, "failed", error="x"), call("all_reduce", 1, group="pair"), size=2)
    write(tmp_path, 1, call("barrier", 1, "failed", error="x"), size=2)
    assert found(tmp_path)[-2:] == [
        ("ok", "group '0': ranks 0, 1 began 1 call"),
        ("ok", "group 'pair': rank 0 began 1 call"),
    ]


@pytest.mark.parametrize(("size", "at"), [(4, 9.0), (2, 9.0 + 3_600)])
def test_records__files_of_another_run_are_named(tmp_path: Path, size: int, at: float) -> None:
    write(tmp_path, 0, call("barrier", 1, "failed", error="x"), size=2)
    write(tmp_path, 1, call("barrier", 7, "failed", error="x"), size=size, at=at)
    level, text = found(tmp_path)[0]
    assert level == "problem"
    assert_names(text, "several jobs or runs", "rank 0 of 2", f"rank 1 of {size}")


def test_records__a_rank_whose_failed_call_is_too_old(tmp_path: Path) -> None:
    write(tmp_path, 0, call("barrier", 900), size=1)
    assert_names(found(tmp_path)[0][1], "rank 0", "no failed call")


def test_records__files_of_something_else_are_named(tmp_path: Path) -> None:
    write(tmp_path, 0, call("barrier", 1, "failed", error="x"), size=1)
    (tmp_path / "rank1.json").write_text("{")
    (tmp_path / "rank2.json").write_text('{"rank": 2}')
    level, text = found(tmp_path)[0]
    assert level == "problem"
    assert_names(text, "rank1.json", "not the file of a flight recorder")
    assert_names(found(tmp_path)[1][1], "rank2.json")


def test_records__an_empty_folder_says_how_files_come(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=names("MLT_FLIGHT_RECORDER", str(tmp_path))):
        found(tmp_path)
