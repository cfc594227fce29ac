"""Jobs of ``mlt launch``, and how a program in one kills a summation service of it."""

from __future__ import annotations

import os
import subprocess
import sys


def launch(*words: str, seconds: float = 60, **variables: str) -> subprocess.CompletedProcess[str]:
    """``mlt launch WORDS``, to its end."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("MLT_")}
    command = [sys.executable, "-m", "mlt.cli.main", "launch", *words]
    return subprocess.run(
        command, env={**own, **variables}, capture_output=True, text=True, timeout=seconds, check=False
    )


# For the start of a program: ``kill_service()``, or ``kill_service(strike)`` with that of ``checks`` to stop it.
KILL_SERVICE = """
import os, signal
from pathlib import Path

def kill_service(kill=lambda pid: os.kill(pid, signal.SIGKILL)):
    for place in Path("/proc").iterdir():
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getppid() and b"serve" in (place / "cmdline").read_bytes().split(bytes(1)):
                return kill(int(place.name))
        except (OSError, ValueError):
            pass
"""
