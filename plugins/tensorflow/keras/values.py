"""Collectives on values: they take what numpy takes, and return numpy's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from mlt.tensorflow import collectives
from mlt.tensorflow.compression import Compression, Compressor

from mlt._named.reduce_ops import Average, ReduceOp


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: type[Compressor] = Compression.none,
) -> Any:
    """The reduction of a value over all ranks; by default their average."""
    return np.asarray(
        collectives.allreduce(
            value,
            average,
            compression=compression,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            name=name,
        )
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """All ranks' values, concatenated along the first dimension."""
    return np.asarray(collectives.allgather(value, name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value of ``root_rank``."""
    return np.asarray(collectives.broadcast(value, root_rank, name))


def reducescatter(value: Any, name: str | None = None, op: ReduceOp = Average) -> Any:
    """This rank's rows of the reduction of a value."""
    return np.asarray(collectives.reducescatter(value, op=op, name=name))
