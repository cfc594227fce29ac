"""The training script that ``tools/horovod_speed`` times: one worker, whose place its environment says.

    train.py FRAMEWORK BOUND STEPS      FRAMEWORK: torch or mxnet; BOUND "none": Horovod, a number: mlt

Only the import and the loss bound differ. The last line of its output is JSON: the times of the steps after the first
ones in seconds, and a digest of the weights.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # mxnet_models.py

WARM_UP = 5
MODULES = {"torch": ("horovod.torch", "mlt.torch.horovod"), "mxnet": ("horovod.mxnet", "mlt.mxnet")}
Training = tuple[Callable[[], None], Callable[[], bytes]]
"""A step, and the weights."""


def of_torch(hvd: Any, options: dict[str, Any]) -> Training:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    # That of torch_models.py, which needs mlt.
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 192), nn.ReLU(), nn.Linear(192, 10),
    )  # fmt: skip
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    sgd = torch.optim.SGD(network.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=network.named_parameters(), **options)
    torch.manual_seed(1 + hvd.rank())

    def step() -> None:
        batch = torch.randn(8, 1, 28, 28)
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()

    return step, lambda: b"".join(one.detach().numpy().tobytes() for one in network.parameters())


def of_mxnet(hvd: Any, options: dict[str, Any]) -> Training:
    import mxnet as mx
    from mxnet import autograd
    from mxnet_models import dense

    width, count = 512, 8
    net = dense(width)
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.01}, **options)
    own = np.random.default_rng(1 + hvd.rank())

    def step() -> None:
        inputs = mx.nd.array(own.standard_normal((count, 32), np.float32))
        with autograd.record():
            loss = (net(inputs) ** 2).mean(axis=1)
        loss.backward()
        trainer.step(count)
        mx.nd.waitall()

    return step, lambda: b"".join(one.data().asnumpy().tobytes() for one in net.collect_params().values())


FRAMEWORKS = {"torch": of_torch, "mxnet": of_mxnet}


def main(framework: str, bound: str, steps: int) -> None:
    is_mlt = bound != "none"
    hvd = importlib.import_module(MODULES[framework][is_mlt])
    hvd.init()
    step, weights = FRAMEWORKS[framework](hvd, {"loss_bound": float(bound)} if is_mlt else {})
    seconds = []
    for _ in range(WARM_UP + steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": seconds[WARM_UP:], "weights": hashlib.sha256(weights()).hexdigest()}), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
