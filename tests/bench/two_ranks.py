"""Runs a benchmark's program as ranks 0 and 1 of a job on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence


def own_rank() -> int | None:
    """The rank of this process; None in the process that starts the two."""
    text = os.environ.get("RANK")
    return None if text is None else int(text)


def launch(program: str, words: Sequence[str], *, world_size: int = 2) -> None:
    """Run ``program`` with ``words`` twice, with RANK 0 and 1; exits if one fails. Ranks from ``world_size`` on are
    services."""
    # Imported here: a rank may import another build of the package.
    from mlt._shared.ports import free_port

    job = {
        "WORLD_SIZE": str(world_size),
        "MLT_SERVICES": str(2 - world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MLT_RENDEZVOUS_PORT": str(free_port()),
    }
    command = [sys.executable, program, *words]
    with subprocess.Popen(command, env={**os.environ, **job, "RANK": "1"}) as other:
        done = subprocess.run(command, env={**os.environ, **job, "RANK": "0"}, check=False)
        if done.returncode:
            other.kill()
            sys.exit(f"rank 0 ended with {done.returncode}")
    if other.returncode:
        sys.exit(f"rank 1 ended with {other.returncode}")
