"""Push-pull in place: an array becomes the average or sum over all workers; and the declaration of its name."""

from __future__ import annotations

from typing import Any

from mlt.mxnet.collectives import allreduce_

import mxnet as mx
from mlt._named.byteps import check_name, declare, send_order
from mlt._named.reduce_ops import Average, Sum


def byteps_push_pull(
    tensor: mx.nd.NDArray, version: int = 0, priority: int = 0, name: str | None = None, is_average: bool = True
) -> None:
    """Replace an array by the average or sum over all workers, and wait for it. ``version`` is not used.

    ``name``: the same on all workers; None: the order of calls counts. Of arrays that are ready at the same time (from
    several threads), the highest ``priority`` is first, then the one that was declared first. Averages of integers are
    truncated toward zero. Raises HorovodInternalError if the workers disagree or the job has ended, TypeError for
    sparse arrays and element types that cannot be sent.

    >>> array = mx.nd.array([2.0, 4.0])
    >>> bps.byteps_push_pull(array, name="gradient_0")
    >>> array.asnumpy().tolist()  # of one worker
    [2.0, 4.0]
    """
    order = send_order(name, priority)
    allreduce_(tensor, name=name, priority=order, op=Average if is_average else Sum)


def byteps_declare_tensor(name: str, **kwargs: Any) -> None:
    """Count a name among the declared tensors, whose order is that of sending. Not required.

    Raises ValueError for ``kwargs``, with which BytePS compresses the tensor.
    """
    if kwargs:
        raise ValueError(
            f"byteps_declare_tensor({name!r}): mlt has none of BytePS's compressors ({', '.join(sorted(kwargs))}): "
            "leave them out. Half the bytes: DistributedTrainer(compression_params={'fp16': True}); less by loss: "
            "mlt.mxnet.DistributedTrainer(loss_bound=0.1)"
        )
    declare(check_name(name))
