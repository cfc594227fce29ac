"""Variables of one rank for all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mlt.tensorflow.collectives import broadcast_tensors

import tensorflow as tf
from mlt._named.process_sets import ProcessSet, global_process_set


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
    *,
    name: str | None = None,
) -> None:
    """Replace variables, of TensorFlow or Keras, by those of ``root_rank``, as one operation.

    All ranks give the same variables in the same order. ``inplace`` makes no difference: the variables are always those
    that were given. ``name``: of the operation. Raises HorovodInternalError if shapes or element types differ between
    ranks; then no variable was changed.

    >>> weights = tf.Variable([1.0, 2.0])
    >>> hvd.broadcast_variables([weights], root_rank=0)
    """
    own: Sequence[Any] = list(variables)
    if not own:
        return
    values = broadcast_tensors([tf.convert_to_tensor(one) for one in own], root_rank, name, process_set)
    for variable, value in zip(own, values, strict=True):
        variable.assign(value)


def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """``broadcast_variables`` that returns the variables."""
    own = list(variables)
    broadcast_variables(own, root_rank, process_set, name=name)
    return own


def broadcast_global_variables(root_rank: int) -> Any:
    """The operation that replaces all variables of a graph of TensorFlow 1 by those of ``root_rank``.

    Raises RuntimeError in eager execution, in which TensorFlow knows no global variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables() works in graphs of TensorFlow 1 only: in eager execution write "
            "broadcast_variables(model.variables, root_rank), and the same for the optimizer's variables"
        )
    own = tf.compat.v1.global_variables()
    values = broadcast_tensors([tf.convert_to_tensor(one) for one in own], root_rank, None, global_process_set)
    return tf.group(*[variable.assign(value) for variable, value in zip(own, values, strict=True)])
