"""Exact collectives of lists of tensors in host memory, as sends and receives; sums of sparse tensors."""

from __future__ import annotations

from collections.abc import Sequence

from mlt.torch.exchange import Exchange

import torch


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
