"""Small operations, many in flight, 100,000 over time through one pair of contexts: memory and tables do not grow."""

from __future__ import annotations

import ctypes
import gc
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transport_jobs import local_job

import mlt
from mlt import Reduction

OPERATIONS = 100_000
WARM_UP = 30_000
# A table that kept 32 bytes of each of the other 70,000 would be 2.1 MiB.
MAX_GROWTH = 2 << 20


def resident_bytes() -> int:
    """Of this process alone, without what the allocator could give back: pages of shared memory's rings are in use once
    they have been written to, which takes some tens of thousands of operations."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


class Rounds:
    """Rounds of operations of two ranks, all of a round in flight together; each with a tag that was never used."""

    def __init__(self, contexts: list[mlt.Context]) -> None:
        self.contexts = contexts
        self.tags = itertools.count()
        self.sent = np.arange(8, dtype=np.float32)
        self.received = [np.zeros(8, np.float32) for _ in range(16)]
        self.sums = [[np.zeros(8, np.float32) for _ in range(8)] for _ in contexts]
        self.wholes = [np.zeros(16, np.float32) for _ in contexts]

    def post(self, number: int) -> Iterator[Any]:
        for received in self.received:
            tag = next(self.tags)
            sender = tag % 2
            yield self.contexts[1 - sender].post_recv(received, from_=sender, tag=tag)
            yield self.contexts[sender].post_send(self.sent, to=1 - sender, tag=tag)
        for context, sums, whole in zip(self.contexts, self.sums, self.wholes, strict=True):
            for tensor in sums:
                tensor[:] = number % 100
                yield context.post_all_reduce(tensor, op=Reduction.SUM)
            yield context.post_all_gather(whole, self.sent)
            yield context.post_broadcast(self.sent.copy(), root=number % 2)
            yield context.post_barrier()

    def run(self, operations: int) -> None:
        done = number = 0
        while done < operations:
            posted = list(self.post(number))
            for operation in posted:
                operation.wait(30)
            assert all((tensor == 2 * (number % 100)).all() for sums in self.sums for tensor in sums)
            assert all(np.array_equal(received, self.sent) for received in self.received)
            done += len(posted)
            number += 1


@pytest.mark.parametrize(
    "options",
    [{}, {"datapath": "udp"}, {"checksums": True}],
    ids=["shared memory", "udp", "checksums"],
)
def test_hundred_thousand_small_operations__do_not_grow(options: dict[str, Any]) -> None:
    with local_job(2, operation_timeout=60.0, **options) as contexts:
        rounds = Rounds(contexts)
        rounds.run(WARM_UP)
        before = resident_bytes()
        ended = [context.counters() for context in contexts]
        rounds.run(OPERATIONS - WARM_UP)
        assert resident_bytes() - before < MAX_GROWTH
        for context, then in zip(contexts, ended, strict=True):
            now = context.counters()
            assert now["receives_completed"] - then["receives_completed"] > (OPERATIONS - WARM_UP) / 4
            # Tables that are full, or tags that are never forgotten, would have failed an operation.
            assert now["operations_failed"] == 0
