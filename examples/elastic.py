"""Elastic training: workers join, leave or die while it runs, and no process is started again (docs/elastic.md).

    mlt launch -n 2 --min-workers 1 python examples/elastic.py

`kill -USR1` to the launcher, whose number it prints, starts another worker; `kill -9` to a worker ends that one.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import mlt
from mlt.elastic import Membership

SIZE = 10_000


def newest(context: mlt.Context, weights: np.ndarray, step: int) -> int:
    """Give all workers the state of the one that has made most steps; its number of steps."""
    if context.world_size == 1:
        return step
    steps = np.empty(context.world_size, np.int64)
    context.all_gather(steps, np.array([step]))
    root = int(steps.argmax())  # the first of them, the same on all workers
    context.broadcast(weights, root=root)
    return int(steps[root])


def gradients_of(weights: np.ndarray, step: int, rank: int) -> np.ndarray:
    """Gradients of the distance to 1, with noise: this worker's part of the work."""
    noise = np.random.default_rng([step, rank]).standard_normal(SIZE, np.float32)
    return weights - 1 + 0.1 * noise


def train(steps: int, seconds_per_step: float) -> None:
    """Average the gradients of the workers that are there."""
    weights, step = np.zeros(SIZE, np.float32), 0
    with Membership() as membership:
        while step < steps:
            context = membership.next_epoch()
            assert context is not None  # of a service only
            try:
                step = newest(context, weights, step)
                print(f"epoch {membership.epoch}: rank {context.rank} of {context.world_size}, step {step}", flush=True)
                while step < steps and not membership.agrees_on_change(context):
                    gradients = gradients_of(weights, step, context.rank)
                    if context.world_size > 1:
                        context.all_reduce(gradients)
                    # Only after the average is complete: a step that fails changes nothing.
                    weights -= 0.1 * gradients
                    step += 1
                    time.sleep(seconds_per_step)
            except (mlt.PeerFailedError, mlt.CancelledError) as error:
                print(f"the epoch ends: {error}", flush=True)
    print(f"done: step {step}, distance {float(np.abs(weights - 1).max()):.4f}, weights {weights.tobytes()[:8].hex()}")


def main() -> None:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seconds-per-step", type=float, default=0.05)
    options = parser.parse_args()
    train(options.steps, options.seconds_per_step)


if __name__ == "__main__":
    main()
