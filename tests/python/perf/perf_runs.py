"""``mlt perf`` as a user starts it, and what it may leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import warm_commands

PERF = [sys.executable, "-m", "mlt.cli.main", "perf"]
AGENT = "mlt.perf.agent"


def clean_environment(**more: str) -> dict[str, str]:
    """Without what would make the command a rank of a job."""
    jobs = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MLT_INTERFACE", "MLT_PERF_PORT")
    return {name: value for name, value in os.environ.items() if name not in jobs} | more


def perf(*words: str, timeout: float = 100, **environment: str) -> subprocess.CompletedProcess[str]:
    """``mlt perf WORDS``, to its end."""
    return warm_commands.run(("perf", *words), clean_environment(**environment), timeout=timeout)


@contextlib.contextmanager
def running(*words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """``mlt perf WORDS`` in the background; killed at the end if it still runs."""
    process = subprocess.Popen(
        [*PERF, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(**environment),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def agents(socket_folder: str = "") -> dict[int, str]:
    """Processes of this host that are agents of a run: number -> command line."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if AGENT in words and socket_folder in "".join(words):
                found[int(entry.name)] = words[-2]
    return found


def agents_of(parent: int) -> dict[int, dict[str, Any]]:
    """Agents that ``parent`` started: number -> job."""
    found = {}
    for number, job in agents().items():
        with contextlib.suppress(OSError, ValueError):
            fields = Path(f"/proc/{number}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found[number] = json.loads(job)
    return found
