"""``DistributedGradientTape``: a ``tf.GradientTape`` whose gradients are averaged over all ranks."""

from __future__ import annotations

from typing import Any

from mlt.tensorflow.compression import Compression, Compressor
from mlt.tensorflow.exchange import GradientExchange, is_variable
from mlt.tensorflow.placement import check_devices

import tensorflow as tf
from mlt._named.gradients import BoundedLossState, loss_state
from mlt._named.groups import chosen_groups
from mlt._named.process_sets import ProcessSet, global_process_set
from mlt._named.reduce_ops import Average, ReduceOp


class _Distributed(tf.GradientTape):
    """The part of a distributed tape that stands before the class of the user's tape."""

    _exchange: GradientExchange

    def register_local_source(self, source: Any) -> None:
        """Leave the gradient of a variable to this rank: it is not averaged (``scale_local_gradients`` divides it)."""
        self._exchange.local.add(id(source))

    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """The gradients of ``target``, averaged over all ranks, in the structure of ``sources``."""
        gradients = super().gradient(target, sources, *args, **kwargs)
        flat = tf.nest.flatten(gradients, expand_composites=False)
        variables = tf.nest.flatten(sources, expand_composites=False)
        return tf.nest.pack_sequence_as(gradients, self._exchange(flat, variables), expand_composites=False)


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    loss_bound: float | str | BoundedLossState | None = None,
) -> Any:
    """A tape that continues ``gradtape``, and whose ``gradient`` averages over all ranks; an instance of its class too.

    ``loss_bound``: max fraction of the gradients that may be lost in each hop, or a ``BoundedLossState`` that outlives
    the tape: it has schedules and statistics. ``groups``: as of ``DistributedOptimizer``. Raises ValueError for a
    schedule without a state, groups that are none, and a ``device_dense`` or ``device_sparse`` other than the CPU.

    >>> weights = tf.Variable([3.0])
    >>> with tf.GradientTape() as tape:
    ...     loss = weights * weights
    >>> hvd.DistributedGradientTape(tape).gradient(loss, [weights])[0].numpy().tolist()  # of one rank
    [6.0]
    """
    check_devices(device_dense=device_dense, device_sparse=device_sparse)
    if callable(loss_bound):
        raise ValueError(
            "DistributedGradientTape(loss_bound=) is a schedule, whose steps a tape cannot count: make "
            "state = BoundedLossState(schedule) once, and give loss_bound=state"
        )
    kind = type(gradtape)
    made: Any = object.__new__(type(kind.__name__, (_Distributed, kind), {"__doc__": kind.__doc__}))
    made.__dict__.update(gradtape.__dict__)
    made._exchange = GradientExchange(
        "gradient_tape",
        op=op,
        compression=compression,
        gradient_predivide_factor=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense,
        groups=chosen_groups(groups, num_groups, is_variable, "tf.Variable"),
        process_set=process_set,
        state=loss_state(loss_bound),
        scale_local_gradients=scale_local_gradients,
    )
    return made
