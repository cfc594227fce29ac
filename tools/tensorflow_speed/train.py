"""The training script that ``tools/tensorflow_speed`` times: one worker of a loop of its own, as its environment says.

    train.py KIND WIDTH STEPS      KIND: mwms (TF_CONFIG), mlt, the loss bound of mlt as a number, or alone

Only the average of the gradients differs between kinds. (``model.fit`` of Keras 3.15 does not run under
MultiWorkerMirroredStrategy.) The last line of its output is JSON: the times of the steps after the first ones in
seconds, and the gradients' bytes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

WARM_UP = 5
BATCH = 8
Gradients = Callable[[Any, Any, list[Any]], list[Any]]


def of_tape(tape: Any, loss: Any, variables: list[Any]) -> list[Any]:
    found: list[Any] = tape.gradient(loss, variables)
    return found


def over_grpc(tape: Any, loss: Any, variables: list[Any]) -> list[Any]:
    context = tf.distribute.get_replica_context()
    averages: list[Any] = context.all_reduce(tf.distribute.ReduceOp.MEAN, tape.gradient(loss, variables))
    return averages


def main(kind: str, width: int, steps: int) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    run: Callable[[Callable[..., Any]], Any] = lambda step: step()  # noqa: E731
    gradients: Gradients = of_tape
    if kind == "mwms":
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        run, gradients = strategy.run, over_grpc
    elif kind != "alone":
        import mlt.tensorflow as hvd

        hvd.init()
        state = hvd.BoundedLossState(0.0 if kind == "mlt" else float(kind))

        def over_mlt(tape: Any, loss: Any, variables: list[Any]) -> list[Any]:
            return of_tape(hvd.DistributedGradientTape(tape, loss_bound=state), loss, variables)

        gradients = over_mlt
    values = np.random.default_rng(0)
    shapes = [(32, width), (width,), (width, width), (width,), (width, 10), (10,)]
    weights = [tf.Variable(0.05 * values.standard_normal(shape, np.float32)) for shape in shapes]
    inputs = tf.Variable(tf.zeros([BATCH, 32]))

    @tf.function
    def step() -> None:
        def replica() -> None:
            with tf.GradientTape() as tape:
                hidden = inputs
                for i in (0, 2, 4):
                    hidden = tf.matmul(hidden, weights[i]) + weights[i + 1]
                    hidden = tf.nn.relu(hidden) if i < 4 else hidden
                loss = tf.reduce_mean(hidden * hidden)
            for one, gradient in zip(weights, gradients(tape, loss, weights), strict=True):
                one.assign_sub(0.01 * gradient)

        run(replica)

    seconds = []
    own = np.random.default_rng(1 + int(os.environ.get("RANK", "0")))
    for _ in range(WARM_UP + steps):
        inputs.assign(own.standard_normal((BATCH, 32), np.float32))
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    print(
        json.dumps(
            {
                "seconds": seconds[WARM_UP:],
                "bytes": 4 * sum(int(np.prod(shape)) for shape in shapes),
                "weights": float(sum(np.float64(one.numpy()).sum() for one in weights)),
            }
        ),
        flush=True,
    )
    if kind not in ("alone", "mwms"):
        hvd.shutdown()
    time.sleep(2.0)  # the servers of tf.distribute report a worker that leaves before the others have ended
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
