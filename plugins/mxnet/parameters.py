"""Parameters of one rank for all."""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import Any

from mlt.mxnet.collectives import grouped_broadcast_

import mxnet as mx
from mlt._named.process_sets import ProcessSet, global_process_set


def broadcast_parameters(
    params: Any, root_rank: int = 0, prefix: str | None = None, process_set: ProcessSet = global_process_set
) -> None:
    """Replace parameters by those of ``root_rank``, as one operation.

    ``params``: of ``Block.collect_params()`` or ``Module.get_params()``, the same names on all ranks. Parameters whose
    shape is not known yet are replaced when they come into being, in the first forward pass. ``prefix``: differs
    between calls that deferred parameters of the same names. Raises ValueError for no parameters of MXNet,
    HorovodInternalError if names, shapes or element types differ between ranks.

    >>> hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    """
    if not isinstance(params, Mapping | mx.gluon.ParameterDict):
        raise ValueError(
            f"broadcast_parameters takes a dict, such as net.collect_params(), not an object of {type(params).__name__}"
        )
    label = prefix or ""
    arrays = []
    for name, param in sorted(params.items()):
        if not isinstance(param, mx.gluon.Parameter):
            arrays.append(param)
            continue
        try:
            arrays += param.list_data()[:1]
        except mx.gluon.parameter.DeferredInitializationError:
            _broadcast_later(param, root_rank, f"parameter {label}{name}", process_set)
    grouped_broadcast_(arrays, root_rank, f"parameters {label}".rstrip(), process_set=process_set)


def _broadcast_later(param: Any, root_rank: int, name: str, process_set: ProcessSet) -> None:
    """Broadcast a parameter once MXNet has initialised it."""
    initialise = param._init_impl

    def initialise_and_broadcast(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(*args, **kwargs)
        del self._init_impl  # that of the class again
        with mx.autograd.pause():
            grouped_broadcast_(self.list_data()[:1], root_rank, name, process_set=process_set)

    param._init_impl = MethodType(initialise_and_broadcast, param)
