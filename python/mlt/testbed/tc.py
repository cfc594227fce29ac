"""Queueing disciplines through the ``tc`` program, in the syntax that ``mlt switch generate`` writes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from mlt.testbed import namespaces
from mlt.testbed.errors import TestbedError


def batch(path: Path, lines: list[str]) -> None:
    """Run ``lines`` (without the word tc) in a namespace; raises an error that names the failed line."""
    if not lines:
        return
    command = [*namespaces.enter_command(path), "tc", "-batch", "-"]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TestbedError(f"tc in {path.name}: {done.stderr.strip() or 'failed'}\n  of: " + "\n  ".join(lines))


def show(path: Path) -> list[dict[str, Any]]:
    """All qdiscs of a namespace with their counters."""
    return list(json.loads(_output(path, "-s", "-j", "qdisc", "show") or "[]"))


def show_text(path: Path, interface: str) -> str:
    """``tc -s qdisc`` of one interface, as text."""
    return _output(path, "-s", "qdisc", "show", "dev", interface)


def _output(path: Path, *words: str) -> str:
    command = [*namespaces.enter_command(path), "tc", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TestbedError(f"tc in {path.name}: {done.stderr.strip()}")
    return done.stdout
