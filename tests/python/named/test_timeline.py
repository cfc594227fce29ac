"""The file that trace viewers read."""

from __future__ import annotations

import json
from pathlib import Path

from mlt._named.timeline import StepTrace, Timeline


def test_close__makes_the_file_complete_with_and_without_events(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    timeline = Timeline(path)
    timeline.message()  # not marked
    timeline.close()
    timeline.close()
    assert json.loads(path.read_text()) == []
    timeline = Timeline(path, marks_messages=True)
    timeline.message()
    timeline.close()
    timeline.record("late", "allreduce", 0.0, 0.0, 0.0)
    (event,) = json.loads(path.read_text())
    assert (event["ph"], event["name"]) == ("i", "CYCLE_START")


def test_record__two_spans_in_the_row_of_the_tensor(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    timeline = Timeline(path)
    start = timeline._origin
    for _ in range(2):
        timeline.record("a", "allreduce", start + 0.001, start + 0.003, start + 0.004)
    timeline.record("b", "broadcast", start - 1.0, start, start)
    timeline.close()
    events = json.loads(path.read_text())
    assert [event["args"]["name"] for event in events if event["ph"] == "M"] == ["a", "b"]
    spans = [(event["pid"], event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert spans == [
        (1, "NEGOTIATE_ALLREDUCE", 1000, 2000),
        (1, "ALLREDUCE", 3000, 1000),
        (1, "NEGOTIATE_ALLREDUCE", 1000, 2000),
        (1, "ALLREDUCE", 3000, 1000),
        (2, "NEGOTIATE_BROADCAST", 0, 0),
        (2, "BROADCAST", 0, 0),
    ]


def test_step_trace__records_some_steps_of_each_name(tmp_path: Path) -> None:
    trace = StepTrace(tmp_path / "comm.json", first=2, last=3)
    for step in range(1, 6):
        for name in ("front", "back")[: 1 + step % 2]:
            trace.record(name, "allreduce", trace._origin, trace._origin + step, trace._origin + step)
    trace.close()
    events = json.loads((tmp_path / "comm.json").read_text())
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    spans = [(names[one["pid"]], one["dur"]) for one in events if one["name"] == "NEGOTIATE_ALLREDUCE"]
    assert spans == [("front", 2_000_000), ("front", 3_000_000), ("back", 3_000_000), ("back", 5_000_000)]
