"""The networks that torch_speed and torch_accuracy train, on images of 28 x 28 pixels or on plain vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from mlt.demo.model import SmallResNet

CLASSES = 10
IMAGE = (1, 28, 28)
VECTOR = (32,)


@dataclass(frozen=True)
class Model:
    """``make`` builds it; ``inputs`` is the shape of one sample, ``batch`` the samples of a worker's step."""

    make: Callable[[], nn.Sequential | SmallResNet]
    inputs: tuple[int, ...]
    batch: int

    def samples(self) -> torch.Tensor:
        """A random batch."""
        return torch.randn(self.batch, *self.inputs)


def vgg() -> nn.Sequential:
    """In the pattern of VGG: a few convolutions, and most parameters in wide linear layers behind them (1.2 MiB)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 192), nn.ReLU(), nn.Linear(192, CLASSES),
    )  # fmt: skip


def resnet() -> SmallResNet:
    """The demo's ResNet, twice as wide: as many parameters as ``vgg``, and many times the computation."""
    return SmallResNet(classes=CLASSES, widths=(32, 64, 128))


def perceptron(width: int) -> nn.Sequential:
    """Two hidden layers of this width."""
    return nn.Sequential(
        nn.Linear(VECTOR[0], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
    )


# small, large: 1.1 and 7.8 MiB of gradients, and hardly any computation.
MODELS = {
    "vgg": Model(vgg, IMAGE, 8),
    "resnet": Model(resnet, IMAGE, 8),
    "small": Model(lambda: perceptron(512), VECTOR, 8),
    "large": Model(lambda: perceptron(1_408), VECTOR, 8),
}
