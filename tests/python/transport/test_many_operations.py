"""Handles and pinned arrays of small operations over UDP, many in flight: none is kept once its operation has ended."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from transport_jobs import local_job

import mlt
from mlt import Reduction

ROUNDS = 100
# One handle kept of each round would be 100 objects.
MAX_OBJECTS = 50


def post(contexts: list[mlt.Context], sent: np.ndarray, arrays: list[np.ndarray], first_tag: int) -> Iterator[Any]:
    for i, received in enumerate(arrays[:16]):
        yield contexts[1 - i % 2].post_recv(received, from_=i % 2, tag=first_tag + i)
        yield contexts[i % 2].post_send(sent, to=1 - i % 2, tag=first_tag + i)
    for rank, context in enumerate(contexts):
        yield context.post_all_reduce(arrays[16 + rank], op=Reduction.SUM)
        yield context.post_barrier()


def test_small_operations__keep_neither_handles_nor_arrays() -> None:
    with local_job(2, operation_timeout=60.0, datapath="udp") as contexts:
        sent = np.arange(8, dtype=np.float32)
        arrays = [np.ones(8, np.float32) for _ in range(18)]

        def run(first: int) -> tuple[int, list[int]]:
            for number in range(first, first + ROUNDS):
                arrays[16][:] = arrays[17][:] = 1
                for operation in list(post(contexts, sent, arrays, 16 * number)):
                    operation.wait(30)
                assert all((tensor == 2).all() for tensor in arrays[16:])
            del operation
            gc.collect()
            return len(gc.get_objects()), [sys.getrefcount(array) for array in [sent, *arrays]]

        objects, references = run(0)
        more_objects, more_references = run(ROUNDS)
        assert more_references == references
        assert more_objects - objects < MAX_OBJECTS
        assert all(np.array_equal(received, sent) for received in arrays[:16])
