"""Shared by the tests of ``mlt.switch_push``: a small policy, and the command as a person types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from mlt.switch_configs.policy import Policy, parse

ROOT = Path(__file__).resolve().parents[3]
USER = "admin"
SECRET = "correct-horse-7391"
_TEXT = """
switch: {{queues: 8, shared_buffer_bytes: 4194304, link_rate_bits_per_second: 20000000, ports: [2]}}
control: {{dscp: 48}}
data:
  - {{name: front, dscp: 46, wred: {{min_threshold_bytes: {s1}}}, limit_bytes: 147456}}
  - {{name: back, dscp: 10, wred: {{min_threshold_bytes: 73728}}, limit_bytes: 294912}}
rounding_tolerance_percent: 10
"""


def text(s1: str = "36864") -> str:
    return _TEXT.format(s1=s1)


def small(s1: str = "36864") -> Policy:
    return parse(text(s1))


def policy_file(folder: Path, accept: str) -> Path:
    """The small policy in a file, with what it accepts of a target."""
    file = folder / "policy.yaml"
    file.write_text(text() + f"accept: {{{accept}}}\n", encoding="utf-8")
    return file


def inventory(folder: Path, port: int, **options: str | bool) -> Path:
    """An inventory file with ``leaf1`` at ``port`` of loopback; ``options`` are its driver's."""
    file = folder / "hosts.yaml"
    host = {"hostname": "127.0.0.1", "port": port, "username": USER, "password": SECRET, "optional_args": options}
    file.write_text(json.dumps({"leaf1": host}), encoding="utf-8")
    return file


def mlt(*words: str | Path, timeout: float = 60, **environ: str) -> subprocess.CompletedProcess[str]:
    """``mlt switch WORDS`` in a process of its own."""
    return run_mlt("switch", *words, timeout=timeout, **environ)


def run_mlt(*words: str | Path, timeout: float = 60, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mlt.cli.main", *map(str, words)]
    full = {**os.environ, **environ}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=full, stdin=subprocess.DEVNULL, check=False
    )
