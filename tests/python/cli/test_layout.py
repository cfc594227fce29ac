"""Lines that commands print: how wide they are, and where they break."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.table import Table
from typer.main import get_command

from mlt.cli import style
from mlt.cli.layout import MAX_WIDTH, lines, paragraph, rows, tied, untied
from mlt.cli.output import TABLE_WIDTH, Output
from mlt.cli.root import app

ROOT = Path(__file__).resolve().parents[3]
POLICY = str(ROOT / "examples" / "switch" / "paper-testbed.yaml")
CLUSTER = str(ROOT / "examples" / "planners" / "testbed.yaml")
TEXT = (
    "4 hosts of a testbed, links of 200 Mbit/s; with loss, every host's link loses 1 %, leaf0-spine1 5 %; within 30 s "
    "3 of 16 KiB packets, 1.5 ms and 2 us later 2.4 x as many, 12 steps/s, 3 MB/s"
)
QUANTITIES = ["200 Mbit/s", "1 %", "5 %", "30 s", "16 KiB", "1.5 ms", "2 us", "2.4 x", "12 steps/s", "3 MB/s"]


@pytest.mark.parametrize("columns", range(40, 101, 3))
def test_lines__keep_a_number_with_its_unit(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for text in (lines(TEXT), paragraph(TEXT), rows("Options", [("--loss LOSS", TEXT)])):
        assert max(map(len, text.splitlines())) <= columns
        assert [one for one in QUANTITIES if one not in text] == []
    assert " ".join(lines(TEXT).split()) == TEXT


def test_tied__is_undone() -> None:
    assert untied(tied(TEXT)) == TEXT
    assert tied("of 2 switches and 3 minutes") == "of 2 switches and 3 minutes"


@pytest.mark.parametrize("columns", [30, 44, 60, 80])
def test_tables__keep_a_number_with_its_unit(columns: int) -> None:
    table = Table("", "mlt, 1 % loss, bound 10 %", "gloo, 1 % loss", title=TEXT, caption=TEXT)
    table.add_row("time", "438.4 ms of 1 s", "30 s")
    stream = io.StringIO()
    Output(file=stream, width=columns).print_table(table)
    for one in (*QUANTITIES, "10 %", "438.4 ms"):
        assert one in stream.getvalue()


def test_lines__keep_their_indentation_and_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert lines("Load\n  of each worker: 12 bytes and the sum of them") == (
        "Load\n  of each worker: 12 bytes and the sum\n      of them"
    )
    assert lines("mlt doctor --fix    what would mend each finding") == (
        "mlt doctor --fix\n    what would mend each finding"
    )
    assert lines("") == ""


@pytest.mark.parametrize("columns", [None, 60])
@pytest.mark.parametrize(
    "words",
    [
        ("doctor",),
        ("plan", "auto", CLUSTER, "vgg19"),
        ("plan", "aggregate", CLUSTER),
        ("switch", "targets"),
        ("switch", "check", POLICY),
        ("switch", "facts"),
        ("switch", "facts", "os10"),
        ("perf", "--local", "--size", "64b", "--rounds", "5"),
    ],
    ids=" ".join,
)
def test_output__of_commands_has_the_width_of_the_terminal(
    words: tuple[str, ...], columns: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] == "plan":
        pytest.importorskip("scipy")
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        style.run(get_command(app), list(words), "mlt")
    for line in "".join(capsys.readouterr()).splitlines():
        # A command to copy stays in one line; a table may be wider than sentences.
        is_command = line.startswith("         -> ")
        is_table = re.search(r"[┏┓┡┩└┘┃│ ]$", line) is not None
        if not is_command:
            assert len(line.rstrip()) <= (TABLE_WIDTH if is_table else columns or MAX_WIDTH), line
