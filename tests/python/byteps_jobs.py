"""Runs a script as the workers of a job of BytePS: with the variables that its launcher sets, and none of mlt's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rank_jobs import outputs_of

from mlt._shared.ports import free_port_pair

_OTHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MLT_RENDEZVOUS_PORT")


def run(script: Path, arguments: Sequence[str] = (), *, workers: int = 2, limit_seconds: float) -> list[str]:
    """The lines of each worker; fails if one does not end with status 0."""
    environment = {name: value for name, value in os.environ.items() if name not in _OTHERS}
    environment.update(
        OMP_NUM_THREADS="1",
        DMLC_ROLE="worker",
        DMLC_NUM_WORKER=str(workers),
        DMLC_NUM_SERVER="1",
        DMLC_PS_ROOT_URI="127.0.0.1",
        DMLC_PS_ROOT_PORT=str(free_port_pair()),
        BYTEPS_LOCAL_RANK="0",
        BYTEPS_LOCAL_SIZE="1",
    )
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env={**environment, "DMLC_WORKER_ID": str(worker)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for worker in range(workers)
    ]
    return outputs_of(processes, limit_seconds)
