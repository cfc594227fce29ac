"""A command that a signal ends: at any moment, imports included, with one status and at most one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from checks import until

from mlt._shared.processes import interruptible
from mlt.cli.ending import interrupted

ROOT = Path(__file__).resolve().parents[3]
POLICY = str(ROOT / "examples" / "switch" / "paper-testbed.yaml")
CLUSTER = str(ROOT / "examples" / "planners" / "testbed.yaml")
SERVE = ("serve", "--world-size", "1", "--master-addr", "127.0.0.1", "--rendezvous-port", "25997")
# A program that sends itself a signal when it is about to import a module.
PROGRAM = """
import os, sys
class Sender:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            print("sent", flush=True)
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Sender)
from mlt.cli.main import main
main()
"""
MOMENTS = [
    ((), "mlt.cli.ending"),
    ((), "textwrap"),
    (("-h",), "typer"),
    (("-h",), "mlt.cli.style"),
    (("nosuch",), "mlt.cli.root"),
    (("doctor",), "click"),
    (("doctor",), "mlt.diagnosis.doctor"),
    (("perf", "--local"), "rich.console"),
    (("perf", "--local"), "mlt.cli.perf"),
    (("plan", "check", CLUSTER), "mlt.cli.plan_file"),
    (("switch", "check", POLICY), "yaml"),
    (("testbed", "schema"), "pydantic"),
    (SERVE, "numpy"),
    (SERVE, "mlt.context"),
    (("completion", "bash"), "mlt.cli.completion"),
]


@pytest.mark.parametrize(("words", "module"), MOMENTS, ids=lambda value: str(value).rpartition("/")[2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_mlt__interrupted_while_it_imports_ends_without_a_traceback(
    words: tuple[str, ...], module: str, number: signal.Signals
) -> None:
    program = PROGRAM.format(module=module, number=int(number))
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "sent\n"
    assert done.returncode in (128 + number, -number)  # a shell shows one for both
    assert len(done.stderr.splitlines()) <= 1, done.stderr


def modules_of(*words: str) -> set[str]:
    command = [sys.executable, "-X", "importtime", "-m", "mlt", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


def test_mlt__imports_only_what_it_shows() -> None:
    alone, helped = modules_of(), modules_of("-h")
    assert not alone & {"typer", "click", "rich", "typing", "subprocess", "json", "numpy"}
    assert "typer" in helped
    assert not helped & {"numpy", "yaml", "pydantic", "mlt._core"}
    if "typer._click" in helped:  # older releases of typer import click and rich themselves
        assert not helped & {"click", "rich"}
    assert not {one for one in helped if one.startswith(("mlt.perf", "mlt.planners", "mlt.testbed"))}


def test_mlt__a_caller_that_ignores_ctrl_c_is_obeyed() -> None:
    code = "import signal, sys; from mlt.cli.main import main; signal.signal(2, signal.SIG_IGN)\ntry: main()\nfinally: "
    code += "print(signal.getsignal(2) is signal.SIG_IGN)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.endswith("True\n"), done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interruptible__keeps_the_number_of_the_signal(number: signal.Signals) -> None:
    def wait() -> None:
        with interruptible():
            os.kill(os.getpid(), number)
            until(lambda: False, seconds=5)

    with pytest.raises(KeyboardInterrupt) as error:
        wait()
    assert interrupted(error.value) == 128 + number
    assert interrupted(KeyboardInterrupt()) == 130
