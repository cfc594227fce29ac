"""torch.distributed's gloo, configured as in any PyTorch job on CPUs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from mlt._shared.extras import how_to_install
from mlt.perf.local_address import where
from mlt.perf.options import PATTERNS
from mlt.perf.patterns import Buffers
from mlt.perf.transports.base import Address, Outcome, Transport, not_installed


class Gloo(Transport):
    """One process group; tensors share memory with the buffers."""

    patterns = frozenset(PATTERNS)
    _group: Any = None

    @classmethod
    def missing(cls) -> str | None:
        return not_installed("torch", how_to_install("torch"))

    def open(self, table: Sequence[Address]) -> None:
        # gloo reads its interface only from here.
        os.environ["GLOO_SOCKET_IFNAME"] = self.place.interface
        import torch
        import torch.distributed as dist

        self._torch = torch
        self._ask = torch.zeros(8, dtype=torch.uint8)
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{where(table[0].host, table[0].port)}",
            rank=self.place.rank,
            world_size=self.place.ranks,
            timeout=timedelta(seconds=self.options.timeout),
        )
        self._group = dist

    def incast(self, buffers: Buffers) -> Outcome:
        dist, torch = self._group, self._torch
        if self.place.rank:
            outgoing = torch.from_numpy(buffers.outgoing)
            dist.recv(self._ask, 0)
            dist.send(outgoing, 0)
            return Outcome(0.0)
        tensors = {peer: torch.from_numpy(array) for peer, array in buffers.incoming.items()}
        began = time.perf_counter()
        receives = [dist.irecv(tensor, peer) for peer, tensor in tensors.items()]
        asks = [dist.isend(self._ask, peer) for peer in tensors]
        for receive in receives:
            receive.wait()
        seconds = time.perf_counter() - began
        for ask in asks:
            ask.wait()
        return Outcome(seconds)

    def alltoall(self, buffers: Buffers) -> Outcome:
        work, outgoing = (self._torch.from_numpy(array) for array in (buffers.work, buffers.outgoing))
        began = time.perf_counter()
        self._group.all_to_all_single(work, outgoing)
        return Outcome(time.perf_counter() - began)

    def allreduce(self, buffers: Buffers) -> Outcome:
        work = self._torch.from_numpy(buffers.work)
        began = time.perf_counter()
        self._group.all_reduce(work)
        return Outcome(time.perf_counter() - began)

    def other(self, buffers: Buffers) -> Outcome:
        dist, torch, case = self._group, self._torch, buffers.case
        work, outgoing = torch.from_numpy(buffers.work), torch.from_numpy(buffers.outgoing)
        share = case.elements // case.ranks
        last = case.ranks - 1
        if case.pattern == "reduce" or (case.pattern == "broadcast" and self.place.rank == last):
            work.copy_(outgoing)
        began = time.perf_counter()
        if case.pattern == "broadcast":
            dist.broadcast(work, last)
            dist.barrier()
        elif case.pattern == "reduce":
            dist.reduce(work, 0)
        elif case.pattern == "allgather":
            dist.all_gather_into_tensor(work, outgoing[:share])
        else:
            dist.reduce_scatter_tensor(work[:share], outgoing)
        return Outcome(time.perf_counter() - began)

    def close(self) -> None:
        if self._group is not None:
            self._group.destroy_process_group()


TRANSPORT = Gloo
