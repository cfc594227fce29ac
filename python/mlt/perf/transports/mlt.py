"""This project's transport."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import mlt
from mlt.perf.options import AUTOMATIC, PATTERNS
from mlt.perf.patterns import Buffers, Case
from mlt.perf.transports.base import Address, Outcome, Transport
from mlt.priority import PriorityFunction

_ASK, _DATA = 1, 2


class Mlt(Transport):
    """``Context.post_send``, ``post_recv`` and the collectives over them."""

    patterns = frozenset(PATTERNS)
    is_bounded = True
    _context: mlt.Context | None = None

    def open(self, table: Sequence[Address]) -> None:
        options = self.options
        self._ask = np.zeros(2, np.float32)
        self._context = mlt.Context(
            self.place.rank,
            self.place.ranks,
            0,
            job=self.place.job,
            master_addr=table[0].host,
            rendezvous_port=table[0].port,
            host=self.place.address,
            segment_bytes=options.segment_bytes,
            line_rate_gbps=None if options.line_rate is None else options.line_rate / 1e9,
            faults=mlt.Faults.parse(options.faults),
            operation_timeout=options.timeout,
            connect_timeout=min(options.timeout, 60.0),
            **options.context_arguments,
        )

    @property
    def context(self) -> mlt.Context:
        assert self._context is not None
        return self._context

    def incast(self, buffers: Buffers) -> Outcome:
        context, case = self.context, buffers.case
        if self.place.rank:
            context.wait(context.post_recv(self._ask, from_=0, tag=_ASK))
            began = time.perf_counter()
            context.wait(context.post_send(buffers.outgoing, _policy(case), to=0, tag=_DATA))
            return Outcome(time.perf_counter() - began)
        began = time.perf_counter()
        receives = [
            context.post_recv(array, case.loss_bound, from_=peer, tag=_DATA, stop=_stop(case))
            for peer, array in buffers.incoming.items()
        ]
        asks = [context.post_send(self._ask, mlt.priority.all_important, to=p, tag=_ASK) for p in buffers.incoming]
        missing = sum(context.wait(receive).missing_bytes for receive in receives)
        seconds = time.perf_counter() - began
        for ask in asks:
            context.wait(ask)
        return Outcome(seconds, missing)

    def alltoall(self, buffers: Buffers) -> Outcome:
        began = time.perf_counter()
        done = self.context.all_to_all(buffers.work, buffers.outgoing, loss_bound=buffers.case.loss_bound)
        return Outcome(time.perf_counter() - began, done.missing_bytes)

    def allreduce(self, buffers: Buffers) -> Outcome:
        algorithm = None if buffers.case.algorithm == AUTOMATIC else buffers.case.algorithm
        began = time.perf_counter()
        done = self.context.all_reduce(
            buffers.work, op=mlt.Reduction.SUM, loss_bound=buffers.case.loss_bound, algorithm=algorithm
        )
        return Outcome(time.perf_counter() - began, done.missing_bytes)

    def other(self, buffers: Buffers) -> Outcome:
        context, case = self.context, buffers.case
        how: dict[str, Any] = {"algorithm": None if case.algorithm == AUTOMATIC else case.algorithm}
        if case.pattern != "broadcast":
            how["loss_bound"] = case.loss_bound
        share = case.elements // case.ranks
        last = case.ranks - 1
        if case.pattern == "broadcast" and self.place.rank == last:
            np.copyto(buffers.work, buffers.outgoing)
        began = time.perf_counter()
        if case.pattern == "broadcast":
            done = context.broadcast(buffers.work, root=last, **how)
            context.barrier()
        elif case.pattern == "reduce":
            result = buffers.work if self.place.rank == 0 else None
            done = context.reduce(buffers.outgoing, result, op=mlt.Reduction.SUM, **how)
        elif case.pattern == "allgather":
            done = context.all_gather(buffers.work, buffers.outgoing[:share], **how)
        else:
            done = context.reduce_scatter(buffers.work[:share], buffers.outgoing, op=mlt.Reduction.SUM, **how)
        return Outcome(time.perf_counter() - began, done.missing_bytes)

    def close(self) -> None:
        if self._context is not None:
            self._context.close()

    def counters(self) -> dict[str, int]:
        return self.context.counters()


def _policy(case: Case) -> PriorityFunction | None:
    return mlt.priority.all_important if case.priority == "none" else None


def _stop(case: Case) -> mlt.context.Stop:
    return "eager" if case.stop == "eager" else "patient"


TRANSPORT = Mlt
