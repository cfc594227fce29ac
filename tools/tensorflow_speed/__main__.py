"""Steps per second of TensorFlow on a testbed, over gRPC and over mlt, in turns; what a step costs without a network.

    make tensorflow-speed                  # needs root; prints the table of docs/tensorflow.md
    python tools/tensorflow_speed --workers 2 --losses 1% --turns 1 --steps 20

One worker per host. Kinds: tf.distribute.MultiWorkerMirroredStrategy with its ring over gRPC, whose connections use
cubic, as nearly everywhere; mlt's DistributedGradientTape, exact, and with a loss bound of 10 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from mlt.testbed import Testbed

HERE = Path(__file__).resolve().parent
PYTHON = HERE.parents[1] / ".venv-tensorflow" / "bin" / "python"
KINDS = {"gRPC": "mwms", "mlt": "mlt", "mlt, bound 10 %": "0.1"}
LIMIT_SECONDS = 240
PORT = 23_456


def median_of(outputs: list[str]) -> float:
    """Rank 0's median step in seconds; all ranks must have the same sum of the weights."""
    told = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert len({one["sum"] for one in told}) == 1, f"the replicas differ: {[one['sum'] for one in told]}"
    return statistics.median(told[0]["seconds"])


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
            command = [str(PYTHON), str(HERE / "train.py"), kind, str(width), str(steps)]
            processes.append(
                bed.popen(host, command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
        outputs = [process.communicate(timeout=LIMIT_SECONDS) for process in processes]
    for rank, (process, (_, problems)) in enumerate(zip(processes, outputs, strict=True)):
        if process.returncode != 0:
            raise SystemExit(f"{kind}, {loss} loss: rank {rank} ended with {process.returncode}\n{problems[-3000:]}")
    return median_of([printed for printed, _ in outputs])


def alone(kind: str, width: int, steps: int) -> float:
    """The median step of one process in seconds."""
    command = [str(PYTHON), str(HERE / "train.py"), kind, str(width), str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True)
    return median_of([done.stdout])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--losses", default="0%,1%")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512, help="of the hidden layers; 512: 1.1 MiB of gradients")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    chosen = parser.parse_args()
    if not PYTHON.exists():
        sys.exit("tensorflow_speed: .venv-tensorflow is missing: make .venv-tensorflow/.wheel")
    costs: dict[str, list[float]] = {"alone": [], "mlt": []}
    for _ in range(chosen.turns):
        for kind, times in costs.items():
            times.append(alone(kind, chosen.width, 10 * chosen.steps) * 1e3)
    plain, ours = (statistics.median(times) for times in costs.values())
    print(f"one process: {plain:.2f} ms per step, with mlt's exchange of one rank {ours:.2f} ms", flush=True)
    rows = []
    for loss in chosen.losses.split(","):
        medians: dict[str, list[float]] = {name: [] for name in KINDS}
        for turn in range(chosen.turns):
            for name, kind in KINDS.items():
                seconds = on_testbed(kind, chosen.rate, loss, chosen.workers, chosen.width, chosen.steps)
                medians[name].append(seconds)
                print(f"{loss} loss, turn {turn + 1}: {name} {1 / seconds:.1f} steps/s", flush=True)
        speeds = {name: 1 / statistics.median(times) for name, times in medians.items()}
        cells = [f"{speed:.1f} ({speed / speeds['gRPC']:.2f} x)" for speed in speeds.values()]
        rows.append(f"| {chosen.rate} | {loss} | {chosen.workers} | {' | '.join(cells)} |")
    print(f"\n| rate | loss | workers | {' | '.join(KINDS)} |\n|---|---|---|{'---|' * len(KINDS)}")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
