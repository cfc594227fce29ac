"""The network of the demo: a small ResNet for 28 x 28 grey images.

Convolutions, batch normalisation and residual blocks in three stages, the pattern of "Deep Residual Learning for Image
Recognition" (He et al., CVPR 2016, section 4.2, the CIFAR variant), one block per stage so that an epoch takes seconds.
"""

from __future__ import annotations

import torch
from torch import nn

STAGE_WIDTHS = (16, 32, 64)


def _conv3x3(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, and a shortcut around them (1x1 convolution where the shape changes).

    Maps (batch, inputs, height, width) to (batch, outputs, height / stride, width / stride).
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs, 1)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return torch.relu(y + self.shortcut(x))


class SmallResNet(nn.Module):
    """Stem, one residual block per stage, global average pooling, linear classifier.

    Maps (batch, 1, 28, 28) float32 to logits (batch, classes).
    """

    def __init__(self, *, classes: int = 10, widths: tuple[int, ...] = STAGE_WIDTHS) -> None:
        super().__init__()
        self.stem = _conv3x3(1, widths[0], 1)
        self.norm = nn.BatchNorm2d(widths[0])
        blocks: list[nn.Module] = []
        inputs = widths[0]
        for stage, width in enumerate(widths):
            blocks.append(ResidualBlock(inputs, width, stride=1 if stage == 0 else 2))
            inputs = width
        self.stages = nn.Sequential(*blocks)
        self.classifier = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.stem(x)))
        y = self.stages(y)
        y = y.mean(dim=(2, 3))
        logits: torch.Tensor = self.classifier(y)
        return logits
