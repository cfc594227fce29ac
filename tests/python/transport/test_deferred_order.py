"""Operations that wait for a free slot keep their place in the order of their tag, however they end."""

from __future__ import annotations

import numpy as np
import pytest
from transport_jobs import local_job

import mlt

SLOTS = 1_024  # sends that an endpoint has under way at once


@pytest.mark.parametrize("fillers", [10, SLOTS + 76])
@pytest.mark.parametrize("cancelled", ["send", "receive"])
def test_cancelled_while_it_waits__the_next_of_its_tag_meets_its_own(fillers: int, cancelled: str) -> None:
    with local_job(2, operation_timeout=10.0) as (a, b):
        side, other = (a, b) if cancelled == "send" else (b, a)

        def post(context: mlt.Context, data: np.ndarray, tag: int) -> mlt.Operation:
            if context is a:
                return a.post_send(data, to=1, tag=tag)
            return b.post_recv(data, from_=0, tag=tag)

        waiting = [post(side, np.zeros(4, np.float32), 1_000 + i) for i in range(fillers)]
        first = post(side, np.full(4, 1, np.float32), 7)
        side.cancel(first)
        with pytest.raises(mlt.MltError):
            side.wait(first)
        for operation in waiting:
            side.cancel(operation)
        for operation in waiting:
            with pytest.raises(mlt.MltError):
                side.wait(operation)

        other_end = np.full(4, 3, np.float32)
        met = post(other, other_end, 7)  # the other side of the cancelled one
        try:
            other.wait(met)
        except mlt.MltError:
            pass
        else:  # a send's data may be there before the news that it was cancelled
            assert cancelled == "send"
            assert (other_end == 1).all()
        target = np.zeros(4, np.float32)
        source = np.full(4, 2, np.float32)
        received = b.post_recv(target, from_=0, tag=7)
        sent = a.post_send(source, to=1, tag=7)
        a.wait(sent)
        b.wait(received)
        assert (target == source).all()
