"""Checks of the arguments of a process group's calls: each raises an error that names the call."""

from __future__ import annotations

from collections.abc import Sequence

from mlt.torch.transfers import USER_TAGS

import torch
from mlt._shared.counts import count_of


def check_dense(tensors: Sequence[torch.Tensor], name: str) -> None:
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise TypeError(
                f"mlt {name}: a {tensor.layout} tensor on {tensor.device} cannot be sent; "
                "the backend moves dense tensors in the memory of the host or of a CUDA device"
            )


def check_count(tensors: Sequence[object], size: int, name: str, which: str) -> None:
    if len(tensors) != size:
        raise ValueError(f"mlt {name}: {count_of(len(tensors), f'{which} tensor')} for a group of {size}")


def check_equal(tensors: Sequence[torch.Tensor], own: torch.Tensor, name: str, which: str) -> None:
    """A root's tensors, one for each rank, have the size and type of its own one."""
    for rank, tensor in enumerate(tensors):
        if tensor.numel() != own.numel() or tensor.dtype != own.dtype:
            raise ValueError(
                f"mlt {name}: the {which} tensor of rank {rank} has {count_of(tensor.numel(), 'element')} of "
                f"{tensor.dtype}, the root's own tensor {own.numel():,} of {own.dtype}; all must be equal"
            )


def check_root(root: int, size: int, name: str, argument: str) -> None:
    if not 0 <= root < size:
        raise ValueError(
            f"mlt {name}: {argument} is rank {root} of the group, whose {count_of(size, 'rank')} are 0 to {size - 1}"
        )


def check_transfer(kind: str, tensor: torch.Tensor, tag: int, peer: int | None, *, own: int, size: int) -> None:
    """``peer``: a group rank; None: any. ``own``: this group rank."""
    if peer is not None and (not 0 <= peer < size or peer == own):
        argument = "dst" if kind == "send" else "src"
        what = "is this rank itself" if peer == own else "is no rank of this group"
        raise ValueError(
            f"mlt {kind}, tag {tag}: {argument} is rank {peer}, which {what}; rank {peer} must be another rank of this "
            f"group of {size}, 0 to {size - 1} without {own}"
        )
    if not 0 <= tag < USER_TAGS:
        other = "" if peer is None else f" {'to' if kind == 'send' else 'from'} rank {peer}"
        raise ValueError(f"mlt {kind}{other}: tag {tag} is outside [0, {USER_TAGS})")
    check_dense([tensor], kind)


def check_configured(backends: str, backend: str, device: torch.device, name: str) -> None:
    """``backends``: as ``init_process_group`` was told, such as "cpu:mlt,cuda:nccl"; empty for a group of no such call.

    torch makes no second backend beside one whose process group is in Python, so this group would get nccl's tensors.
    """
    if backends and f"{device.type}:{backend}" not in backends.split(","):
        raise TypeError(
            f"mlt {name}: a tensor on {device} in a process group of {backends}, of which torch made {backend} only: "
            f'make a group for it with torch.distributed.new_group(backend="nccl"), or start all with "{backend}"'
        )


def parts_by_splits(tensor: torch.Tensor, splits: Sequence[int], size: int, which: str) -> list[torch.Tensor]:
    """The parts of an all-to-all's tensor, cut along dimension 0; no splits: ``size`` equal parts."""
    tensor = tensor.detach()
    rows = tensor.shape[0] if tensor.dim() else tensor.numel()
    if not splits:
        if rows % size:
            given = f"{count_of(rows, 'row')} of the {which}"
            raise ValueError(f"mlt alltoall: {given} cannot be divided among {size} ranks; give split sizes")
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise ValueError(
            f"mlt alltoall: the {which} split sizes {list(splits)} must be {size} numbers with the sum "
            f"{rows}, the rows of the {which}"
        )
    return list(torch.split(tensor.reshape(rows, tensor.numel() // rows if rows else 0), list(splits)))
