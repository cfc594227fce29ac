"""``DistributedOptimizer``, and parameters, optimizer states and objects of one worker for all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from mlt.torch.byteps import asynchronous
from mlt.torch.horovod import functions
from mlt.torch.horovod import optimizer as averaging
from mlt.torch.horovod.compression import Compression, Compressor

import torch
from mlt._named import objects
from mlt._named.byteps import is_asynchronous


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
) -> Any:
    """The optimizer with gradients averaged over all workers; an instance of its class too.

    As that of ``mlt.torch.horovod``. Tensors have the names "Gradient." and the parameter's.

    With BYTEPS_ENABLE_ASYNC=1 the gradients are not averaged (``mlt.torch.byteps.asynchronous``).
    """
    if is_asynchronous(os.environ):
        return asynchronous.optimizer_of(optimizer, named_parameters, compression, backward_passes_per_step)
    named = None if named_parameters is None else [(f"Gradient.{name}", one) for name, one in named_parameters]
    return averaging.DistributedOptimizer(
        optimizer,
        named_parameters=named,
        compression=compression,
        backward_passes_per_step=backward_passes_per_step,
    )


def broadcast_parameters(params: Any, root_rank: int, prefix: str = "Parameter.") -> None:
    """Replace tensors by those of ``root_rank``: a model's ``state_dict()``, or a list of names and tensors."""
    if isinstance(params, Mapping):
        params = list(params.items())
    elif not isinstance(params, Iterable):
        raise ValueError(f"invalid params of type: {type(params)}")
    functions.broadcast_parameters([(f"{prefix}{name}", one) for name, one in params], root_rank)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, prefix: str = "Parameter.") -> None:
    """Replace the optimizer's state and options by those of ``root_rank``. ``prefix`` is not needed."""
    functions.broadcast_optimizer_state(optimizer, root_rank)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """The object of ``root_rank``, pickled on its way."""
    return objects.broadcast_object(obj, root_rank, name)
