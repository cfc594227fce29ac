"""``mlt doctor --recorder``: what the ranks of a job did last, from the files of their flight recorders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from mlt._shared.counts import count_of
from mlt._shared.flight_record import FILES, Call, Record
from mlt._shared.structured_text import SyntaxProblem, parse_json
from mlt._shared.text_files import UnreadableError, read_text
from mlt._shared.units import format_size, format_time
from mlt.diagnosis.doctor import Finding
from mlt.errors import ConfigError
from mlt.job.rendezvous import ranks_text

_VARIABLE = "MLT_FLIGHT_RECORDER"
# Calls whose sizes may differ from rank to rank: only the root has a list, or the parts differ.
_SIZED_BY_RANK = ("gather", "scatter", "all_to_all", "reduce_scatter")
# Between the first file of one failure and the last: calls may time out after each other.
_SAME_FAILURE_SECONDS = 600.0


def examine_records(folder: Path) -> Iterator[Finding]:
    """Findings about the files in ``folder``: each rank's failed call, then the calls that differ, group by group.

    Raises ConfigError if the folder has no such file.
    """
    files = sorted(folder.glob(FILES), key=lambda path: (len(path.name), path.name))
    if not files:
        raise ConfigError(
            f"--recorder {folder}: no file {FILES}: set {_VARIABLE} to this folder at every rank; a rank writes its "
            "file when a call fails"
        )
    records = []
    for path in files:
        try:
            records.append(Record.model_validate(parse_json(read_text(path))))
        except (UnreadableError, SyntaxProblem, ValidationError) as error:
            reason = str(error).splitlines()[0]
            yield Finding("problem", f"{path}: not the file of a flight recorder: {reason}", "Remove it.")
    yield from _of_other_jobs(records)
    yield from _ranks(records)
    for group in dict.fromkeys(call.group for record in records for call in record.calls if call.number is not None):
        yield from _group(group, records)


def _of_other_jobs(records: Sequence[Record]) -> Iterator[Finding]:
    """Files that seem to be of another job, or of an earlier run of it."""
    times = [record.written for record in records]
    if len({record.world_size for record in records}) > 1 or (
        times and max(times) - min(times) > _SAME_FAILURE_SECONDS
    ):
        ages = ", ".join(
            f"rank {one.rank} of {one.world_size} at {datetime.fromtimestamp(one.written):%H:%M:%S}" for one in records
        )
        yield Finding(
            "problem", f"files of several jobs or runs: {ages}", "Remove those of others, and run this again."
        )


def _ranks(records: Sequence[Record]) -> Iterator[Finding]:
    """Each rank's first failed call."""
    for record in records:
        failed = next((call for call in record.calls if call.state == "failed"), None)
        replica = f"replica {record.replica}, " if record.replica else ""
        who = f"rank {record.rank} ({replica}{record.host}, pid {record.pid})"
        if failed is None:
            yield Finding("problem", f"{who}: its file has no failed call any more, of {len(record.calls)}")
            continue
        took = "" if failed.seconds is None else f" after {format_time(failed.seconds)}"
        yield Finding("problem", f"{who}: {_named(failed)} failed{took}: {failed.error}")
    size = max((record.world_size for record in records), default=0)
    missing = sorted(set(range(size)) - {record.rank for record in records})
    if missing:
        who = f"{ranks_text(missing)} {'has' if len(missing) == 1 else 'have'} no file"
        yield Finding("problem", f"{who}: killed, or in no call that failed", "Look into their own output.")


def _group(group: str, records: Sequence[Record]) -> Iterator[Finding]:
    """The ranks that are behind in the group's order of calls, and the first calls that differ."""
    by_rank = {
        record.rank: {call.number: call for call in record.calls if call.group == group and call.number is not None}
        for record in records
    }
    by_rank = {rank: calls for rank, calls in by_rank.items() if calls}
    last = {rank: max(calls) for rank, calls in by_rank.items()}
    furthest = max(last.values())
    late = sorted(rank for rank, number in last.items() if number < furthest)
    if late:
        ahead = next(calls[furthest] for calls in by_rank.values() if furthest in calls)
        who = f"{ranks_text(late)} began {' and '.join(str(last[rank]) for rank in late)} of {furthest} calls"
        yield Finding("problem", f"group {group!r}: {who}: not {_named(ahead)}")
    differing = _first_difference(by_rank)
    if differing is not None:
        texts = [f"rank {rank} {_content(calls[differing])}" for rank, calls in by_rank.items() if differing in calls]
        yield Finding("problem", f"group {group!r}: call {differing} differs: {', '.join(texts)}")
    if not late and differing is None:
        yield Finding("ok", f"group {group!r}: {ranks_text(sorted(by_rank))} began {count_of(furthest, 'call')}")


def _first_difference(by_rank: dict[int, dict[int, Call]]) -> int | None:
    """The lowest number under which two ranks made different calls, or one that failed with other sizes or types."""
    for number in sorted({number for calls in by_rank.values() for number in calls}):
        found = [calls[number] for calls in by_rank.values() if number in calls]
        if len({call.call for call in found}) > 1:
            return number
        has_failed = any(call.state == "failed" for call in found)
        is_alike = len({(call.bytes, tuple(call.types)) for call in found}) == 1
        if has_failed and not is_alike and found[0].call not in _SIZED_BY_RANK:
            return number
    return None


def _named(call: Call) -> str:
    number = "" if call.number is None else f"call {call.number} of "
    return f"{_content(call)} ({number}group {call.group!r})"


def _content(call: Call) -> str:
    return call.call if not call.types else f"{call.call} of {format_size(call.bytes)} of {' and '.join(call.types)}"
