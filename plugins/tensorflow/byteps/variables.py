"""Variables of one worker for all, in eager execution, in ``tf.function`` and in graphs of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlt.tensorflow.byteps.push_pull import name_of
from mlt.tensorflow.collectives import broadcast_tensors
from mlt.tensorflow.placement import check_devices
from mlt.tensorflow.variables import broadcast_global_variables

import tensorflow as tf


def broadcast_variables(variables: Iterable[Any], root_rank: int, scope: str = "") -> Any:
    """Replace variables, of TensorFlow or Keras, by those of ``root_rank``, as one operation.

    All workers give the same variables in the same order. ``scope`` begins the operation's name. In a graph, returns
    the operation that does it, else None. Raises HorovodInternalError if shapes or element types differ between
    workers; then no variable was changed.
    """
    own = list(variables)
    if not own:
        return tf.group()
    values = broadcast_tensors([tf.convert_to_tensor(one) for one in own], root_rank, name_of("broadcast", scope))
    return tf.group(*[variable.assign(value) for variable, value in zip(own, values, strict=True)])


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives all workers the variables of ``root_rank`` when a session of TensorFlow 1 begins.

    Raises ValueError for a ``device`` other than the CPU.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        check_devices(device=device)
        self.root_rank = root_rank
        self.bcast_op: Any = None

    def begin(self) -> None:
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self.bcast_op)
