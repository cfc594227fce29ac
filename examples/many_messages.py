"""Many small messages: the same 64-byte tensors posted one by one, then in lists. Two ranks on one host:

mlt launch -n 2 python examples/many_messages.py
"""

from __future__ import annotations

import time

import numpy as np

import mlt

MESSAGES, LIST, BYTES = 6_400, 64, 64


def one_by_one(context: mlt.Context, tensors: list[np.ndarray], other: int) -> None:
    if context.rank == 0:
        operations = [context.post_send(tensor, to=other, tag=tag) for tag, tensor in enumerate(tensors)]
    else:
        operations = [context.post_recv(tensor, from_=other, tag=tag) for tag, tensor in enumerate(tensors)]
    for operation in operations:
        operation.wait()


def in_lists(context: mlt.Context, tensors: list[np.ndarray], other: int) -> None:
    post = context.post_sends if context.rank == 0 else context.post_recvs
    # Two lists are in progress at a time: while one is awaited, the other one's packets travel.
    before: list[mlt.Operation] = []
    for first in range(0, len(tensors), LIST):
        posted = post([(tensors[tag], other, tag) for tag in range(first, min(first + LIST, len(tensors)))])
        context.wait_all(before)
        before = posted
    context.wait_all(before)


def main() -> None:
    with mlt.Context() as context:
        for exchange in (one_by_one, in_lists):
            value = MESSAGES % 251 if context.rank == 0 else 0
            tensors = [np.full(BYTES, value, np.uint8) for _ in range(MESSAGES)]
            context.barrier()
            began = time.monotonic()
            exchange(context, tensors, 1 - context.rank)
            seconds = time.monotonic() - began
            if not all((tensor == MESSAGES % 251).all() for tensor in tensors):
                raise ValueError("a message arrived changed")
            if context.rank == 1:
                print(f"{exchange.__name__}: {MESSAGES / seconds:,.0f} messages a second")


if __name__ == "__main__":
    main()
