"""Asynchronous training, which BYTEPS_ENABLE_ASYNC=1 asks for: no worker waits for another's step.

A step applies the optimizer to this worker's own gradients, adds the change of the weights to a sum that the workers
hold among themselves, and continues with the sum as of then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mlt.mxnet.arrays import check_dense, dtype_of

import mxnet as mx
from mlt._named.shared_sum import SharedParameters


class SharedWeights:
    """The weights of all workers; by which of them a step updates."""

    def __init__(self) -> None:
        self._parameters: dict[tuple[str, ...], SharedParameters] = {}

    def update(
        self, weights: Sequence[mx.nd.NDArray], names: Sequence[str], optimizer: Any, update: Callable[[], None]
    ) -> None:
        """Call ``update``, which changes ``weights``, and give them the steps of all workers.

        The first step waits for that of all workers, and raises RejectedError on all if their weights differ. Raises
        ValueError for weights in float16 of which the optimizer keeps a copy in float32, TypeError for sparse ones,
        EndedError if a worker is gone.
        """
        for weight, name in zip(weights, names, strict=True):
            check_dense(weight, f"the weight {name}")
            if optimizer.multi_precision and dtype_of(weight) == "float16":
                raise ValueError(
                    f"the weight {name} is float16 and the optimizer has multi_precision=True: asynchronous training "
                    "(BYTEPS_ENABLE_ASYNC=1) does not reach its copy in float32; leave multi_precision out"
                )
        before = [weight.asnumpy() for weight in weights]
        update()
        after = [weight.asnumpy() for weight in weights]
        shared = self._parameters.setdefault(tuple(names), SharedParameters())
        for weight, value in zip(weights, shared.exchange(before, after, names), strict=True):
            weight[:] = mx.nd.array(np.ascontiguousarray(value), dtype=value.dtype)
