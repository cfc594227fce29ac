"""Every command with values that are wrong: of another type, empty, not finite, negative, huge, no Unicode, and files
that are missing, folders, binary or broken. One error in mlt's own words, and a status that tells usage from failure.

Nothing here names a file outside the test's own folder: tests may run as root.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm_commands
from command_tree import all_commands

from mlt.cli.help_text import option_names, takes_value
from mlt.cli.style import run

ROOT = Path(__file__).resolve().parents[3]
CLUSTER = str(ROOT / "examples" / "planners" / "testbed.yaml")
POLICY = str(ROOT / "examples" / "switch" / "paper-testbed.yaml")
# Words of Python, pydantic, click, typer, json, PyYAML, socket and pyroute2.
LIBRARY = re.compile(
    r"invalid literal|Value error|Errno|Expecting|Traceback|Input should|unable to parse|validation error|could not "
    r"convert|is not a valid (int|float)|not in the range|codec|NoneType|<class|constructor|unicode string|"
    r"NetlinkError|int_from_float|Exceeds the limit|RecursionError"
)
WRONG = ("", " ", "nan", "-inf", "-1", "0", "x", "é", "1e400", "9" * 30, "0x10", "a,b", "[1]", "\udcff", "x" * 300)
# Of these, those that a command runs for: each takes a process.
CHECKED = ("", "nan", "-1", "é", "9" * 30, "a,b", "\udcff", "x" * 300)


def ended(cases: Sequence[Sequence[str]], folder: Path) -> list[tuple[int, str]]:
    """Status and output of each command line."""
    own = warm_commands.own_environment(COLUMNS="200", MPLCONFIGDIR=str(folder / "matplotlib"))
    done = [warm_commands.run(words, own, cwd=folder) for words in cases]
    return [(one.returncode, one.stdout + one.stderr) for one in done]


def without_input(text: str, value: str) -> str:
    """An error without what the caller wrote."""
    return text.replace(value, "") if value.strip() else text


# What a parser decides, for every option and argument of every command.


def test_parsers__reject_in_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    accepted = rejected = 0
    for command, ctx in all_commands():
        if hasattr(command, "list_commands"):
            continue

        def accept(*_: object, **__: object) -> None:
            raise SystemExit(77)

        real, command.callback = command.callback, accept
        try:
            for param in command.params:
                if param.param_type_name == "option" and not takes_value(param):
                    continue
                for value in WRONG:
                    status, text = parsed(command, ctx.command_path, param, value, capsys)
                    if status == 77:
                        accepted += 1
                        continue
                    rejected += 1
                    assert status == 2, (ctx.command_path, param.name, value, text)
                    assert not LIBRARY.search(without_input(text, value)), text
                    errors = [line for line in text.splitlines() if line.startswith("error: ")]
                    assert len(errors) == 1, text
                    if param.param_type_name == "option":
                        assert param.opts[0] in errors[0], text
                        assert f"Right form: {' '.join(option_names(param).split())}" in " ".join(text.split()), text
        finally:
            command.callback = real
    assert accepted > 500  # text and files, which the command checks
    assert rejected > 800


def parsed(
    command: object, path: str, param: object, value: str, capsys: pytest.CaptureFixture[str]
) -> tuple[object, str]:
    """Status and text of a command line that has ``value`` for ``param`` and "1" for whatever else is required."""
    words: list[str] = []
    for one in command.params:  # type: ignore[attr-defined]
        if one is param or one.required:
            given = value if one is param else "1"
            is_option = one.param_type_name == "option"
            words += [f"{one.opts[0]}={given}"] if is_option and one.opts[0].startswith("--") else [given]
    with pytest.raises(SystemExit) as error:
        run(command, words, path)
    return error.value.code, capsys.readouterr().err


# What commands decide.

FILES = {
    "empty": b"",
    "binary": b"\x00\x01\xff{\n",
    "list.json": b"[1,2]",
    "open.json": b'{"a": ',
    "quotes.json": b"{'a': 1}",
    "number.json": b"9" * 5000,
    "deep.json": b"[" * 5000,
    "types.json": b'{"version": 1e400, "hosts": 99999999999999999999999, "links": null, "name": NaN}',
    "scalar.yaml": b"7\n",
    "tab.yaml": b"a:\n\t- b\n",
    "alias.yaml": b"a: &a [*a]\n",
    "keys.yaml": b"1: 2\n? [a]\n: 3\n",
    "tag.yaml": b"!!python/name:os.system x\n",
    "date.yaml": b"a: 2020-13-45\n",
    "twice.yaml": b"name: a\nname: b\n",
    "control.yaml": b"a: \x07\n",
}
READ = [
    ("plan", "check", "@"),
    ("plan", "show", CLUSTER, "@"),
    ("plan", "auto", "@", "vgg19"),
    ("switch", "check", "@"),
    ("switch", "generate", "@", "-t", "eos"),
    ("switch", "generate", POLICY, "-t", "sonic", "--running", "@"),
    ("switch", "diff", POLICY, "@", "-t", "sonic"),
    ("switch", "verify", POLICY, "-t", "sonic", "--input", "@"),
    ("switch", "policy", "--layers", "@", "--buffer", "1MB", "--rate", "10gbit", "--ports", "1"),
    ("switch", "apply", POLICY, "leaf.invalid", "-t", "linux", "--inventory", "@"),
    ("switch", "apply", POLICY, "leaf.invalid", "-t", "linux", "--known-hosts", "@"),
    ("testbed", "run", "--topology", "@", "--", "true"),
    ("testbed", "run", "--hosts", "2", "--policy", "@", "--", "true"),
    ("doctor", "--switch", "leaf.invalid", "--policy", "@"),
]


def skip_without_packages(words: Sequence[str]) -> None:
    needed = {"plan": ("highspy", "networkx", "scipy"), "demo": ("torch", "matplotlib", "mlxtend")}
    for module in needed.get(words[0], ("paramiko",) if "--known-hosts" in words else ()):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


@pytest.mark.parametrize("words", READ, ids=" ".join)
def test_files__that_are_wrong_are_named(words: tuple[str, ...], tmp_path: Path) -> None:
    skip_without_packages(words)
    (tmp_path / "folder").mkdir()
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    names = [*FILES, "folder", "missing", "é" * 300]
    cases = [[str(tmp_path / name) if word == "@" else word for word in words] for name in names]
    for name, (status, text) in zip(names, ended(cases, tmp_path), strict=True):
        # A text of any content may be a list of host keys, or of counters, without any.
        assert status in (1, 2), (name, text)
        if name in ("binary", "folder", "missing", "é" * 300):
            assert status == 2, (name, text)
            assert name in text
        assert not LIBRARY.search(without_input(text, str(tmp_path / name))), text
        for line in text.splitlines():
            assert len(line) < 1_500, text


TEXTS = [
    ("@",),
    ("plan", "schema", "@"),
    ("plan", "assign", CLUSTER, "--job", "@"),
    ("plan", "aggregate", CLUSTER, "--method", "@"),
    ("plan", "auto", CLUSTER, "@"),
    ("plan", "topology", "build", "fat-tree", "@"),
    ("plan", "topology", "build", "psnet", "@"),
    ("plan", "topology", "build", "psnet", "3", "--ratio=@"),
    ("perf", "--local", "--size=@", "--rounds", "0"),
    ("perf", "--local", "--loss-bound=@", "--rounds", "0"),
    ("perf", "--local", "--compare=@", "--rounds", "0"),
    ("perf", "--local", "--faults=@", "--rounds", "0"),
    ("serve", "--world-size=@", "--master-addr", "127.0.0.1", "--rendezvous-port", "1", "--connect-timeout", "0.1"),
    ("serve", "--world-size", "1", "--master-addr=@", "--rendezvous-port", "1", "--connect-timeout", "0.1"),
    ("serve", "--world-size", "1", "--master-addr", "127.0.0.1", "--rendezvous-port=@", "--connect-timeout", "0.1"),
    ("serve", "--world-size", "1", "--master-addr", "127.0.0.1", "--rendezvous-port", "1", "--connect-timeout", "0.1",
     "--host=@"),
    ("serve", "--world-size", "1", "--master-addr", "127.0.0.1", "--rendezvous-port", "1", "--connect-timeout", "0.1",
     "--faults=@", "--services", "0"),
    ("switch", "check", POLICY, "-t", "@"),
    ("switch", "generate", POLICY, "-t", "eos", "--ports=@"),
    ("switch", "facts", "@"),
    ("switch", "apply", POLICY, "leaf.invalid", "-t", "@"),
    ("testbed", "run", "--hosts=@", "--", "true"),
    ("testbed", "run", "--hosts", "2", "--leaves=@", "--spines", "0", "--", "true"),
    ("testbed", "status", "--name=@"),
    ("completion", "@"),
]  # fmt: skip


@pytest.mark.parametrize("words", TEXTS, ids=" ".join)
def test_values__that_are_wrong_are_named(words: tuple[str, ...], tmp_path: Path) -> None:
    skip_without_packages(words)
    if words[0] in ("serve", "perf"):
        pytest.importorskip("mlt._core")
    cases = [[word.replace("@", value) for word in words] for value in CHECKED]
    for value, (status, text) in zip(CHECKED, ended(cases, tmp_path), strict=True):
        assert status in (0, 1, 2), (value, text)
        assert not LIBRARY.search(without_input(text, value)), (value, text)
        if status:
            body = [line for line in text.partition("Right form")[0].splitlines() if line.strip()]
            errors = [line for line in body if not line.startswith(("Usage: ", "Try ", " "))]
            assert 1 <= len(errors) <= 2, (value, text)
    assert set(tmp_path.iterdir()) <= {tmp_path / "matplotlib"}


WRITE = [
    (("switch", "generate", POLICY, "-t", "eos", "-o", "@"), "--output"),
    (("plan", "assign", CLUSTER, "-o", "@"), "@"),
    (("plan", "topology", "build", "fat-tree", "4", "-o", "@"), "@"),
    (("doctor", "--json", "@"), "--json"),
    (("perf", "--local", "--size", "1KiB", "--rounds", "1", "--turns", "1", "--json", "@"), "@"),
    (("perf", "--local", "--size", "1KiB", "--rounds", "1", "--turns", "1", "--plot", "@"), "--plot"),
    (("demo", "--steps", "2", "--network", "loopback", "--output", "@"), "--output"),
]


@pytest.mark.parametrize(("words", "named"), WRITE, ids=lambda value: " ".join(value) if value[1:2] else value)
def test_outputs__that_cannot_be_written_are_named(words: tuple[str, ...], named: str, tmp_path: Path) -> None:
    skip_without_packages(words)
    if words[0] == "perf":
        pytest.importorskip("mlt._core")
    file = tmp_path / "file"
    file.write_text("precious")
    (tmp_path / "folder").mkdir()
    # A file where a folder is asked for, below a file, a folder where a file is asked for.
    is_folder = words[:2] == ("switch", "generate") or words[0] == "demo"
    places = [file / "below", file if is_folder else tmp_path / "folder", tmp_path / ("é" * 300)]
    cases = [[str(place) if word == "@" else word for word in words] for place in places]
    for place, (status, text) in zip(places, ended(cases, tmp_path), strict=True):
        assert status in (1, 2), text
        assert (str(place) if named == "@" else named) in text
        assert not LIBRARY.search(without_input(text, str(place))), text
    assert file.read_text() == "precious"
