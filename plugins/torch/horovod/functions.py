"""Parameters and optimizer states, from one rank to all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mlt.torch.horovod.handles import synchronize
from mlt.torch.horovod.movement import broadcast_async_

import torch
from mlt._named import job
from mlt._named.objects import broadcast_object


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Replace tensors by those of ``root_rank``.

    ``params``: a model's ``state_dict()`` or ``named_parameters()``; or its ``parameters()``, matched by their order.
    """
    if isinstance(params, Mapping):
        named: list[tuple[str | None, Any]] = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, str | torch.Tensor):
        named = [one if isinstance(one, tuple) else (None, one) for one in params]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    handles = [broadcast_async_(tensor, root_rank, name) for name, tensor in named if torch.is_tensor(tensor)]
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Replace the optimizer's state and options by those of ``root_rank``.

    The other ranks' states may be empty, as they are before the first step. ``model`` is not needed; it is an argument
    of Horovod's.
    """
    own = optimizer.state_dict()
    is_root = job.controller().rank == root_rank
    tensors: list[torch.Tensor] = []
    sent = broadcast_object(_without_tensors(own, tensors) if is_root else None, root_rank, "optimizer state")
    if not is_root:
        tensors = []
        own = _with_new_tensors(sent, tensors)
    handles = [broadcast_async_(tensor, root_rank, f"optimizer state.{i}") for i, tensor in enumerate(tensors)]
    for handle in handles:
        synchronize(handle)
    if not is_root:
        optimizer.load_state_dict(own)


class _Place:
    """Stands for a tensor in a state that travels without its tensors."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype


def _without_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """A copy with a place for each tensor, which are appended to ``tensors`` in order."""
    if torch.is_tensor(value):
        tensors.append(value)
        return _Place(value)
    if isinstance(value, dict):
        return {key: _without_tensors(one, tensors) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_without_tensors(one, tensors) for one in value)
    return value


def _with_new_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The reverse: new tensors at the places."""
    if isinstance(value, _Place):
        tensors.append(torch.empty(value.shape, dtype=value.dtype))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _with_new_tensors(one, tensors) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_new_tensors(one, tensors) for one in value)
    return value
