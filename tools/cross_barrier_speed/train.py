"""The training script that ``tools/cross_barrier_speed`` times: one worker of BytePS's API for PyTorch.

    train.py KIND MODEL BATCH STEPS      KIND: plain (DistributedOptimizer), cross (CrossBarrier) or alone (no network)

The last line of its output is JSON: the mean time of a step after the first ones in seconds, the gradients' bytes, and
a sum of the weights.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

WARM_UP = 3


def vgg() -> nn.Sequential:
    """In the pattern of VGG: the front computes, and the parameters are in a linear layer behind it (12.4 MiB)."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 1024), nn.ReLU(), nn.Linear(1024, 10),
    )  # fmt: skip


def even() -> nn.Sequential:
    """Eight layers of the same size (18.9 MB of gradients)."""
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(768, 768), nn.ReLU()]
    return nn.Sequential(*layers)


MODELS: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...]]] = {
    "vgg": (vgg, (1, 28, 28)),
    "even": (even, (768,)),
}


def main(kind: str, name: str, batch: int, steps: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    rank = 0
    if kind != "alone":
        import mlt.torch.byteps.cross_barrier as bps

        bps.init()
        rank = bps.rank()
        wrap = bps.CrossBarrier if kind == "cross" else DistributedOptimizer
        optimizer = wrap(model, optimizer, model.named_parameters())
    torch.manual_seed(1 + rank)
    start = 0.0
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            start = time.perf_counter()
        optimizer.zero_grad()
        model(torch.randn(batch, *shape)).square().mean().backward()
        optimizer.step()
    if kind != "alone":
        optimizer.synchronize()
    seconds = (time.perf_counter() - start) / steps
    weights = sum(parameter.double().sum().item() for parameter in model.parameters())
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    if kind != "alone":
        bps.shutdown()
    print(json.dumps({"seconds": seconds, "bytes": size, "weights": weights}), flush=True)


def DistributedOptimizer(model: nn.Module, *args: Any) -> Any:
    """BytePS's, with the arguments of CrossBarrier."""
    from mlt.torch.byteps import DistributedOptimizer

    return DistributedOptimizer(*args)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
