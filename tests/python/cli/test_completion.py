"""Completion in a shell: the words that mlt offers, and the functions of the shells that are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from mlt.cli.completion import VARIABLE, answer, candidates
from mlt.cli.main import COMMANDS
from mlt.cli.root import app


@pytest.mark.parametrize(
    ("before", "last", "expected"),
    [
        ("", "", sorted(COMMANDS)),
        ("", "pe", ["perf"]),
        ("perf", "--st", ["--stop"]),
        ("perf --size 1KiB", "--st", ["--stop"]),
        ("perf --size=1KiB", "--st", ["--stop"]),
        ("perf --stop", "", ["patient", "eager"]),
        ("perf --local --stop", "e", ["eager"]),
        ("perf", "--stop=", ["--stop=patient", "--stop=eager"]),
        ("perf --local", "--stop=e", ["--stop=eager"]),
        ("perf --stop=eager --local", "--stop=p", ["--stop=patient"]),
        ("perf", "--local=", []),
        ("perf", "--nosuch=", []),
        ("demo", "--l", ["--loss", "--loss-bound", "--live"]),
        ("demo", "--no", ["--no-live"]),
        ("perf --datapath", "", ["auto", "udp", "vma", "xdp"]),
        ("perf", "--datapath=u", ["--datapath=udp"]),
        ("perf --compare", "tcp,g", ["tcp,gloo"]),
        ("perf", "--algorithm=ring,h", ["--algorithm=ring,halving"]),
        ("plan aggregate c.yaml", "--reach=", ["--reach=rack", "--reach=module", "--reach=cluster"]),
        ("plan aggregate c.yaml --method", "m", ["m-wcha"]),
        ("plan schema", "", ["cluster", "plan"]),
        ("switch generate policy.yaml -t", "eo", ["eos"]),
        ("switch facts", "jun", ["junos"]),
        ("doctor --switch leaf --target", "eo", ["eos"]),
        ("switch", "ver", ["verify"]),
        ("switch verify policy.yaml --ports", "", []),
        ("switch policy --model", "", ["shared", "split"]),
        ("plan topology build", "", ["fat-tree", "leaf-spine", "psnet"]),
        ("plan topology build psnet 3", "--se", ["--servers", "--seed"]),
        ("testbed run --queue", "", ["ebpf", "red", "fifo"]),
        ("completion", "", ["bash", "zsh", "fish"]),
        ("launch -n 2 -- python", "--", []),
        ("nosuch", "", []),
    ],
)
def test_candidates__of_commands_options_and_words(before: str, last: str, expected: list[str]) -> None:
    found = candidates(get_command(app), before.split(), last)
    assert sorted(word for word, _ in found) == sorted(expected)


def test_candidates__have_their_help() -> None:
    found = dict(candidates(get_command(app), [], "")) | dict(candidates(get_command(app), ["perf"], "-"))
    assert all(found.values())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("perf --stop =", ["patient", "eager"]),
        ("perf --stop = e", ["eager"]),
        ("perf --stop = eager --st", ["--stop"]),
        ("perf --stop=e", ["--stop=eager"]),
        ("perf --datapath = ", ["auto", "udp", "vma", "xdp"]),
        ("switch policy --rate = 1gbit --model = s", ["shared", "split"]),
    ],
)
def test_answer__has_the_words_that_the_shell_replaces(
    words: str, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(get_command(app), words.replace(" ", "\n") + "\n.")
    assert [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()] == expected


def test_program__answers_the_words_in_the_variable() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mlt"], env={**os.environ, VARIABLE: "perf\n--stop\n\n."},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "patient\t\neager\t\n"


SHELLS = {
    "bash": (
        'eval "$(mlt completion bash)"; COMP_WORDS=({words} ""); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1));'
        ' _mlt_complete; printf "%s\\n" "${{COMPREPLY[@]}}"'
    ),
    "fish": "mlt completion fish | source; complete -C '{words} '",
    # Outside its line editor zsh has no completion system: the functions that it calls are stand-ins.
    "zsh": (
        'compdef() {{ : }}; _files() {{ : }}; _describe() {{ print -l ${{found%%:*}} }}; eval "$(mlt completion zsh)";'
        ' words=({words} ""); CURRENT=$#words; _mlt_complete'
    ),
}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("words", "expected"), [("mlt switch policy --model", {"shared", "split"}), ("mlt", set(COMMANDS))]
)
def test_completion__in_a_shell(shell: str, words: str, expected: set[str], tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    program = tmp_path / "mlt"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mlt "$@"\n')
    program.chmod(0o755)
    options = ["-f"] if shell == "zsh" else []
    done = subprocess.run(
        [shell, *options, "-c", SHELLS[shell].format(words=words)],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert {line.partition("\t")[0] for line in done.stdout.splitlines()} == expected, done.stderr


# Types each line and a tab into zsh's line editor, with the completion system as a user starts it.
TYPED = """
zmodload zsh/zpty
zpty -b shell zsh -f -i
ask() { zpty -w shell "$1" }
ask 'PS1=; cd '$PWD'; autoload -Uz compinit; compinit -u -D; setopt no_beep no_list_beep'
ask 'eval "$(mlt completion zsh)"'
ask 'taken() { print -r -- "$BUFFER" >>lines; BUFFER=; touch done.$((++taken)) }'
ask 'zle -N taken; bindkey "^T" taken; bindkey "^I" complete-word; touch ready'
until [[ -e ready ]]; do sleep 0.1; zpty -r -t shell seen 2>/dev/null; done
for line in "$@"; do
    zpty -w -n shell "$line"$'\t'$'\\C-t'
    until [[ -e done.$((++number)) ]]; do sleep 0.1; zpty -r -t shell seen 2>/dev/null; ((number--)); done
done
zpty -d shell
"""


def test_completion__in_the_line_editor_of_zsh(tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("no zsh here")
    program = tmp_path / "mlt"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mlt "$@"\n')
    program.chmod(0o755)
    (tmp_path / "cluster.yaml").touch()
    lines = {
        "mlt switch policy --model sp": "mlt switch policy --model split",
        "mlt perf --stop=pat": "mlt perf --stop=patient",
        "mlt testbed run --pol": "mlt testbed run --policy",
        "mlt testbed run --policy clu": "mlt testbed run --policy cluster.yaml",
        "mlt testbed run --policy=clu": "mlt testbed run --policy=cluster.yaml",
        "mlt testbed run --hosts 2 -- cat clu": "mlt testbed run --hosts 2 -- cat cluster.yaml",
    }
    subprocess.run(
        ["zsh", "-f", "-c", TYPED, "typed", *lines],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TERM": "dumb", "HOME": str(tmp_path)},
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert [line.rstrip() for line in (tmp_path / "lines").read_text().splitlines()] == list(lines.values())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mlt testbed run --policy=clu", "--policy=cluster.yaml"),
        ("mlt testbed run --policy clu", "cluster.yaml"),
        ("mlt testbed run --hosts 2 -- setpri", "setpriv"),
        ("mlt testbed run --hosts 2 -- cat clu", "cluster.yaml"),
    ],
)
def test_completion__in_fish_of_files_and_other_programs(line: str, expected: str, tmp_path: Path) -> None:
    if shutil.which("fish") is None or shutil.which("setpriv") is None:
        pytest.skip("no fish or no setpriv here")
    program = tmp_path / "mlt"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mlt "$@"\n')
    program.chmod(0o755)
    (tmp_path / "cluster.yaml").touch()
    done = subprocess.run(
        ["fish", "-c", f"mlt completion fish | source; complete -C '{line}'"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, cwd=tmp_path,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == [expected], done.stderr


def test_completion__in_bash_of_another_program(tmp_path: Path) -> None:
    if shutil.which("bash") is None or shutil.which("setpriv") is None:
        pytest.skip("no bash or no setpriv here")
    (tmp_path / "mlt").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mlt "$@"\n')
    (tmp_path / "mlt").chmod(0o755)
    text = (
        'eval "$(mlt completion bash)"; COMP_WORDS=(mlt launch -n 2 -- setpri); COMP_CWORD=5; _mlt_complete;'
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", text], env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["setpriv"], done.stderr
