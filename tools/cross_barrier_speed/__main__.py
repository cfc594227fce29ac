"""Steps per second of BytePS's CrossBarrier and DistributedOptimizer on a testbed, in turns (docs/horovod.md).

    python tools/cross_barrier_speed                      # needs root; four minutes
    python tools/cross_barrier_speed --models vgg --rates 100mbit --turns 1

One worker per host, two hosts.
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
sys.path.insert(0, str(HERE.parent))
from rank_outputs import PIPES, outputs_of  # noqa: E402

KINDS = {"DistributedOptimizer": "plain", "CrossBarrier": "cross"}
BATCHES = {"vgg": 384, "even": 1280}
LIMIT_SECONDS = 120


def command(kind: str, model: str, steps: int) -> list[str]:
    """The command of a worker."""
    return [sys.executable, str(HERE / "train.py"), kind, model, str(BATCHES[model]), str(steps)]


def alone(model: str, steps: int) -> float:
    """The time of a step without a network, in seconds."""
    done = subprocess.run(command("alone", model, steps), check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def on_testbed(kind: str, model: str, rate: str, loss: str, steps: int) -> tuple[float, int]:
    """The mean time of a step in seconds, and the bytes of the gradients."""
    with Testbed(hosts=2, rate=rate, loss=loss) as bed:
        processes = [
            bed.popen(
                host,
                command(kind, model, steps),
                env={"RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"},
                **PIPES,
            )
            for rank, host in enumerate(bed.hosts)
        ]
        results = [json.loads(one.splitlines()[-1]) for one in outputs_of(kind, processes, LIMIT_SECONDS)]
    assert len({one["weights"] for one in results}) == 1, f"the replicas differ: {[one['weights'] for one in results]}"
    return float(results[0]["seconds"]), int(results[0]["bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="vgg,even")
    parser.add_argument("--rates", default="200mbit")
    parser.add_argument("--losses", default="0%")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    chosen = parser.parse_args()
    rows = []
    for model in chosen.models.split(","):
        without = alone(model, chosen.steps)
        for rate in chosen.rates.split(","):
            for loss in chosen.losses.split(","):
                times: dict[str, list[float]] = {name: [] for name in KINDS}
                size = 0
                for turn in range(chosen.turns):
                    for name, kind in KINDS.items():
                        seconds, size = on_testbed(kind, model, rate, loss, chosen.steps)
                        times[name].append(seconds)
                        print(f"{model}, {rate}, {loss}, turn {turn + 1}: {name} {seconds:.3f} s", flush=True)
                plain, cross = (statistics.median(one) for one in times.values())
                spread = " to ".join(
                    f"{one / plain:.2f}" for one in (min(times["CrossBarrier"]), max(times["CrossBarrier"]))
                )
                rows.append(
                    f"| {model} | {size / 2**20:.1f} MiB | {rate} | {loss} | {without:.2f} s | {plain:.2f} s | "
                    f"{cross:.2f} s ({spread} of the other) |"
                )
    print("\n| model | gradients | rate | loss | a step without a network | DistributedOptimizer | CrossBarrier |")
    print("|---|---|---|---|---|---|---|\n" + "\n".join(rows))


if __name__ == "__main__":
    main()
