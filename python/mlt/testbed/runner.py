"""Runs one command on each host of a testbed, once or several times."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from mlt._shared import processes as supervisor
from mlt._shared.first_failure import FailureLog
from mlt._shared.processes import Ending, Outcome, Write, interruptible, to_stdout, uninterrupted
from mlt.testbed.bed import DEFAULT_PORT, Testbed

__all__ = ["Ending", "Outcome", "interruptible", "run", "to_stdout", "uninterrupted"]


def run(
    bed: Testbed,
    command: Sequence[str],
    *,
    grace: float = 5.0,
    port: int = DEFAULT_PORT,
    ranks_per_host: int = 1,
    write: Write = to_stdout,
    failed: Callable[[Ending], object] = lambda ending: None,
    lingering: Callable[[str], object] = lambda text: None,
) -> Outcome:
    """Run ``command`` on every host of ``bed``, ``ranks_per_host`` times, until all have ended, as ``supervisor.run``
    does."""

    def start(rank: int, **options: Any) -> subprocess.Popen[bytes]:
        host, local_rank = bed.hosts[rank // ranks_per_host], rank % ranks_per_host
        env = bed.environment(host, port=port, ranks_per_host=ranks_per_host, local_rank=local_rank)
        # Python buffers output to a pipe in blocks, and would show it late.
        env["PYTHONUNBUFFERED"] = os.environ.get("PYTHONUNBUFFERED", "1")
        env.update(failures.environment)
        process: subprocess.Popen[bytes] = bed.popen(host, command, env=env, **options)
        return process

    names = [
        host if ranks_per_host == 1 else f"{host}.{local_rank}"
        for host in bed.hosts
        for local_rank in range(ranks_per_host)
    ]
    with FailureLog() as failures:
        return supervisor.run(
            names, start, grace=grace, write=write, failed=failed, lingering=lingering, failures=failures
        )
