"""Parameters, optimizer states and objects, from one rank to all or from all to all."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

from mlt.torch.horovod import job
from mlt.torch.horovod.handles import synchronize
from mlt.torch.horovod.movement import broadcast_async_
from mlt.torch.horovod.process_sets import ProcessSet, global_process_set, set_id

import torch


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


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The object of ``root_rank``, pickled on its way."""
    own = job.controller()
    is_root = own.rank == root_rank
    number = set_id(process_set)
    text = pickle.dumps(obj) if is_root else b""
    label = f"{name or 'object'}.broadcast_object"
    texts = job.gather_bytes(own, text, label, set_id=number, root=root_rank)
    ranks = job.ranks_of(number)
    if root_rank not in ranks:
        raise ValueError(f"root rank {root_rank} is not in the process set of ranks {list(ranks)}")
    return obj if is_root else pickle.loads(texts[ranks.index(root_rank)])


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks, in order, pickled on their way."""
    label = f"{name or 'object'}.allgather_object"
    texts = job.gather_bytes(job.controller(), pickle.dumps(obj), label, set_id=set_id(process_set))
    return [pickle.loads(text) for text in texts]
