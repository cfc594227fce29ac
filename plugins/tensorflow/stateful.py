"""Calls of Python functions over arrays: at once, or as one stateful operation of a graph.

The operations of one function's graph run in the order in which they were made, on every rank: each waits for other
ranks, and if two waited in different orders on two ranks, TensorFlow could run out of threads. Those of a graph of
TensorFlow 1 are not ordered: its sessions run a part of it, and an order would drag in the rest.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from mlt.tensorflow.arrays import Array, array_of, name_of, tensor_of

import tensorflow as tf
from mlt._named.waiting import lent_thread

_ORDER: Final = "mlt_operations"
_failure: list[Exception] = []

Function = Callable[..., Sequence[Array]]


def call(function: Function, tensors: Sequence[tf.Tensor], shapes: Sequence[Any], what: str) -> list[tf.Tensor]:
    """The results of ``function``, which takes one array for each tensor.

    ``shapes``: of the results, as far as they are known; their element types are those of the first tensors. ``what``:
    of the tensors, for errors. In a graph the call is made when the graph runs, and an exception becomes one of
    ``tf.errors`` with its text. Raises TypeError for element types that cannot be sent, ValueError in a function that
    XLA is to compile.
    """
    for tensor in tensors:
        name_of(tensor.dtype, what)
    if not tensors:
        return []
    if tf.executing_eagerly():
        return [tensor_of(array) for array in function(*map(array_of, tensors))]
    refuse_xla(what)
    graph = tf.compat.v1.get_default_graph()
    is_of_function = hasattr(graph, "outer_graph")
    order: list[Any] = graph.get_collection_ref(_ORDER) if is_of_function else []
    with graph.control_dependencies(order):
        types = [one.dtype for one in tensors[: len(shapes)]]
        results = tf.numpy_function(_noted(function), list(tensors), types, stateful=True)
    order[:] = [results[0].op]
    for result, shape in zip(results, shapes, strict=True):
        result.set_shape(shape)
    return list(results)


def graph_name(name: str) -> str | None:
    """A name for an operation of the graph that is being made: the same on all ranks, and after retracing. None in
    eager execution."""
    if tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    unique, path = graph.unique_name(name), []
    while graph is not None:
        # The functions of branches and loops have numbers that count in the process.
        path.append(re.sub(r"_\d+$", "", getattr(graph, "name", "")))
        graph = getattr(graph, "outer_graph", None)
    return "/".join([*reversed([one for one in path if one]), unique])


def refuse_xla(what: str) -> None:
    """Raise ValueError if this is called while a function is traced that XLA is to compile."""
    for owner in _callers(tf.types.experimental.PolymorphicFunction):
        if getattr(owner, "_jit_compile", None):
            raise ValueError(
                f"{what}: {getattr(owner, 'name', 'a tf.function')!r} has jit_compile=True, and XLA can compile no "
                "communication: pass jit_compile=False to model.compile() or tf.function()"
            )


def is_called_by(kind: Any, matches: Callable[[Any], bool]) -> bool:
    """Whether a method of such an object is being executed by this thread."""
    return any(matches(owner) for owner in _callers(kind))


def _callers(kind: Any) -> list[Any]:
    """The objects of this type whose methods are being executed."""
    found, frame = [], sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, kind):
            found.append(owner)
        frame = frame.f_back  # type: ignore[assignment]
    return found


def cause_of(error: BaseException) -> Exception | None:
    """The exception of this package that TensorFlow reported as ``error`` when a graph ran; None if it is another."""
    for one in reversed(_failure):
        if str(one) in str(error):
            return one
    return None


def _noted(function: Function) -> Function:
    def run(*arrays: Array) -> Sequence[Array]:
        try:
            with lent_thread():
                return function(*arrays)
        except Exception as error:
            _failure[:] = [*_failure[-7:], error]
            raise

    return run
