"""``verify_replicas``: whether all ranks have the same model, to the last bit."""

from __future__ import annotations

import hashlib
from typing import Any

from mlt.torch.compilation import untraced
from mlt.torch.resynchronisation import may_drift

import torch
import torch.distributed as dist
from mlt._shared.counts import count_of


@untraced
def verify_replicas(model: torch.nn.Module, group: dist.ProcessGroup | None = None, *, buffers: bool = True) -> None:
    """Raise RuntimeError, on every rank, unless all of ``group`` have the same parameters and buffers, bit for bit.

    ``buffers``: False compares the parameters only. Buffers may differ between steps: BatchNorm's statistics follow
    each rank's own batches, and DistributedDataParallel makes them equal before the next forward pass in training mode.
    Every rank must give the same. A DTensor's own part is compared; a sharded one is a TypeError unless ``group`` has
    the ranks with the same parts.

    The error names the first tensor that differs, and the ranks whose tensor is not that of the group's rank 0. Where a
    hook with ``lossy_results`` lets the replicas of ``model`` drift apart, call its ``resynchronise()`` first. A
    collective: every rank of the group calls it. It costs a hash of the model and 32 bytes a tensor on the network.

    >>> verify_replicas(model)  # doctest: +SKIP
    """
    parameters = dict(model.named_parameters())
    of_buffers = dict(model.named_buffers()) if buffers else {}
    state = {**parameters, **of_buffers}
    names = [*sorted(parameters), *sorted(of_buffers)]
    own = b"".join(_digest(name, _local(name, state[name], group)) for name in names)
    # Whether there are as many tensors everywhere comes first: the digests would not fit.
    counts = _gather(torch.tensor([len(names)]), group)
    different = [rank for rank, count in enumerate(counts) if int(count) != int(counts[0])]
    if different:
        raise RuntimeError(
            f"the replicas differ: rank 0 of the group has {count_of(int(counts[0]), 'tensor')}, "
            + ", ".join(f"rank {rank} has {int(counts[rank]):,}" for rank in different)
            + " (buffers= must be the same on every rank)"
        )
    if not names:
        return
    digests = [bytes(one.tolist()) for one in _gather(torch.frombuffer(bytearray(own), dtype=torch.uint8), group)]
    for index, name in enumerate(names):
        part = slice(32 * index, 32 * (index + 1))
        different = [rank for rank, one in enumerate(digests) if one[part] != digests[0][part]]
        if different:
            ranks = ", ".join(map(str, different))
            raise RuntimeError(
                f"the replicas differ: {name!r} of group rank(s) {ranks} is not that of rank 0, by name, type, shape "
                f"or value; {_advice(model, is_buffer=name in of_buffers)}"
            )


def _local(name: str, tensor: Any, group: dist.ProcessGroup | None) -> torch.Tensor:
    """This rank's part of a DTensor. Raises TypeError for one that is sharded, unless the caller chose the ranks."""
    if not hasattr(tensor, "to_local"):
        return tensor  # type: ignore[no-any-return]
    if group is None and any(not one.is_replicate() for one in tensor.placements):
        raise TypeError(
            f"verify_replicas: {name!r} is sharded ({tensor.placements}): its ranks have parts, not replicas; compare "
            "full_tensor() of each parameter, or with replicas of sharded models (HSDP) give the group of the ranks "
            "that have the same parts"
        )
    return tensor.to_local()  # type: ignore[no-any-return]


def _advice(model: torch.nn.Module, *, is_buffer: bool) -> str:
    if is_buffer:
        return (
            "the parameters are equal, and this is a buffer: each rank's BatchNorm, for example, counts its own "
            "batches, and DistributedDataParallel makes buffers equal only before the next forward pass in training "
            "mode; to compare the parameters alone, call verify_replicas(model, buffers=False) on every rank"
        )
    if may_drift(model):
        return "lossy_results lets them drift apart between re-synchronisations: call the state's resynchronise() first"
    return "look for a parameter that changes outside the optimizer, or a rank that skipped a step"


def _gather(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> list[torch.Tensor]:
    outputs = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(outputs, tensor, group=group)
    return outputs


def _digest(name: str, tensor: torch.Tensor) -> bytes:
    data = tensor.detach().cpu().contiguous()
    head = f"{name} {data.dtype} {tuple(data.shape)}".encode()
    return hashlib.sha256(head + data.reshape(-1).view(torch.uint8).numpy().tobytes()).digest()
