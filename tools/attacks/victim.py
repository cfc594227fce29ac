"""The attacked job: all-reduces with known results, timed one by one, until rank 0 finds the stop file.

Runs on every rank (RANK, WORLD_SIZE, MASTER_ADDR and the secret from the environment):

    python tools/attacks/victim.py --stop FILE --out FILE [--bytes 262144] [--gap 0.002]

Rank 0 writes one JSON document to --out: ``steps`` as [began, seconds] on CLOCK_MONOTONIC, ``counters`` as
[time, {name: value}] every quarter of a second, and ``wrong``, the number of steps with a wrong result.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

import mlt


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stop", type=Path, required=True, help="file whose existence ends the job")
    parser.add_argument("--out", type=Path, required=True, help="JSON file that rank 0 writes")
    parser.add_argument("--bytes", type=int, default=262_144, help="tensor size (default: %(default)s)")
    parser.add_argument(
        "--gap", type=float, default=0.002, help="seconds of sleep after a step, as computing would take"
    )
    options = parser.parse_args()
    steps: list[tuple[float, float]] = []
    counters: list[tuple[float, dict[str, int]]] = []
    wrong = 0
    with mlt.Context(connect_timeout=30) as context:
        tensor = np.zeros(options.bytes // 4, np.float32)
        size = context.world_size
        print("up", flush=True)
        step, done = 0, False
        while not done:
            step += 1
            tensor.fill(context.rank + step % 100)
            # Rank 0's tensor carries the stop signal, so that all ranks leave after the same step.
            tensor[0] = 1.0 if context.rank == 0 and options.stop.exists() else 0.0
            began = time.monotonic()
            context.all_reduce(tensor, op=mlt.Reduction.SUM)
            seconds = time.monotonic() - began
            expected = size * (size - 1) / 2 + size * (step % 100)
            if not (tensor[1:] == expected).all() or tensor[0] not in (0.0, 1.0):
                wrong += 1
            done = bool(tensor[0] == 1.0)
            steps.append((began, seconds))
            if context.rank == 0 and (not counters or began - counters[-1][0] > 0.25 or done):
                counters.append((began, dict(context.counters())))
            time.sleep(options.gap)
        if context.rank == 0:
            options.out.write_text(json.dumps({"steps": steps, "counters": counters, "wrong": wrong}))


if __name__ == "__main__":
    main()
