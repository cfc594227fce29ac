"""The network that the speed tools train with MXNet; needs MXNet only, so that Horovod's environment can import it."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet import gluon


def dense(width: int) -> Any:
    """Three dense layers over 32 inputs, hybridized, with the same weights in every process."""
    mx.random.seed(1)
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Dense(width, activation="relu", in_units=32),
        gluon.nn.Dense(width, activation="relu", in_units=width),
        gluon.nn.Dense(10, in_units=width),
    )
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net
