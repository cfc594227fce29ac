"""The transfers of one collective, posted and awaited together. Exact: the loss bound is always 0."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from mlt.errors import MltError

if TYPE_CHECKING:
    from mlt import Context


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A flat uint8 view of a contiguous CPU tensor of any element type; shares its memory."""
    return tensor.detach().reshape(-1).view(torch.uint8)


class Exchange:
    """Transfers between the ranks of one group, in rounds that each end with ``finish``.

    ``ranks``: rank in the job by group rank. ``tag``: the first of ``ring`` tags, which the rounds use in turn from
    number ``first`` on. Tags are reused because the transport remembers every tag; it matches the k-th send of a tag to
    the k-th receive. ``timeout``: limit of the whole exchange in seconds. Used by one thread.
    """

    def __init__(
        self,
        context: Context,
        ranks: tuple[int, ...],
        *,
        tag: int,
        timeout: float,
        first: int = 0,
        ring: int = 1,
    ) -> None:
        self._context = context
        self._ranks = ranks
        self._base = tag
        self._round = first
        self._ring = ring
        self._deadline = time.monotonic() + timeout
        self._pending: list[tuple[Any, torch.Tensor]] = []
        self._landing: list[tuple[torch.Tensor, torch.Tensor]] = []

    def _remaining(self) -> float:
        return max(self._deadline - time.monotonic(), 1e-3)

    @property
    def _tag(self) -> int:
        return self._base + self._round % self._ring

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Start sending a tensor to group rank ``to``; an empty tensor is not sent."""
        if tensor.numel() == 0:
            return
        data = as_bytes(tensor.contiguous())
        operation = self._context.post_send(data, to=self._ranks[to], tag=self._tag, timeout=self._remaining())
        self._pending.append((operation, data))

    def recv(self, tensor: torch.Tensor, from_: int) -> None:
        """Start receiving into a tensor from group rank ``from_``; a strided one is filled when ``finish`` returns."""
        if tensor.numel() == 0:
            return
        landing = tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
        data = as_bytes(landing)
        operation = self._context.post_recv(
            data, 0.0, from_=self._ranks[from_], tag=self._tag, timeout=self._remaining()
        )
        self._pending.append((operation, data))
        if landing is not tensor:
            self._landing.append((tensor, landing))

    def finish(self) -> None:
        """Wait until every transfer of this round completes; raises the transport's error of the first that failed."""
        try:
            for operation, _ in self._pending:
                self._context.wait(operation, timeout=self._remaining())
        except BaseException:
            self.abandon()
            raise
        self._pending = []
        landing, self._landing = self._landing, []
        for tensor, landed in landing:
            tensor.copy_(landed)
        self._round += 1

    def abandon(self) -> None:
        """Cancel every posted transfer and wait for it; the callers' tensors are not written to after the return."""
        pending, self._pending, self._landing = self._pending, [], []
        for operation, _ in pending:
            with suppress(MltError):
                self._context.cancel(operation)
        for operation, _ in pending:
            # It fails as cancelled, or its completion was taken before; a closed context has returned every tensor.
            with suppress(MltError):
                self._context.wait(operation)
