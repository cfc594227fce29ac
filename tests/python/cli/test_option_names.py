"""An error that a command finds itself names the option that it is about, and shows its right form."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checks import assert_names
from command_tree import all_commands
from typer.main import get_command

from mlt.cli import style
from mlt.cli.completion import words_of
from mlt.cli.help_text import choices_of, form, option_names, takes_value, value_name
from mlt.cli.root import app

ROOT = Path(__file__).resolve().parents[3]
CLUSTER = str(ROOT / "examples" / "planners" / "testbed.yaml")
POLICY = str(ROOT / "examples" / "switch" / "paper-testbed.yaml")
LAYERS = str(ROOT / "examples" / "switch" / "vgg16.layers.json")
DERIVE = ("switch", "policy", "--buffer", "16MB", "--rate", "10gbit")
SERVE = ("serve", "--world-size", "2")
SERVE_AT = (*SERVE, "--master-addr", "127.0.0.1", "--rendezvous-port", "1")

# A command line, then what its error line names: the option first.
CASES: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("perf", "--local", "--faults", "loss=1"), ("--faults", "loss=1", "drop")),
    (("perf", "--local", "--faults", "drop=2"), ("--faults", "drop=2")),
    (("perf", "--local", "--compare", "nosuch"), ("--compare", "nosuch")),
    (("perf", "--local", "--loss-bound", "1"), ("--loss-bound", "'1'", "below 1", "100%", "1%", "0.01")),
    (("perf", "--local", "--loss-bound", "100%"), ("--loss-bound", "100%")),
    (("perf", "--local", "--json", "missing/out.json"), ("--json", "missing/out.json", "No such file or directory")),
    (("perf", "127.0.0.1:x"), ("HOST: '127.0.0.1:x'",)),
    (("doctor", "[::1]:99999"), ("HOST: '[::1]:99999'", "[fd00::2]:29600")),
    (("demo", "--loss-bound", "150%"), ("--loss-bound is 150%", "below 100%")),
    (("demo", "--timeout", "0"), ("--timeout is 0;",)),
    (("perf", "--local", "--timeout", "0"), ("--timeout 0: expected more than 0 s",)),
    (("launch", "-n", "x", "true"), ("--workers 'x': expected an integer from 1 to 65535",)),
    (("plan", "topology", "build", "leaf-spine", "2", "2"), ("HOSTS_PER_LEAF is missing",)),
    (("plan", "show", CLUSTER, CLUSTER), (f"{CLUSTER}:1: this is a cluster file; a plan was expected",)),
    (("demo", "--loss-bound", "1"), ("--loss-bound", "below 1", "100%", "1%", "0.01")),
    (("demo", "--steps", "0"), ("--steps", "0", "at least")),
    (("demo", "--workers", "-1"), ("--workers", "-1", "at least")),
    (("demo", "--seed", "-1"), ("--seed", "-1", "at least")),
    (("launch", "-n", "100000", "true"), ("--workers", "100000", "65535")),
    (("launch", "-s", "65535", "true"), ("--services", "65535", "65534")),
    ((*SERVE_AT, "--services", "99999999"), ("--services (MLT_SERVICES) is 99999999", "65535")),
    (("testbed", "run", "--topology", "missing.yaml", "--", "true"), ("--topology missing.yaml", "cannot be read")),
    (("testbed", "run", "--hosts", "2", "--policy", "missing.yaml", "--", "true"), ("--policy", "missing.yaml")),
    (("testbed", "run", "--hosts", "0", "--", "true"), ("--hosts", "'0'", "from 1 to 64")),
    (("testbed", "up", "--hosts", "2", "--leaves", "9"), ("--spines", "9 leaves")),
    (("doctor", "127.0.0.1", "--policy", "missing.yaml"), ("--policy", "missing.yaml", "cannot be read")),
    (("doctor", "--switch", "leaf.invalid", "--policy", POLICY, "--target", "nosuch"), ("--target", "nosuch", "eos")),
    (("plan", "aggregate", CLUSTER, "--method", "nosuch"), ("--method", "nosuch", "greedy")),
    (("plan", "auto", CLUSTER, "vgg19", "--layers", "missing"), ("--layers", "missing", "cannot be read")),
    (("plan", "assign", CLUSTER, "--job", "nosuch"), ("--job", "nosuch", "vgg19")),
    (("plan", "check", "plan.json", "--against", "missing.yaml"), ("--against missing.yaml",)),
    (("plan", "aggregate", CLUSTER, "--seed", "-1"), ("--seed", "'-1'")),
    (("plan", "topology", "build", "fat-tree", "4", "--hosts-per-edge", "0"), ("--hosts-per-edge", "'0'")),
    (("plan", "topology", "build", "psnet", "2", "--ratio", "0"), ("--ratio", "'0'")),
    (("switch", "check", POLICY, "--target", "nosuch"), ("--target", "nosuch", "eos")),
    (("switch", "check", POLICY, "--ports", "1,"), ("--ports 1,", "port ''")),
    (("switch", "generate", POLICY, "-t", "sonic", "--running", "missing"), ("--running missing", "cannot be read")),
    (("switch", "apply", POLICY, "leaf.invalid", "-t", "linux", "--inventory", "missing"), ("--inventory missing",)),
    (("switch", "apply", POLICY, "leaf.invalid", "-t", "nosuch"), ("--target", "nosuch", "eos")),
    (("switch", "verify", POLICY, "-t", "eos", "--input", "missing"), ("--input missing", "cannot be read")),
    (("switch", "verify", POLICY, "-t", "eos", "--input", "/dev/null"), ("--input /dev/null", "no queue counters")),
    ((*DERIVE, "--layers", "missing", "--ports", "1"), ("--layers missing", "cannot be read")),
    ((*DERIVE, "--layers", LAYERS, "--ports", ","), ("--ports ,",)),
    ((*DERIVE, "--layers", LAYERS, "--ports", "1", "--small-ratio", "5"), ("--small-ratio 5.0",)),
    (("switch", "check", POLICY, "--ports", "1-99999999"), ("--ports 1-99999999", "1,024 ports")),
    (("switch", "check", POLICY, "--ports", "\u0663"), ("--ports \u0663", "letters, digits")),
    (("perf", "localhost:5", "--port", "6"), ("--port", "'localhost:5'")),
    (("doctor", "localhost:5", "--port", "6"), ("--port", "'localhost:5'")),
    (("perf", "--local", "--json", "a.png", "--plot", "a.png"), ("--json", "a.png", "replace")),
    (("perf", "--local", "--segment-bytes", "1GB"), ("--segment-bytes 1000000000", "8,960")),
    (("perf", "--local", "--datapath", "xdp"), ("--datapath xdp", "loopback")),
    (("perf", "--local", "--datapath", "nosuch"), ("--datapath", "nosuch", "udp")),
    (("perf", "--local", "--size", "64KiB,,1MiB"), ("--size 64KiB,,1MiB", "empty")),
    (("perf", "--local", "--timeout", "9e99"), ("--timeout", "9e99", "9000000000 s")),
    (("serve", "--world-size", "0"), ("--world-size (WORLD_SIZE)",)),
    (("serve",), ("--world-size", "WORLD_SIZE is not set")),
    ((*SERVE, "--rendezvous-port", "1"), ("--master-addr", "MASTER_ADDR is not set")),
    ((*SERVE, "--master-addr", "127.0.0.1"), ("--rendezvous-port", "MLT_RENDEZVOUS_PORT")),
    ((*SERVE_AT, "--faults", "loss=1"), ("--faults", "loss=1", "drop")),
    ((*SERVE_AT, "--connect-timeout", "0"), ("--connect-timeout", "above 0")),
    ((*SERVE_AT, "--interface", "nosuch9"), ("--interface", "nosuch9")),
    ((*SERVE_AT, "--host", "nosuch"), ("--host", "nosuch")),
    ((*SERVE_AT, "--index", "5"), ("--index 5", "1 service")),
]


@pytest.fixture(autouse=True)
def _in_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in os.environ if one.startswith(("MLT_", "MASTER_")) or one in ("RANK", "WORLD_SIZE")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)


def error_of(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """The error line, and all of standard error."""
    with pytest.raises(SystemExit) as ended:
        style.run(get_command(app), list(words), "mlt")
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, ""), err
    lines = [line for line in err.partition("Right form")[0].splitlines() if not line.startswith(("Usage: ", "Try "))]
    (line,) = filter(None, lines)
    assert line.startswith("error: ")
    return line, err


@pytest.mark.parametrize(("words", "named"), CASES, ids=lambda value: " ".join(value).replace(str(ROOT), ""))
def test_error__names_its_option_and_shows_the_right_form(
    words: tuple[str, ...], named: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] == "plan":
        pytest.importorskip("highspy")
        (tmp_path / "plan.json").write_text("{}")
    if words[0] in ("serve", "perf"):
        pytest.importorskip("mlt._core")
    if words[0] == "demo":
        pytest.importorskip("torch")
        pytest.importorskip("matplotlib")
    line, err = error_of(words, capsys)
    for one in named:
        assert one in line
    if named[0].startswith("--"):
        forms = err.partition("Right form:")[2]
        assert f"{named[0].split()[0]} " in forms, err


def test_error__a_file_s_field_is_no_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.yaml").write_text("hosts: 2\nrate: fast\n", encoding="utf-8")
    line, err = error_of(("testbed", "run", "--topology", "t.yaml", "--", "true"), capsys)
    assert line.startswith("error: t.yaml:2: rate: expected a rate")
    assert "Right form" not in err


def test_choices__of_every_option_a_near_miss_names_the_right_word(capsys: pytest.CaptureFixture[str]) -> None:
    asked = set()
    for command, ctx in all_commands():
        for param in command.get_params(ctx):
            choices = choices_of(param)
            if param.param_type_name != "option" or len(choices) < 2:
                continue
            option = max(param.opts, key=len)
            for word in (choices[0], choices[-1]):
                line, _ = error_of((*ctx.obj.split(), option, f"{word}q"), capsys)
                assert line.endswith(f" Did you mean {word!r}?"), line
            asked.add((ctx.obj, option))
    assert {("doctor", "--framework"), ("perf", "--datapath"), ("testbed run", "--queue")} <= asked
    assert {("plan aggregate", "--method"), ("plan aggregate", "--reach")} <= asked


def test_choices__are_shown_by_the_help_or_by_the_command_that_it_names() -> None:
    found = 0
    for command, ctx in all_commands():
        for param in command.get_params(ctx):
            words = [*choices_of(param), *words_of(ctx.command_path, param)]
            shown = set(re.findall(r"[\w-]+", " ".join(form(param))))
            if words and "'mlt switch targets' lists" not in form(param)[1]:
                assert set(words) <= shown, (ctx.command_path, param.name)
            found += bool(words)
    assert found >= 15


def test_choices__no_option_takes_just_text() -> None:
    options = [(path, param) for _, path, param, _ in options_of_all() if takes_value(param)]
    shown = [(path, param.name) for path, param in options if value_name(param) == "TEXT"]
    assert shown == [], "metavar= says what the option takes, an Enum or click.Choice which words"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("perf", "--local", "--compare", "glo"), "gloo"),
        (("perf", "--local", "--pattern", "allreduce", "--algorithm", "halvin"), "halving"),
        (("switch", "check", POLICY, "--target", "soni"), "sonic"),
        (("switch", "generate", POLICY, "--target", "linus"), "linux"),
        (("plan", "auto", CLUSTER, "vg19"), "vgg19"),
    ],
)
def test_choices__that_are_text_suggest_too(
    words: tuple[str, ...], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line, _ = error_of(words, capsys)
    assert line.endswith(f"did you mean {meant!r}?"), line


def test_group__a_wrong_command_names_the_nearest_one_only(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = error_of(("lanch",), capsys)
    assert "launch" in err.partition("Right form")[2]
    assert "plan" not in err.partition("Right form")[2]


def test_command__an_option_like_none_suggests_none(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = error_of(("--foo",), capsys)
    assert_names(
        " ".join(err.split()), "No such option: --foo", "Right form: mlt [OPTIONS] COMMAND [ARGS]... options: mlt -h"
    )
    _, err = error_of(("perf", "--policy", "x"), capsys)
    assert "--pin" not in err
    _, err = error_of(("perf", "--patern", "x"), capsys)
    assert "--pattern p2p|incast" in err


def options_of_all() -> Iterator[tuple[Any, str, Any, str]]:
    """(command, its path, an option, one of its names)"""
    for command, ctx in all_commands():
        for param in command.params:
            if param.param_type_name == "option" and not param.hidden:
                for name in (*param.opts, *param.secondary_opts):
                    yield command, ctx.command_path, param, name


def test_options__short_with_two_dashes_and_long_with_one_show_the_right_form(
    capsys: pytest.CaptureFixture[str],
) -> None:
    checked = 0
    for command, path, param, name in options_of_all():
        wrong = name[1:] if name.startswith("--") else f"-{name}"
        if len(wrong) == 2:
            continue
        for words in ([wrong, "1"], [f"{wrong}=1"]):
            with pytest.raises(SystemExit) as ended:
                style.run(command, words, path)
            out, err = capsys.readouterr()
            assert (ended.value.code, out) == (2, ""), (path, words, err)
            line = next(one for one in err.splitlines() if one.startswith("error: "))
            assert_names(line, "No such option", wrong, name)
            shown = " ".join(option_names(param).split())
            assert f"Right form: {shown}" in " ".join(err.split()), (path, words, err)
            checked += 1
    assert checked > 250


def test_options__a_value_or_a_programs_word_with_one_dash_stays(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        style.run(get_command(app), ["launch", "-n", "1", "no-such-program-of-anybody", "-workers"], "mlt")
    assert "program not found" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        style.run(get_command(app), ["perf", "--interface", "-local", "--local", "--rounds", "0"], "mlt")
    assert "--rounds 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("testbed", "status", "--json", "--watch"), "--json needs a value before --watch"),
        (("doctor", "--json", "--fix"), "if --fix is the value, write --json=--fix"),
        (("perf", "--local", "--json", "--plot", "x.png"), "--json needs a value before --plot"),
        (("plan", "assign", "c.yaml", "-o", "--seed"), "if --seed is the value, write --output=--seed"),
        (("launch", "-n", "-n", "2", "true"), "-n needs a value before -n; if -n is the value, write --workers=-n"),
        (("demo", "--output", "--"), "--output needs a value before --"),
    ],
)
def test_option__is_not_the_value_of_the_one_before_it(
    words: tuple[str, ...],
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    line, _ = error_of(words, capsys)
    assert text in line
    assert not list(tmp_path.iterdir())


def test_every_option_that_takes_a_value_refuses_the_next_option(capsys: pytest.CaptureFixture[str]) -> None:
    checked = 0
    for command, path, param, name in options_of_all():
        if not takes_value(param):
            continue
        with pytest.raises(SystemExit) as ended:
            style.run(command, [name, "--help"], path)
        out, err = capsys.readouterr()
        assert (ended.value.code, out) == (2, ""), (path, name, err)
        assert f"{name} needs a value before --help" in " ".join(err.split()), (path, name, err)
        checked += 1
    assert checked > 150


def test_error__leaves_out_what_only_a_program_can_pass(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line, _ = error_of(("doctor", "--job"), capsys)
    assert "RANK and WORLD_SIZE are not set" in line
    assert "pass" not in line
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "x")
    line, _ = error_of(("doctor", "--job"), capsys)
    assert "RANK is 'x'" in line
