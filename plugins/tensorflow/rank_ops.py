"""Ranks and sizes as tensors, for graphs, where they are constants of the tracing; Python objects, with the arguments
of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlt.tensorflow.placement import check_session

import tensorflow as tf
from mlt._named import basics, job, objects
from mlt._named.process_sets import ProcessSet, global_process_set


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Number of ranks of a process set, int32."""
    return tf.constant(len(job.ranks_of(process_set_id)), tf.int32, name=name)


def rank_op(name: str | None = None) -> tf.Tensor:
    """``rank()``, int32."""
    return tf.constant(basics.rank(), tf.int32, name=name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """``local_size()``, int32."""
    return tf.constant(basics.local_size(), tf.int32, name=name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """``local_rank()``, int32."""
    return tf.constant(basics.local_rank(), tf.int32, name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 if this rank is in the process set, else 0, int32."""
    return tf.constant(int(basics.rank() in job.ranks_of(process_set_id)), tf.int32, name=name)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """A function that returns the object of ``root_rank``. ``session``: None only, as in TensorFlow 2."""
    check_session("broadcast_object_fn", session)
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object of ``root_rank``, pickled on its way. ``session``: None only, as in TensorFlow 2."""
    check_session("broadcast_object", session)
    return objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """The objects of all ranks, in order, pickled on their way. ``session``: None only, as in TensorFlow 2."""
    check_session("allgather_object", session)
    return objects.allgather_object(obj, name, process_set)
