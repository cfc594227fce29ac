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


@pytest.mark.parametrize("columns", [40, 50, 60, 80, 100])
@pytest.mark.parametrize(
    "command",
    [
        "pip install 'mpi4py>=4' # extra perf",
        "pip install 'mxnet>=1.9.1' 'numpy<1.24' # extra mxnet, in an environment of its own",
        "/srv/some/long/folder/bin/python3.11 -m pip install 'matplotlib>=3.7' 'mpi4py>=4' # extra perf",
        "apt-get install openmpi-bin",
        "sudo sysctl -w net.core.rmem_max=8388608 net.core.wmem_max=8388608",
        "mlt doctor --serve --port 29600",
    ],
)
def test_lines__keep_a_command_whole(command: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    sentence = f"not compared with some transport: what it needs is not installed: {command}"
    for text in (
        sentence,
        command,
        f"the images of a data set that is not here ({command})",
        f"one thing: a; {command}",
    ):
        assert command in lines(text)
        assert command in paragraph(text)
        assert command in rows("Options", [("--compare", text)])
        assert " ".join(lines(text).split()) == text
    if "#" not in command:
        assert f"{command}," in lines(f"what would mend it here: {command}, or another kernel, or another host of it")


@pytest.mark.parametrize("columns", [40, 50, 100])
def test_lines__keep_a_quoted_command_whole_and_break_prose(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = (
        "the host where 'mlt switch verify --switch S' runs, of mlt testbed: the kernel has no queue; mlt needs another"
    )
    assert "'mlt switch verify --switch S'" in lines(text)
    assert max(map(len, lines(text).splitlines())) <= columns


@pytest.mark.parametrize("columns", [40, 60, 100])
@pytest.mark.parametrize("command", ["perf", "testbed", "doctor", "completion"])
def test_help__keeps_the_lines_of_its_examples(
    command: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        style.run(get_command(app), [command, "-h"], "mlt")
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    module = ROOT / "python" / "mlt" / "cli" / f"{command}.py"
    examples = re.search(r"\\b\n(.*?)\n\n|\\b\n(.*?)\"\"\"", module.read_text(encoding="utf-8"), re.DOTALL)
    assert examples is not None
    commands = [
        part.strip()
        for line in (examples[1] or examples[2]).splitlines()
        for part in re.split(r"(?<=;)  | {2,}", line.strip())
        if re.match(r"(mlt |\w+: )", part)
    ]
    assert len(commands) >= 3
    assert [one for one in commands if not any(one in line for line in shown)] == []


@pytest.mark.parametrize("words", [("targets",), ("facts",), ("facts", "os10")], ids=" ".join)
def test_tables__begin_with_their_first_line(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        style.run(get_command(app), ["switch", *words], "mlt")
    assert capsys.readouterr().out.splitlines()[0].strip()


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
        is_command = line.startswith("         -> ") or re.search(r": (\S+ -m )?pip install ", line) is not None
        is_table = re.search(r"[┏┓┡┩└┘┃│ ]$", line) is not None
        if not is_command:
            assert len(line.rstrip()) <= (TABLE_WIDTH if is_table else columns or MAX_WIDTH), line
