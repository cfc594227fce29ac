"""A tag for every message: tags that are not in use are forgotten, on both sides."""

from __future__ import annotations

import numpy as np
import pytest
from transport_jobs import local_job

import mlt
from mlt.errors import MltError

TAGS = 100_000
BATCH = 1_000


def test_transfers__of_100_000_distinct_tags_end_well_beside_one_that_waits() -> None:
    with local_job(max_tags=4_096, operation_timeout=300.0) as (sender, receiver):
        late = np.arange(500, dtype=np.float32)
        waiting = sender.post_send(late, to=1, tag=TAGS)
        tensors = np.arange(BATCH * 2, dtype=np.int64).reshape(BATCH, 2)
        into = np.zeros_like(tensors)
        for first in range(0, TAGS, BATCH):
            tensors[:, 0] = range(first, first + BATCH)
            posted: list[tuple[mlt.Context, mlt.Operation]] = []
            for i in range(BATCH):
                posted.append((receiver, receiver.post_recv(into[i], from_=0, tag=first + i)))
                posted.append((sender, sender.post_send(tensors[i], to=1, tag=first + i)))
            for context, operation in posted:
                context.wait(operation, timeout=60)
            np.testing.assert_array_equal(into, tensors)
        received = np.zeros_like(late)
        receiver.wait(receiver.post_recv(received, from_=0, tag=TAGS), timeout=30)
        sender.wait(waiting, timeout=30)
        np.testing.assert_array_equal(received, late)
        assert sender.counters()["retirements_sent"] > 20
        assert receiver.counters()["retirements_received"] == sender.counters()["retirements_sent"]


def test_post__of_more_tags_in_use_than_the_table_holds_names_the_limit() -> None:
    with local_job(max_tags=100) as (sender, receiver):
        tensor = np.ones(1, np.float32)
        waiting = [sender.post_send(tensor, to=1, tag=tag) for tag in range(100)]
        with pytest.raises(MltError, match=r"100 tags are in use.*MLT_MAX_TAGS"):
            sender.wait(sender.post_send(tensor, to=1, tag=100), timeout=30)
        into = np.zeros(1, np.float32)
        for tag, send in enumerate(waiting):
            receiver.wait(receiver.post_recv(into, from_=0, tag=tag), timeout=30)
            sender.wait(send, timeout=30)
        send = sender.post_send(tensor, to=1, tag=100)  # what is not in use is forgotten
        receiver.wait(receiver.post_recv(into, from_=0, tag=100), timeout=30)
        sender.wait(send, timeout=30)
