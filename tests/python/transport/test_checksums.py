"""``checksums=`` and MLT_CHECKSUMS: what is accepted, that nothing changes without damage, and that damage is named."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from checks import assert_names, until
from collective_calls import outcome, record_push_pull
from transport_jobs import local_job, open_rank

import mlt
from mlt import Reduction
from mlt._shared.ports import free_port
from mlt.job import rendezvous


@pytest.mark.parametrize("text", ["2", "yes", "-1"])
def test_variable__is_0_or_1(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLT_CHECKSUMS", text)
    with pytest.raises(mlt.ConfigError, match=f"MLT_CHECKSUMS is '{text}'"):
        mlt.Context(0, 1)


@pytest.mark.parametrize("value", [1, "yes", 0.5])
def test_argument__is_true_false_or_none(value: Any) -> None:
    with pytest.raises((mlt.ConfigError, TypeError), match="checksums is"):
        mlt.Context(0, 1, checksums=value)


def counts(context: mlt.Context) -> dict[str, int]:
    return {name: value for name, value in context.counters().items() if name.startswith("checksums_")}


@pytest.mark.parametrize("shared", [True, False])
def test_collectives__are_compared_and_the_same_as_without(shared: bool) -> None:
    options: dict[str, Any] = {} if shared else {"datapath": "udp"}
    with local_job(3, checksums=True, **options) as contexts:
        for elements in (10, 5_000, 300_000):
            tensors = [np.full(elements, rank + 1.0, np.float32) for rank in range(3)]
            wholes = [np.zeros(3 * elements, np.float32) for _ in range(3)]
            started = [
                operation
                for context, tensor, whole in zip(contexts, tensors, wholes, strict=True)
                for operation in (
                    context.post_all_gather(whole, tensor.copy()),
                    context.post_all_reduce(tensor, op=Reduction.SUM),
                    context.post_barrier(),
                )
            ]
            for operation in started:
                operation.wait(30)
            for tensor, whole in zip(tensors, wholes, strict=True):
                assert (tensor == 6).all()
                assert whole.reshape(3, -1)[:, -1].tolist() == [1, 2, 3]
        for context in contexts:
            found = counts(context)
            assert found["checksums_compared"] > 10
            assert found["checksums_incomplete"] == found["checksums_different"] == 0


def test_lossy_collectives__are_compared_where_they_are_whole() -> None:
    faults = mlt.Faults(drop=0.02, seed=3)
    with local_job(3, checksums=True, faults=faults, segment_bytes=1_432, operation_timeout=60.0) as contexts:
        for lossy_results in (False, True):
            tensors = [np.ones(1 << 20, np.float32) for _ in contexts]
            started = [
                context.post_all_reduce(tensor, op=Reduction.SUM, loss_bound=0.1, lossy_results=lossy_results)
                for context, tensor in zip(contexts, tensors, strict=True)
            ]
            assert sum(operation.wait(60).missing_bytes for operation in started) > 0
        for context in contexts:
            found = counts(context)
            assert found["checksums_compared"] > 0
            assert found["checksums_incomplete"] > 0
            assert found["checksums_different"] == 0


def test_memory_that_changes_after_the_post__fails_the_call_at_every_rank_and_names_the_sender() -> None:
    # Without a posted receive, hardly anything leaves.
    with local_job(2, checksums=True, early_segments=16, datapath="udp") as contexts:
        tensors = [np.zeros(4 << 20, np.uint8) for _ in contexts]
        sent = contexts[0].post_broadcast(tensors[0], root=0)
        until(lambda: contexts[0].counters()["data_packets_sent"])  # the end leaves once the other posts its receive
        tensors[0][-1_000] ^= 4
        received = contexts[1].post_broadcast(tensors[1], root=0)
        with pytest.raises(mlt.CancelledError) as caught:
            received.wait(30)
        assert_names(
            str(caught.value), "rank 1: broadcast", "data of rank 0 arrived changed at rank 1", "transfer 5 of 5"
        )
        # The root may have completed it before it learned of that: then its next call fails, and the other's.
        failed = 0
        try:
            sent.wait(30)
        except mlt.CancelledError as error:
            failed = 1
            assert_names(str(error), "data of rank 0 arrived changed at rank 1")
        if not failed:
            for operation in [context.post_barrier() for context in contexts]:
                with pytest.raises(mlt.CancelledError, match="data of rank 0 arrived changed at rank 1"):
                    operation.wait(30)
        for operation in [context.post_barrier() for context in contexts]:
            assert operation.wait(30).status == "complete"
        assert counts(contexts[1])["checksums_different"] == 1


@pytest.mark.parametrize("shared", [True, False])
def test_sends_and_receives__are_compared_at_both_ends(shared: bool) -> None:
    options: dict[str, Any] = {} if shared else {"datapath": "udp"}
    with local_job(2, checksums=True, **options) as contexts:
        for elements in (0, 1, 5_000, 2_000_000):
            received = np.zeros(elements, np.float32)
            sent = contexts[0].post_send(np.full(elements, 3, np.float32), to=1, tag=4)
            arrived = contexts[1].post_recv(received, from_=0, tag=4)
            assert [one.wait(30).status for one in (sent, arrived)] == ["complete", "complete"]
            assert (received == 3).all()
        for context in contexts:
            assert counts(context) == {
                "checksums_compared": 4,
                "checksums_incomplete": 0,
                "checksums_different": 0,
            }


def test_a_receive_that_lost_something__is_not_compared() -> None:
    faults = mlt.Faults(drop=0.05, seed=3)
    with local_job(2, checksums=True, faults=faults, segment_bytes=1_432, operation_timeout=60.0) as contexts:
        received = np.zeros(1 << 20, np.float32)
        sent = contexts[0].post_send(np.ones(1 << 20, np.float32), to=1)
        assert contexts[1].post_recv(received, from_=0, loss_bound=0.2).wait(60).missing_bytes > 0
        sent.wait(60)
        for context in contexts:
            assert counts(context)["checksums_incomplete"] == 1
            assert counts(context)["checksums_compared"] == 0


def test_memory_that_changes_after_the_post__fails_the_send_and_the_receive() -> None:
    # Without a posted receive, hardly anything leaves.
    with local_job(2, checksums=True, early_segments=16, datapath="udp") as contexts:
        tensors = [np.zeros(4 << 20, np.uint8) for _ in contexts]
        sent = contexts[0].post_send(tensors[0], to=1, tag=8)
        time.sleep(0.3)  # it is posted; the end leaves once the other has posted its receive
        tensors[0][-1_000] ^= 4
        received = contexts[1].post_recv(tensors[1], from_=0, tag=8)
        for operation, what in ((sent, "rank 0: send of tag 8"), (received, "rank 1: receive of tag 8")):
            with pytest.raises(mlt.CancelledError) as caught:
                operation.wait(30)
            assert_names(str(caught.value), what, "data of rank 0 arrived changed at rank 1")
        for context in contexts:
            assert counts(context)["checksums_different"] == 1
        again = contexts[0].post_send(tensors[0], to=1, tag=8)
        contexts[1].post_recv(tensors[1], from_=0, tag=8).wait(30)
        assert again.wait(30).status == "complete"
        assert np.array_equal(tensors[0], tensors[1])


@pytest.mark.parametrize("taker", [0, 1])
def test_start__of_ranks_that_differ_is_refused_at_every_rank(taker: int) -> None:
    port = free_port()

    def start(rank: int) -> str:
        with pytest.raises(mlt.PeerMismatchError) as caught:
            open_rank(rank, port, workers=2, checksums=rank == taker)
        return str(caught.value)

    began = time.monotonic()
    with ThreadPoolExecutor(2) as threads:
        for text in threads.map(start, range(2)):
            assert_names(text, f"rank 1 has checksums={taker == 1}, rank 0 has checksums={taker == 0}", "MLT_CHECKSUMS")
    assert time.monotonic() - began < 10


class Unannounced(mlt.Context):
    """Does not announce its setting at the rendezvous, as ranks of C and C++ that find each other in their own way."""

    def _meet(self, *arguments: Any) -> list[rendezvous.Endpoint]:
        checksums, self._checksums = self._checksums, None  # type: ignore[assignment]
        try:
            return super()._meet(*arguments)
        finally:
            self._checksums = checksums


def open_unannounced(rank: int, port: int, *, workers: int, services: int = 0, checksums: bool) -> mlt.Context:
    place: dict[str, Any] = {"master_addr": "127.0.0.1", "rendezvous_port": port, "connect_timeout": 30.0}
    return Unannounced(rank, workers, services, checksums=checksums, **place)


@pytest.mark.parametrize("sender", [0, 1])
def test_ends_of_a_transfer_that_differ__are_named_at_both(sender: int) -> None:
    port = free_port()
    with ThreadPoolExecutor(2) as threads:
        opened = threads.map(lambda rank: open_unannounced(rank, port, workers=2, checksums=rank == 0), range(2))
        contexts = list(opened)
    try:
        facts = ("rank 0 takes checksums and rank 1 none", "MLT_CHECKSUMS")
        tensors = [np.ones(3, np.float32) for _ in contexts]
        operations = [contexts[sender].post_send(tensors[sender], to=1 - sender)]
        operations.insert(1 - sender, contexts[1 - sender].post_recv(tensors[1 - sender], from_=sender))
        with pytest.raises(mlt.CancelledError) as caught:
            operations[0].wait(10)
        assert_names(str(caught.value), *facts)
        # It had no checksum to compare, and had ended if it was quicker than the other's checksum.
        name, text = outcome(operations[1], 10)
        if name != "complete":
            assert name == "CancelledError", text
            assert_names(text, *facts)
        for rank, context in enumerate(contexts):
            with pytest.raises(mlt.CancelledError) as caught:
                context.post_send(tensors[rank], to=1 - rank).wait(10)
            assert_names(str(caught.value), "was rejected", *facts)
    finally:
        for context in contexts:
            context.close()


@pytest.mark.parametrize("shared", [True, False])
def test_push_pulls__are_compared_both_ways(shared: bool) -> None:
    options: dict[str, Any] = {} if shared else {"datapath": "udp"}
    with local_job(2, services=2, checksums=True, **options) as contexts:
        for elements in (1, 5_000, 3_000_000):
            tensors = [np.full(elements, rank + 1.0, np.float32) for rank in range(2)]
            started = [
                mlt.PushPull(context).push_pull(tensor, key=elements)
                for context, tensor in zip(contexts, tensors, strict=False)
            ]
            for operation in started:
                operation.wait(30)
            assert all((tensor == 1.5).all() for tensor in tensors)
        found = [counts(context) for context in contexts]
        assert all(one["checksums_incomplete"] == one["checksums_different"] == 0 for one in found)
        # Each partition's push of both workers is compared at its service, its result at both workers.
        assert found[0]["checksums_compared"] == found[1]["checksums_compared"] >= 3
        assert sum(one["checksums_compared"] for one in found[2:]) == 2 * found[0]["checksums_compared"]


def test_memory_that_changes_after_a_push__fails_the_key_at_every_worker_and_names_the_sender(
    record_property: Callable[[str, object], None],
) -> None:
    # So slow that the end of the tensor, which takes 130 ms, is sent after it has changed.
    with local_job(2, services=1, checksums=True, line_rate_gbps=1.0, datapath="udp") as contexts:
        tensors = [np.zeros(4 << 20, np.float32) for _ in range(2)]
        results = [np.zeros(4 << 20, np.float32) for _ in range(2)]
        started = [mlt.PushPull(contexts[0]).push_pull(tensors[0], key=3, out=results[0])]
        until(lambda: contexts[0].counters()["data_packets_sent"])
        tensors[0][-(1 << 18) :] += 1.0
        started.append(mlt.PushPull(contexts[1]).push_pull(tensors[1], key=3, out=results[1]))
        for rank, operation in enumerate(started):
            with pytest.raises(mlt.CancelledError) as caught:
                operation.wait(30)
            assert_names(
                str(caught.value),
                f"rank {rank}: ",
                "data of rank 0 arrived changed at rank 2",
                "push of key 3, partition",
            )
            assert caught.value.peer == 0
        for context, tensor in zip(contexts, tensors, strict=False):
            with pytest.raises(mlt.CancelledError, match="key 3 failed before: data of rank 0 arrived changed"):
                mlt.PushPull(context).push_pull(tensor, key=3).wait(30)
        assert counts(contexts[2])["checksums_different"] >= 1
    record_push_pull(record_property, "data arrives changed", "CancelledError, the key fails")


def test_a_worker_and_a_service_that_differ__are_named() -> None:
    port = free_port()

    def opened(rank: int) -> mlt.Context:
        context = open_unannounced(rank, port, workers=2, services=1, checksums=rank != 1)
        if rank == 2:
            mlt.SummationService(context)
        return context

    with ThreadPoolExecutor(3) as threads:
        contexts = list(threads.map(opened, range(3)))
    try:
        started = [mlt.PushPull(context).push_pull(np.ones(3, np.float32), key=1) for context in contexts[:2]]
        for operation in started:
            with pytest.raises(mlt.SizeMismatchError, match="rank 2 takes checksums and rank 1 none: set checksums"):
                operation.wait(10)
    finally:
        for context in contexts:
            context.close()


def test_ranks_that_differ__are_named() -> None:
    port = free_port()
    with ThreadPoolExecutor(2) as threads:
        opened = threads.map(lambda rank: open_unannounced(rank, port, workers=2, checksums=rank == 0), range(2))
        contexts = list(opened)
    try:
        started = [context.post_all_reduce(np.ones(3, np.float32)) for context in contexts]
        for operation in started:
            with pytest.raises(mlt.SizeMismatchError, match=r"number 1 of 12 bytes of float32, .*, with checksums"):
                operation.wait(10)
    finally:
        for context in contexts:
            context.close()
