"""Steps per second of MXNet on a testbed, over its own dist_sync and over mlt, in turns; a step without a network.

    make mxnet-speed                  # needs root; prints the table of docs/results/mxnet.md
    python tools/mxnet_speed --workers 2 --losses 1% --turns 1 --steps 20

One worker per host. Kinds: Gluon's trainer with the KVStore dist_sync, MXNet's parameter server over TCP with cubic,
one server beside each worker, large arrays split over all servers; the same with mlt's KVStore; mlt's
DistributedTrainer, exact, and with a loss bound of 10 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from mlt.testbed import Testbed

HERE = Path(__file__).resolve().parent
PYTHON = HERE.parents[1] / ".venv-mxnet" / "bin" / "python"
KINDS = {"dist_sync": "dist_sync", "mlt, KVStore": "dist_sync_mlt", "mlt": "mlt", "mlt, bound 10 %": "0.1"}
LIMIT_SECONDS = 120
PORT = 23_457


def median_of(outputs: list[str]) -> float:
    """Rank 0's median step in seconds; all ranks must have the same weights."""
    told = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert len({one["weights"] for one in told}) == 1, "the replicas differ"
    return statistics.median(told[0]["seconds"])


def on_testbed(kind: str, rate: str, loss: str, workers: int, width: int, steps: int) -> float:
    """The median step in seconds."""
    train = [str(PYTHON), str(HERE / "train.py"), kind, str(width), str(steps)]
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
                        bed.popen(host, [str(PYTHON), "-c", "import mxnet"], env={**env, "DMLC_ROLE": role})
                        for role in roles
                    ]
                    env["DMLC_ROLE"] = "worker"
                processes.append(
                    bed.popen(host, train, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                )
            outputs = [process.communicate(timeout=LIMIT_SECONDS) for process in processes]
        finally:
            for one in helpers:
                one.kill()
                one.wait()
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
    parser.add_argument("--steps", type=int, default=30)
    chosen = parser.parse_args()
    if not PYTHON.exists():
        sys.exit("mxnet_speed: .venv-mxnet is missing: make .venv-mxnet/.wheel")
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
        cells = [f"{speed:.1f} ({speed / speeds['dist_sync']:.2f} x)" for speed in speeds.values()]
        rows.append(f"| {chosen.rate} | {loss} | {chosen.workers} | {' | '.join(cells)} |")
    print(f"\n| rate | loss | workers | {' | '.join(KINDS)} |\n|---|---|---|{'---|' * len(KINDS)}")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
