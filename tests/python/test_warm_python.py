"""Processes that tests fork from a server: each has its own arguments, environment, output and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm_python

MODULES = ("decimal",)


def start(tmp_path: Path, program: str, *arguments: str, **environment: str) -> warm_python.WarmProcess:
    file = tmp_path / "program.py"
    file.write_text(program)
    return warm_python.start(MODULES, [str(file), *arguments], {"PATH": os.environ["PATH"], **environment})


def test_start__is_a_process_of_its_own_with_the_modules(tmp_path: Path) -> None:
    program = """
import atexit, os, sys
print(__name__, "decimal" in sys.modules, sys.argv[1:], sorted(os.environ), os.getpid(), sys.path[0], flush=True)
print("errors too", file=sys.stderr, flush=True)
atexit.register(print, "at its end")
"""
    processes = [start(tmp_path, program, str(number), OWN=str(number)) for number in range(2)]
    for number, process in enumerate(processes):
        output, _ = process.communicate(timeout=30)
        expected = f"__main__ True ['{number}'] ['OWN', 'PATH'] {process.pid} {tmp_path}"
        assert output.splitlines() == [expected, "errors too", "at its end"]
        assert process.returncode == process.poll() == 0
    assert processes[0].pid != processes[1].pid


@pytest.mark.parametrize(
    ("end", "status"), [("sys.exit(3)", 3), ("1 / 0", 1), ("os.kill(os.getpid(), 9)", -signal.SIGKILL)]
)
def test_start__tells_how_it_ended(end: str, status: int, tmp_path: Path) -> None:
    process = start(tmp_path, f"import os, sys\n{end}")
    output, _ = process.communicate(timeout=30)
    assert process.returncode == status
    assert ("ZeroDivisionError" in output) == (status == 1)


def test_start__runs_a_text_and_keeps_its_errors_apart() -> None:
    program = "import sys\nprint(__name__, sys.argv)\nprint('errors', file=sys.stderr)"
    process = warm_python.start(MODULES, ["-c", program, "one"], dict(os.environ), errors_apart=True)
    assert process.communicate(timeout=30) == ("__main__ ['-c', 'one']\n", "errors\n")
    assert process.returncode == 0


def test_kill__ends_one_and_what_it_printed_is_kept(tmp_path: Path) -> None:
    # In one write: a program that is killed between two has printed only the first. print would write the newline by
    # itself where the interpreter does not buffer (PYTHONUNBUFFERED).
    program = "import os, signal\nos.write(1, b'ready\\nmore\\n')\nsignal.pause()"
    killed, other = start(tmp_path, program), start(tmp_path, program)
    assert killed.stdout.readline() == other.stdout.readline() == "ready\n"
    with pytest.raises(subprocess.TimeoutExpired):
        killed.wait(timeout=0)
    killed.kill()
    assert killed.communicate(timeout=30) == ("more\n", "")
    assert killed.returncode == -signal.SIGKILL
    assert other.poll() is None
    other.send_signal(signal.SIGTERM)
    assert other.wait(timeout=30) == -signal.SIGTERM
    killed.kill()  # no effect: its process number may be another's


def test_server__ends_with_the_tests(tmp_path: Path) -> None:
    tests = f"""
import sys
sys.path[:0] = [{str(Path(warm_python.__file__).parent)!r}]
import warm_python
process = warm_python.start(("decimal",), [{str(tmp_path / "parent.py")!r}], {{}})
print(process.communicate(timeout=30)[0].strip())
"""
    (tmp_path / "parent.py").write_text("import os\nprint(os.getppid())")
    done = subprocess.run([sys.executable, "-c", tests], capture_output=True, text=True, timeout=60, check=True)
    assert not Path(f"/proc/{int(done.stdout)}").exists()
