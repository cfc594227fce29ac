"""``mlt`` as a KVStore of MXNet, for scripts that name one: ``kvstore="dist_sync_mlt"``.

It sums over all ranks, as MXNet's ``dist_sync`` does, and weights are updated by the workers. Each key is an operation
of its own, whose end is waited for, so ``DistributedTrainer`` is faster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from mlt.mxnet.collectives import allreduce_, broadcast_

import mxnet as mx
from mlt._named import basics
from mlt._named.objects import allgather_object
from mlt._named.reduce_ops import Sum
from mxnet.gluon import trainer
from mxnet.kvstore import KVStoreBase
from mxnet.module import module

NAME: Final = "dist_sync_mlt"
"""The store's name: with "dist", because MXNet ignores other names if there is one device; with "_sync", because
``Module`` then divides gradients by the batches of all workers."""


class DistSyncMLT(KVStoreBase):
    """``mx.kv.create("dist_sync_mlt")``, or "mlt". Connects all ranks, as ``init`` does."""

    def __init__(self) -> None:
        basics.init()

    @property
    def type(self) -> str:
        return NAME

    @property
    def rank(self) -> int:
        return basics.rank()

    @property
    def num_workers(self) -> int:
        return basics.size()

    @staticmethod
    def is_capable(capability: str) -> bool:
        """False: the workers update the weights."""
        if capability.lower() != KVStoreBase.OPTIMIZER:
            raise ValueError(f"unknown capability {capability!r} of a KVStore")
        return False

    def init(self, key: Any, value: mx.nd.NDArray) -> None:
        """Check that all ranks begin with the same weights, which the Module API cannot receive here.

        Raises ValueError on every rank otherwise.
        """
        own = hashlib.sha256(value.asnumpy().tobytes()).hexdigest()
        found = allgather_object((own, value.shape), name=f"weights of {key}")
        different = [rank for rank, one in enumerate(found) if one != found[0]]
        if different:
            raise ValueError(
                f"weights {key!r} of rank {', '.join(map(str, different))} differ from those of rank 0: call "
                "mlt.mxnet.broadcast_parameters on arg_params and aux_params of module.get_params(), then "
                "module.set_params(arg_params, aux_params), before init_optimizer"
            )

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """The value of rank 0, to ``out`` on all ranks."""
        first = _list(value)[0].copy()
        broadcast_(first, 0, f"kvstore {key}", priority)
        for one in _list(out):
            one[:] = first

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """The sum of the values of all devices and ranks, to ``out``, or in place. May lose what ``lossy`` allows."""
        values = _list(value)
        total = values[0]
        if len(values) > 1:
            total = mx.nd.add_n(*(one.as_in_context(total.context) for one in values))
        elif out is not None:
            total = total.copy()
        allreduce_(total, name=f"kvstore {key}", priority=priority, op=Sum)
        for one in values if out is None else _list(out):
            if one is not total:
                one[:] = total

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Raise ValueError: there is none."""
        raise ValueError(
            f"{NAME} has no gradient compression {compression_params!r}: leave compression_params out, or use "
            "mlt.mxnet.DistributedTrainer(compression=mlt.mxnet.Compression.fp16)"
        )


def _list(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list | tuple) else [values]


def _refusing(create: Callable[..., Any]) -> Callable[..., Any]:
    """MXNet's function that makes the KVStore of a trainer or module, which ignores "mlt" if there is one device."""

    @wraps(create)
    def checked(kvstore: Any, *args: Any) -> Any:
        if isinstance(kvstore, str) and kvstore.lower() == "mlt":
            raise ValueError(
                f'MXNet ignores kvstore="mlt" if there is one device, and would train without communication: write '
                f'kvstore="{NAME}"'
            )
        return create(kvstore, *args)

    return checked


def register() -> None:
    """Make the names known to MXNet."""
    for name in (NAME, "mlt"):
        KVStoreBase.kv_registry[name] = DistSyncMLT
    for user in (trainer, module):
        user._create_kvstore = _refusing(user._create_kvstore)


register()
