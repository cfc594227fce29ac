"""Sends and receives of a group over a real context of two ranks in one process; their pairing with any source."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
from checks import assert_names, names, until
from mlt.torch.transfers import Transfers
from mlt.torch.work import CallQueue

import mlt
from mlt._shared.ports import free_port


@contextmanager
def group(size: int) -> Iterator[tuple[Transfers, ...]]:
    """The transfers of every rank of a group."""
    port = free_port("127.0.0.1")

    def start(rank: int) -> mlt.Context:
        return mlt.Context(rank, size, 0, master_addr="127.0.0.1", rendezvous_port=port, secret=b"s3cret" * 4)

    with ThreadPoolExecutor(size) as pool:
        contexts = list(pool.map(start, range(size)))
    publisher = CallQueue("test")
    made = tuple(
        Transfers(context, tuple(range(size)), own=context.rank, tag=1 << 40, name="g", publisher=publisher)
        for context in contexts
    )
    yield made
    for one in made:
        one.finish()
    publisher.close()
    for context in contexts:
        context.close()


@pytest.fixture
def pair() -> Iterator[tuple[Transfers, ...]]:
    with group(2) as transfers:
        yield transfers


def test_recv__strided_tensor_and_empty_one(pair: tuple[Transfers, Transfers]) -> None:
    sender, receiver = pair
    strided = torch.zeros(3, 4).t()
    receive = receiver.recv(strided, 0, 1, 30)
    assert sender.send(torch.arange(12.0).reshape(4, 3), 1, 1, 30).wait()
    assert receive.wait()
    assert strided.tolist() == torch.arange(12.0).reshape(4, 3).tolist()
    assert receiver.recv(torch.zeros(0), 0, 1, 30).wait()
    assert sender.send(torch.zeros(0), 1, 1, 30).is_completed()


def test_wait__ends_at_its_own_timeout_and_may_be_repeated(pair: tuple[Transfers, Transfers]) -> None:
    sender, receiver = pair
    tensor = torch.zeros(2)
    receive = receiver.recv(tensor, 0, 5, 30)
    with pytest.raises(RuntimeError, match=names("rank 0", "tag 5", "0.01 s")):
        receive.wait(timedelta(milliseconds=10))
    assert not receive.is_completed()
    sender.send(torch.ones(2), 1, 5, 30)
    assert receive.wait(timedelta(seconds=30))
    assert tensor.tolist() == [1.0, 1.0]


def test_wait__ends_at_its_own_timeout_while_another_thread_waits_without(pair: tuple[Transfers, Transfers]) -> None:
    sender, receiver = pair
    for receive, tag in ((receiver.recv(torch.zeros(2), 0, 5, 30), 5), (receiver.recv_any(torch.zeros(2), 6, 30), 6)):
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(receive.wait)
            until(lambda receive=receive: receive._lock.locked())  # type: ignore[misc]
            with pytest.raises(RuntimeError, match=names("0.01 s", "wait again")):
                receive.wait(timedelta(milliseconds=10))
            assert not waits.done()
            sender.send(torch.ones(2), 1, tag, 30)
            assert waits.result(30)


def test_result__waits_and_has_the_tensors(pair: tuple[Transfers, Transfers]) -> None:
    sender, receiver = pair
    receive = receiver.recv(torch.zeros(2), 0, 0, 30)
    sender.send(torch.full((2,), 7.0), 1, 0, 30)
    (tensor,) = receive.result()
    assert tensor.tolist() == [7.0, 7.0]


def test_get_future__completes_without_a_wait(pair: tuple[Transfers, Transfers]) -> None:
    sender, receiver = pair
    future = receiver.recv(torch.zeros(2), 0, 0, 30).get_future()
    sender.send(torch.full((2,), 7.0), 1, 0, 30).get_future().wait()
    assert future.wait()[0].tolist() == [7.0, 7.0]


def test_get_future__callback_may_wait_for_a_later_transfer(pair: tuple[Transfers, Transfers]) -> None:
    sender, receiver = pair
    first, second = torch.zeros(2), torch.zeros(2)
    later = receiver.recv(second, 0, 1, 30)
    followed = later.get_future()
    chained = receiver.recv(first, 0, 0, 30).get_future().then(lambda _: (followed.wait(), later.wait())[1])
    sender.send(torch.ones(2), 1, 0, 30).wait()
    sender.send(torch.full((2,), 2.0), 1, 1, 30).wait()
    assert chained.wait() is True
    assert first.tolist() + second.tolist() == [1.0, 1.0, 2.0, 2.0]


def test_recv_any__comes_before_later_receives(pair: tuple[Transfers, Transfers]) -> None:
    sender, receiver = pair
    got = [torch.zeros(1) for _ in range(2)]
    anywhere = receiver.recv_any(got[0], 3, 30)
    assert not anywhere.is_completed()
    later = receiver.recv(got[1], 0, 3, 30)
    for value in (1.0, 2.0):
        sender.send(torch.tensor([value]), 1, 3, 30)
    assert later.wait()
    assert anywhere.source_rank() == 0
    assert [one.item() for one in got] == [1.0, 2.0]


def test_recv__takes_what_a_receive_from_any_source_left_posted() -> None:
    with group(3) as (first, second, receiver):
        got = [torch.zeros(1) for _ in range(3)]
        anywhere = receiver.recv_any(got[0], 3, 30)
        first.send(torch.tensor([1.0]), 2, 3, 30)
        assert anywhere.source_rank() == 0
        left = receiver.recv(got[1], 1, 3, 30)
        again = receiver.recv_any(got[2], 3, 30)
        second.send(torch.tensor([2.0]), 2, 3, 30)
        assert left.wait()
        first.send(torch.tensor([3.0]), 2, 3, 30)
        assert again.source_rank() == 0
        assert [one.item() for one in got] == [1.0, 2.0, 3.0]


def test_get_future__says_after_5_seconds_what_it_waits_for(
    pair: tuple[Transfers, Transfers], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "mlt"):
        received = pair[0].recv(torch.zeros(4), 1, 3, 30)
        future = received.get_future()  # as of DDP, which calls no wait()
        until(lambda: "still waiting" in caplog.text, seconds=20)
    assert_names(caplog.text, "recv from rank 1, tag 3", "rank 1 is connected")
    pair[1].send(torch.ones(4), 0, 3, 30).wait()
    assert future.wait()[0].tolist() == [1.0] * 4
    assert caplog.text.count("still waiting") == 1


def test_recv_any__another_size_is_refused(pair: tuple[Transfers, Transfers]) -> None:
    _, receiver = pair
    receiver.recv_any(torch.zeros(4), 9, 30)
    with pytest.raises(ValueError, match=names("tag 9", "16 bytes", "has 8")):
        receiver.recv_any(torch.zeros(2), 9, 30)
    with pytest.raises(ValueError, match=names("tag 9", "float32", "int32", "different tags")):
        receiver.recv_any(torch.zeros(4, dtype=torch.int32), 9, 30)


@pytest.mark.parametrize(
    ("sent", "received"),
    [(torch.float32, torch.uint8), (torch.float32, torch.int64), (torch.float16, torch.bfloat16)],
)
def test_recv__of_another_type_is_an_error_of_both_that_names_tag_peer_and_types(
    pair: tuple[Transfers, Transfers], sent: torch.dtype, received: torch.dtype
) -> None:
    sender, receiver = pair
    receive = receiver.recv(torch.zeros(16 // received.itemsize, dtype=received), 0, 11, 30)
    send = sender.send(torch.ones(16 // sent.itemsize, dtype=sent), 1, 11, 30)
    types = [str(one).removeprefix("torch.") for one in (sent, received)]
    for work, peer in ((send, "to rank 1"), (receive, "from rank 0")):
        with pytest.raises(RuntimeError, match=names(peer, "tag 11", *types)):
            work.wait()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool, torch.float8_e5m2, torch.uint16, torch.bfloat16])
def test_recv_any__of_every_type(pair: tuple[Transfers, Transfers], dtype: torch.dtype) -> None:
    sender, receiver = pair
    given, got, again = torch.ones(3).to(dtype), torch.zeros(3).to(dtype), torch.zeros(3).to(dtype)
    receive = receiver.recv_any(got, 4, 30)
    sender.send(given, 1, 4, 30)
    sender.send(given, 1, 4, 30)
    assert receive.source_rank() == 0
    assert receiver.recv(again, 0, 4, 30).wait()
    assert torch.equal(got.to(torch.complex64), given.to(torch.complex64))
    assert torch.equal(again.to(torch.complex64), given.to(torch.complex64))


def test_recv_any__says_after_5_seconds_that_it_waits(
    pair: tuple[Transfers, Transfers], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlt._waits.QUIET_SECONDS", 1)
    sender, receiver = pair
    got = torch.zeros(1)
    with caplog.at_level(logging.WARNING, "mlt"), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(receiver.recv_any(got, 3, 30).wait)
        until(lambda: "still waiting" in caplog.text)
        sender.send(torch.tensor([1.0]), 1, 3, 30)
        assert waiting.result()
    (line,) = [one.getMessage() for one in caplog.records if "still waiting" in one.getMessage()]
    assert_names(line, "rank 1", "recv from any rank", "tag 3", "group 'g'", "1 s")


def test_finish__withdraws_receives_from_any_source(pair: tuple[Transfers, Transfers]) -> None:
    _, receiver = pair
    receive = receiver.recv_any(torch.zeros(4), 9, 30)
    receiver.finish()
    with pytest.raises(RuntimeError, match=names("rank 0", "cancelled")):
        receive.wait()
