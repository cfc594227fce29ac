"""tools/install_wheel.py: the lines that ``make wheel`` shows while it compiles, and those of a failed build."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from checks import assert_names, until
from loading import load

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tools" / "install_wheel.py"
install_wheel = load(PROGRAM)

# The output of pip and scikit-build-core, abridged; pip indents the backend's lines.
BUILD = """\
Processing /home/me/mlt
  Running command Preparing metadata (pyproject.toml)
  Preparing metadata (pyproject.toml): started
  *** scikit-build-core 0.11.6 using CMake 4.1.0 (metadata_wheel)
  Preparing metadata (pyproject.toml): finished with status 'done'
  *** Configuring CMake...
  -- The CXX compiler identification is GNU 12.2.0
      [1/2] /usr/bin/c++ -o testCXXCompiler.cxx.o -c testCXXCompiler.cxx
  *** Building project with Ninja...
{steps}
  *** Making wheel...
Installing collected packages: mlt
Successfully installed mlt-0.1.0
"""


def build_output(steps: int) -> str:
    return BUILD.format(
        steps="\n".join(f"  [{one}/{steps}] Building CXX object f{one}.o" for one in range(1, steps + 1))
    )


def test_progress__a_line_per_stage_and_per_tenth() -> None:
    now = iter(range(10_000))
    progress = install_wheel.Progress(clock=lambda: float(next(now)))
    shown = [text for line in build_output(137).splitlines() if (text := progress.shown(line)) is not None]
    stages = [re.sub(r" \(\d+ s\)$", "", text) for text in shown]
    assert [text for text in stages if ":" not in text] == list(install_wheel.STAGES.values())
    counts = [int(text.split()[1]) for text in stages if ":" in text]
    assert counts == [14, 28, 42, 55, 69, 83, 96, 110, 124, 137]


def test_progress__latest_is_the_last_step_or_stage() -> None:
    progress = install_wheel.Progress()
    lines = build_output(137).splitlines()
    for line in lines[: next(number for number, line in enumerate(lines) if "[131/137]" in line) + 1]:
        progress.shown(line)
    assert progress.latest == "compiles: 131 of 137 steps"
    for line in lines:
        progress.shown(line)
    assert progress.latest == "installs the wheel"


def test_pulse__reports_what_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with install_wheel.Pulse(lambda: "compiles: 3 of 9 steps", quiet_seconds=0.01) as pulse:
        pulse.report("compiles")
        shown = ""

        def has_reported() -> bool:
            nonlocal shown
            shown += capsys.readouterr().out
            return "still" in shown

        until(has_reported)
    assert re.search(r"^mlt: compiles$", shown, re.MULTILINE)
    assert re.search(r"^mlt: still compiles: 3 of 9 steps \(\d+ s\)$", shown, re.MULTILINE)


def test_pulse__on_a_terminal_has_lines_of_its_own_beside_a_progress_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with install_wheel.Pulse(lambda: "installs") as pulse:
        print("  3.1/9.0 MB ----", end="")
        pulse.report("still installs")
    assert capsys.readouterr().out == "  3.1/9.0 MB ----\r\x1b[Kmlt: still installs\n"


def test_pulse__a_command_keeps_its_output_and_status() -> None:
    command = [sys.executable, str(ROOT / "tools" / "pulse.py"), "sleeps", sys.executable, "-c"]
    done = subprocess.run([*command, "print('x'); raise SystemExit(3)"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "x\n")


def test_install__shows_progress_while_it_builds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "output"
    output.write_text(build_output(3), encoding="utf-8")
    log = tmp_path / "build" / "wheel.log"
    assert install_wheel.install([sys.executable, "-c", f"print(open({str(output)!r}).read(), end='')"], log) == 0
    assert log.read_text(encoding="utf-8") == output.read_text(encoding="utf-8")
    shown = capsys.readouterr().out
    assert_names(shown.splitlines()[0], "takes minutes", log)
    assert_names(shown, "compiles: 1 of 3", "compiles: 3 of 3", "installs the wheel")


def test_install__a_failure_shows_the_first_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = (
        "print('  [1/9] Building CXX object a.o'); print('  FAILED: b.o'); print('  b.cc:3: error: no such thing');"
        "[print('more') for _ in range(200)]; raise SystemExit(3)"
    )
    log = tmp_path / "wheel.log"
    assert install_wheel.install([sys.executable, "-c", program], log) == 3
    errors = capsys.readouterr().err
    assert_names(errors, "FAILED: b.o", "b.cc:3: error", "exit status 3", log)
    assert "[1/9]" not in errors
    assert len(errors.splitlines()) == install_wheel.CAUSE_LINES + 1
    assert len(log.read_text(encoding="utf-8").splitlines()) == 203


def test_cause__without_a_known_error_is_the_end() -> None:
    lines = [f"line {number}" for number in range(100)]
    assert install_wheel.cause(lines) == lines[-install_wheel.CAUSE_LINES :]
    assert install_wheel.cause(lines[:3]) == lines[:3]


def test_makefile__builds_the_wheel_with_it() -> None:
    make = ["make", "-n", "-B", "wheel"]
    rules = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert "tools/install_wheel.py" in rules.stdout
