"""Run the tests of every collective, and write what they recorded to docs/results/collectives.md.

    python tools/collective_table.py     # two and a half minutes, as root: failures of hosts and links need a testbed

Each cell is a ``record_property("cell", (table, row, column, text))`` at the end of a test that passed. Nothing is
written if a test fails or is skipped. ``tests/python/transport/test_collective_table.py`` fails if the document lacks a
cell.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "results" / "collectives.md"
TESTS = [
    "tests/python/transport/test_collective_table.py",
    "tests/python/testbed/test_testbed_collectives.py",
    "tests/python/transport/test_push_pull.py",
    "tests/python/transport/test_checksums.py",
    "tests/python/testbed/test_testbed_services.py",
]
NOTES = {
    "verbs and element types": "Calls that were compared with numpy: each of five groups, sizes of none, of one round "
    "and of a ring, and each reduction of those that reduce.",
    "reductions and element types": "By all-reduce, reduce-scatter and reduce. A rejected call names the rank and the "
    "type, and changes nothing.",
    "verbs and groups": "In a job of four ranks.",
    "verbs and failures": "The error at every other member while all collectives are in progress, each on a stream of "
    "its own, and what works afterwards. Every text names the rank at fault. SIGKILL, SIGSTOP and partitions are on a "
    "testbed of three hosts, with the default timeouts, except that a peer has 10 s in the partition that heals. Data "
    "arrives changed in a job of two with `checksums=True`: the first rank's memory changes after the post, and the "
    "other has the error.",
    "push-pull and failures": "Of three workers and one to three services; the first three of two workers and one "
    "service on one host, with `checksums=True` for data that arrives changed. Every error names the rank at fault.",
}

Tables = dict[str, dict[tuple[str, str], str]]


class Recorder:
    """pytest plugin: the cells of tests that passed, and the tests that did not."""

    def __init__(self) -> None:
        self.tables: Tables = {}
        self.missed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            for name, value in report.user_properties:
                if name == "cell":
                    table, row, column, text = map(str, value)  # type: ignore[call-overload]
                    self.tables.setdefault(table, {})[row, column] = text
        elif not report.passed:
            self.missed.append(f"{report.nodeid}: {report.outcome}")


def lines(tables: Tables) -> Iterator[str]:
    for title, note in NOTES.items():
        cells = tables[title]
        rows, columns = (list(dict.fromkeys(place[i] for place in cells)) for i in range(2))
        yield f"\n## {title[0].upper()}{title[1:]}\n\n{note}\n"
        yield f"| | {' | '.join(columns)} |"
        yield "|---" * (len(columns) + 1) + "|"
        for row in rows:
            yield f"| {row if ' ' in row else f'`{row}`'} | {' | '.join(cells[row, column] for column in columns)} |"


def tables_of(document: str) -> Tables:
    """The tables of a document that this wrote."""
    found: Tables = {}
    for part in document.split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        table = [line.strip("|").split("|") for line in body.splitlines() if line.startswith("|")]
        columns = [name.strip() for name in table[0][1:]]
        found[title[0].lower() + title[1:]] = {
            (row[0].strip(" `"), column): text.strip()
            for row in table[2:]
            for column, text in zip(columns, row[1:], strict=True)
        }
    return found


def main() -> int:
    recorder = Recorder()
    # The document's own test would fail for a cell that is added here.
    others = ["-k", "not test_document__", "-p", "no:cacheprovider", "-q"]
    status = pytest.main([*others, *(str(ROOT / test) for test in TESTS)], plugins=[recorder])
    if status != pytest.ExitCode.OK or recorder.missed:
        print(*recorder.missed, f"{DOCUMENT.relative_to(ROOT)} is unchanged", sep="\n", file=sys.stderr)
        return 1
    day = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    head = f"# Collectives: types, groups, failures\n\nMade from the tests by `make collective-table` on {day}.\n"
    DOCUMENT.write_text(head + "\n".join(lines(recorder.tables)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
