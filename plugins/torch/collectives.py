"""Exact collectives over point-to-point transfers, for tensors in host memory.

One owner combines the ranks' values in rank order, so all ranks end with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlt.torch.exchange import Exchange

import torch

Combine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# Below this size, all ranks exchange everything in one round trip. Above it, each rank sums a share in two round trips
# (fewer bytes).
ONE_ROUND_BYTES = 32 * 1024


def broadcast(exchange: Exchange, tensor: torch.Tensor, *, rank: int, size: int, root: int) -> None:
    """Copy group rank ``root``'s tensor to all others."""
    if rank == root:
        for peer in range(size):
            if peer != root:
                exchange.send(tensor, peer)
    else:
        exchange.recv(tensor, root)
    exchange.finish()


def all_gather(exchange: Exchange, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, *, rank: int) -> None:
    """Copy group rank i's tensor into ``outputs[i]`` on every rank."""
    all_to_all(exchange, outputs, [tensor] * len(outputs), rank=rank)


def all_to_all(
    exchange: Exchange, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], *, rank: int
) -> None:
    """Copy ``inputs[rank]`` of group rank i into ``outputs[i]`` on every rank; sizes may differ from pair to pair."""
    for peer, (output, tensor) in enumerate(zip(outputs, inputs, strict=True)):
        if peer != rank:
            exchange.recv(output, peer)
            exchange.send(tensor, peer)
    exchange.finish()
    outputs[rank].copy_(inputs[rank].reshape(outputs[rank].shape))


def gather(exchange: Exchange, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, *, rank: int, root: int) -> None:
    """Copy group rank i's tensor into ``outputs[i]`` of group rank ``root``; elsewhere ``outputs`` is empty."""
    if rank != root:
        exchange.send(tensor, root)
    for peer, output in enumerate(outputs):
        if peer != rank:
            exchange.recv(output, peer)
    exchange.finish()
    if rank == root:
        outputs[rank].copy_(tensor)


def scatter(exchange: Exchange, output: torch.Tensor, inputs: Sequence[torch.Tensor], *, rank: int, root: int) -> None:
    """Copy ``inputs[i]`` of group rank ``root`` into group rank i's output; elsewhere ``inputs`` is empty."""
    if rank != root:
        exchange.recv(output, root)
    for peer, tensor in enumerate(inputs):
        if peer != rank:
            exchange.send(tensor, peer)
    exchange.finish()
    if rank == root:
        output.copy_(inputs[rank])


def reduce(exchange: Exchange, tensor: torch.Tensor, *, rank: int, size: int, root: int, combine: Combine) -> None:
    """Replace group rank ``root``'s tensor by the combination of all ranks' tensors, in rank order."""
    flat = tensor.detach().contiguous().reshape(-1)
    parts = [flat if peer == rank else torch.empty_like(flat) for peer in range(size)] if rank == root else []
    gather(exchange, parts, flat, rank=rank, root=root)
    if rank == root:
        tensor.copy_(_combine(parts, combine).reshape(tensor.shape))


def all_reduce(exchange: Exchange, tensor: torch.Tensor, *, rank: int, size: int, combine: Combine) -> None:
    """Replace ``tensor`` by the combination of all ranks' tensors, element by element, in rank order."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.numel() * flat.element_size() <= ONE_ROUND_BYTES:
        parts = [torch.empty_like(flat) for _ in range(size)]
        all_gather(exchange, parts, flat, rank=rank)
        total = _combine(parts, combine)
    else:
        total = _reduce_scatter_all_gather(exchange, flat, rank=rank, size=size, combine=combine)
    tensor.copy_(total.reshape(tensor.shape))


def sparse_all_reduce(exchange: Exchange, tensor: torch.Tensor, *, rank: int, size: int) -> None:
    """Replace a sparse tensor (COO layout) by the sum of all ranks'; each rank may hold other elements.

    Raises ValueError if the ranks' shapes differ, which it learns first.
    """
    own = tensor.detach().coalesce()
    shape = torch.tensor([own.sparse_dim(), own._nnz(), *own.shape])
    shapes = [torch.zeros_like(shape) for _ in range(size)]
    all_gather(exchange, shapes, shape, rank=rank)
    for other, found in enumerate(shapes):
        if found[0] != shape[0] or not torch.equal(found[2:], shape[2:]):
            raise ValueError(
                f"the sparse tensor of rank {other} has shape {found[2:].tolist()} with {int(found[0])} sparse "
                f"dimensions, that of rank {rank} {shape[2:].tolist()} with {int(shape[0])}"
            )
    counts = [int(found[1]) for found in shapes]
    indices = [torch.empty((own.sparse_dim(), count), dtype=torch.int64) for count in counts]
    all_gather(exchange, indices, own.indices().contiguous(), rank=rank)
    values = [torch.empty((count, *own.values().shape[1:]), dtype=own.dtype) for count in counts]
    all_gather(exchange, values, own.values().contiguous(), rank=rank)
    total = torch.sparse_coo_tensor(torch.cat(indices, dim=1), torch.cat(values), own.shape)
    tensor.copy_(total.coalesce())


def reduce_scatter(
    exchange: Exchange, output: torch.Tensor, inputs: Sequence[torch.Tensor], *, rank: int, combine: Combine
) -> None:
    """Set ``output`` to the combination of every rank's ``inputs[rank]``, in rank order."""
    mine = inputs[rank].detach().contiguous()
    parts = [mine if peer == rank else torch.empty_like(mine) for peer in range(len(inputs))]
    for peer, part in enumerate(parts):
        if peer != rank:
            exchange.recv(part, peer)
            exchange.send(inputs[peer], peer)
    exchange.finish()
    output.copy_(_combine(parts, combine).reshape(output.shape))


def _reduce_scatter_all_gather(
    exchange: Exchange, flat: torch.Tensor, *, rank: int, size: int, combine: Combine
) -> torch.Tensor:
    shares = torch.tensor_split(flat, size)
    total = torch.empty_like(flat)
    totals = torch.tensor_split(total, size)
    reduce_scatter(exchange, totals[rank], shares, rank=rank, combine=combine)
    all_gather(exchange, totals, totals[rank].clone(), rank=rank)
    return total


def _combine(parts: Sequence[torch.Tensor], combine: Combine) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total = combine(total, part)
    return total
