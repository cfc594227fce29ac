"""Steps per second of TensorFlow on a testbed, over gRPC and over mlt, in turns; what a step costs without a network.

    make tensorflow-speed                  # needs root; prints the table of docs/tensorflow.md
    python tools/tensorflow_speed --workers 2 --losses 1% --turns 1 --steps 20

One worker per host. Kinds: tf.distribute.MultiWorkerMirroredStrategy with its ring over gRPC, whose connections use
cubic, as nearly everywhere; mlt's DistributedGradientTape, exact, and with a loss bound of 10 %.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from mlt.testbed import Testbed

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from training_speed import Framework  # noqa: E402

KINDS = {"gRPC": "mwms", "mlt": "mlt", "mlt, bound 10 %": "0.1"}
TENSORFLOW = Framework(HERE, ".venv-tensorflow", KINDS, limit_seconds=240)
PORT = 23_456


def on_testbed(kind: str, rate: str, loss: str, workers: int, width: int, steps: int) -> float:
    """The median step in seconds."""
    with Testbed(hosts=workers, rate=rate, loss=loss) as bed:
        bed.set_tcp_control("cubic")
        addresses = [f"{bed.address(host)}:{PORT}" for host in bed.hosts]
        processes = []
        for rank, host in enumerate(bed.hosts):
            place = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
            env = {
                "RANK": str(rank),
                "WORLD_SIZE": str(workers),
                "OMP_NUM_THREADS": "1",
                **({"TF_CONFIG": json.dumps(place)} if kind == "mwms" else {}),
            }
            command = TENSORFLOW.command(kind, width, steps)
            processes.append(
                bed.popen(host, command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
        return TENSORFLOW.median_step(kind, loss, processes)


if __name__ == "__main__":
    TENSORFLOW.main(on_testbed, __doc__, steps=40)
