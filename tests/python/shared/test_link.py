"""The link of JSON lines: whole messages in time, bounded in length, and the end of it named."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from mlt._shared.link import LineTooLongError, Link, LinkClosedError, LinkError, LinkTimeoutError


@pytest.fixture
def ends() -> Iterator[tuple[Link, socket.socket]]:
    here, there = socket.socketpair()
    with there:
        link = Link(here, "mlt perf")
        yield link, there
        link.close()


def test_receive__puts_pieces_together(ends: tuple[Link, socket.socket]) -> None:
    link, there = ends
    there.sendall(b'{"a":1}\n{"b"')
    assert link.receive(timeout=1) == {"a": 1}
    assert link.receive_ready() is None
    threading.Timer(0.1, there.sendall, (b':2}\n{"c":3}\n',)).start()
    assert link.receive(timeout=5) == {"b": 2}
    assert link.take() == {"c": 3}
    assert link.take() is None


def test_receive__a_message_must_be_whole_in_time(ends: tuple[Link, socket.socket]) -> None:
    link, there = ends
    ended = threading.Event()

    def drip() -> None:
        while not ended.wait(0.05):
            there.send(b"{")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        began = time.monotonic()
        with pytest.raises(LinkTimeoutError, match=r"0\.4 s.*mlt perf"):
            link.receive(timeout=0.4)
        assert time.monotonic() - began < 5
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"GET / HTTP/1.1\r\n", LinkError), (b"[1]\n", LinkError), (b"[" * 100_000 + b"\n", LinkError),
        (b"x" * 101, LineTooLongError),
    ],
)  # fmt: skip
def test_receive__unknown_senders_are_distinguished(
    ends: tuple[Link, socket.socket], said: bytes, error: type[LinkError]
) -> None:
    link, there = ends
    threading.Thread(target=there.sendall, args=(said,)).start()
    with pytest.raises(error, match="not mlt perf"):
        link.receive(timeout=5, limit=1 << 20 if b"\n" in said else 100)


def test_receive__an_end_is_named_and_wakes_waiting_threads(ends: tuple[Link, socket.socket]) -> None:
    link, there = ends
    threading.Timer(0.1, there.close).start()
    with pytest.raises(LinkClosedError):
        link.receive(timeout=5)
    with pytest.raises(LinkClosedError):
        link.send({"a": 1})


def test_close__wakes_waiting_threads(ends: tuple[Link, socket.socket]) -> None:
    link, _ = ends
    threading.Timer(0.1, link.close).start()
    with pytest.raises(LinkClosedError):
        link.receive(timeout=5)
    with pytest.raises(LinkClosedError):
        link.receive(timeout=5)


def test_send__a_peer_that_does_not_read_times_out(ends: tuple[Link, socket.socket]) -> None:
    link, _ = ends
    with pytest.raises(LinkClosedError, match="does not read"):
        link.send({"a": "x" * 10_000_000}, timeout=0.2)


def test_send__arrives_whole_though_it_fills_the_socket(ends: tuple[Link, socket.socket]) -> None:
    link, there = ends
    text = "x" * 3_000_000
    threading.Thread(target=link.send, args=({"a": text},)).start()
    assert Link(there).receive(timeout=10) == {"a": text}


def test_send_some__sends_what_the_connection_accepts_and_never_waits(ends: tuple[Link, socket.socket]) -> None:
    link, there = ends
    data = bytes(16 << 20)
    sent = link.send_some(data)
    assert 0 < sent < len(data)
    while link.send_some(data):
        pass
    assert there.recv(1 << 20)
    there.close()
    with pytest.raises(LinkClosedError):
        link.send_some(data)
