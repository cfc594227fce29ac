"""The training script that ``tools/mxnet_speed`` times: one worker, whose place its environment says.

    train.py KIND WIDTH STEPS      KIND: the name of a KVStore, mlt, the loss bound of mlt as a number, or alone

Only the trainer differs between kinds. The last line of its output is JSON: the times of the steps after the first ones
in seconds, and a digest of the weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from mxnet_models import dense

WARM_UP = 5
BATCH = 8


def main(kind: str, width: int, steps: int) -> None:
    hvd: Any = None
    if kind not in ("alone", "dist_sync"):
        import mlt.mxnet as hvd

        hvd.init()
    net = dense(width)
    sgd = {"learning_rate": 0.01}
    batch, workers = BATCH, int(os.environ.get("WORLD_SIZE", "1"))
    trainer: Any
    if kind == "alone":
        trainer = gluon.Trainer(net.collect_params(), "sgd", sgd, kvstore=None)
    elif kind.startswith("dist"):
        trainer = gluon.Trainer(net.collect_params(), "sgd", sgd, kvstore=kind)
        batch *= workers  # it sums
    else:
        bound = 0.0 if kind == "mlt" else float(kind)
        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", sgd, loss_bound=bound)
    seconds = []
    own = np.random.default_rng(1 + int(os.environ.get("RANK", "0")))
    for _ in range(WARM_UP + steps):
        inputs = mx.nd.array(own.standard_normal((BATCH, 32), np.float32))
        mx.nd.waitall()
        start = time.perf_counter()
        with autograd.record():
            loss = (net(inputs) ** 2).mean(axis=1)
        loss.backward()
        trainer.step(batch)
        mx.nd.waitall()
        seconds.append(time.perf_counter() - start)
    weights = b"".join(param.data().asnumpy().tobytes() for param in net.collect_params().values())
    told = {"seconds": seconds[WARM_UP:], "weights": hashlib.sha256(weights).hexdigest()}
    print(json.dumps(told), flush=True)
    if hvd is not None:
        hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
