"""Steps per second of MXNet on a testbed, over its own dist_sync and over mlt, in turns; a step without a network.

    make mxnet-speed                  # needs root; prints the table of docs/results/mxnet.md
    python tools/mxnet_speed --workers 2 --losses 1% --turns 1 --steps 20

One worker per host. Kinds: Gluon's trainer with the KVStore dist_sync, MXNet's parameter server over TCP with cubic,
one server beside each worker, large arrays split over all servers; the same with mlt's KVStore; mlt's
DistributedTrainer, exact, and with a loss bound of 10 %.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from mlt.testbed import Testbed

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from training_speed import Framework  # noqa: E402

KINDS = {"dist_sync": "dist_sync", "mlt, KVStore": "dist_sync_mlt", "mlt": "mlt", "mlt, bound 10 %": "0.1"}
MXNET = Framework(HERE, ".venv-mxnet", KINDS, limit_seconds=120)
PORT = 23_457


def on_testbed(kind: str, rate: str, loss: str, workers: int, width: int, steps: int) -> float:
    """The median step in seconds."""
    with Testbed(hosts=workers, rate=rate, loss=loss) as bed:
        bed.set_tcp_control("cubic")
        helpers: list[subprocess.Popen[Any]] = []
        processes = []
        common = {"OMP_NUM_THREADS": "1", "MXNET_CPU_WORKER_NTHREADS": "1"}
        if kind == "dist_sync":
            common |= {
                "DMLC_PS_ROOT_URI": str(bed.address(bed.hosts[0])),
                "DMLC_PS_ROOT_PORT": str(PORT),
                "DMLC_NUM_WORKER": str(workers),
                "DMLC_NUM_SERVER": str(workers),
                "MXNET_KVSTORE_BIGARRAY_BOUND": "10000",
            }
        try:
            for rank, host in enumerate(bed.hosts):
                env = {**common, "RANK": str(rank), "WORLD_SIZE": str(workers)}
                if kind == "dist_sync":
                    env["DMLC_NODE_HOST"] = str(bed.address(host))
                    roles = ("scheduler", "server") if rank == 0 else ("server",)
                    helpers += [
                        bed.popen(host, [str(MXNET.python), "-c", "import mxnet"], env={**env, "DMLC_ROLE": role})
                        for role in roles
                    ]
                    env["DMLC_ROLE"] = "worker"
                command = MXNET.command(kind, width, steps)
                processes.append(
                    bed.popen(host, command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                )
            return MXNET.median_step(kind, loss, processes)
        finally:
            for one in helpers:
                one.kill()
                one.wait()


if __name__ == "__main__":
    MXNET.main(on_testbed, __doc__, steps=30)
