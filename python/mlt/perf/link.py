"""JSON objects, one a line, over a connected stream socket. Nothing here is timed and no tensor passes."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from typing import Any

from mlt._shared.json_lines import line_of
from mlt.perf.problem import PerfError

Message = dict[str, Any]
MOST_LINE_BYTES = 64 << 20
MOST_HELLO_BYTES = 64 << 10
# A network that is gone without a word is noticed after these seconds, both while something is unacknowledged and idle.
GONE_SECONDS = 9
_MAPPED = "::ffff:"


class StrangerError(PerfError):
    """What is at the other end does not talk like mlt perf."""


class SilenceError(StrangerError):
    """Nothing came in time."""


class GoneError(StrangerError):
    """The other end hung up without a word."""


class Link:
    """One end. ``send`` from any thread, ``receive`` from one."""

    def __init__(self, connection: socket.socket, received: bytes = b"") -> None:
        connection.settimeout(None)
        self._socket = connection
        self._lock = threading.Lock()
        self._received = bytearray(received)

    def watch_network(self) -> None:
        """Have a TCP connection end in error when the network between is gone."""
        options = (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, GONE_SECONDS // 3),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, GONE_SECONDS // 3),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_SECONDS * 1000),
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        )
        for level, name, value in options:
            self._socket.setsockopt(level, name, value)

    def send(self, message: Message) -> None:
        """Raises OSError when the other end is gone."""
        line = line_of(message)
        with self._lock:
            self._socket.sendall(line)

    def receive(self, *, timeout: float | None = None, limit: int = MOST_LINE_BYTES) -> Message | None:
        """The next message, whole within ``timeout`` seconds; None at the end, an orderly one or not.

        Raises StrangerError for anything but a message.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (message := self._take(limit)) is None:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            try:
                if left == 0.0:
                    raise TimeoutError
                self._socket.settimeout(left)
                piece = self._socket.recv(1 << 16)
            except TimeoutError:
                raise SilenceError(f"no answer within {timeout:g} s: is it mlt perf that listens there?") from None
            except OSError:  # also: closed meanwhile, by the thread that owns it
                return None
            if not piece:
                return None
            self._received += piece
        return message

    def receive_ready(self, *, limit: int) -> tuple[Message | None, bool]:
        """Reads once what has come: a message if one is whole, and whether more may come. Raises StrangerError."""
        try:
            piece = self._socket.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None, True
        except OSError:
            return None, False
        self._received += piece
        return self._take(limit), bool(piece)

    def _take(self, limit: int) -> Message | None:
        end = self._received.find(b"\n")
        if end < 0:
            if len(self._received) > limit:
                raise StrangerError("what answers there is not mlt perf: it sent an endless line")
            return None
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise StrangerError("what answers there is not mlt perf: it sent something else than messages")
        return message

    def close(self) -> None:
        """Wakes a ``receive`` under way, too."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    @property
    def local_host(self) -> str:
        """The address that the other side sees."""
        return str(self._socket.getsockname()[0]).removeprefix(_MAPPED)

    @property
    def peer_host(self) -> str:
        """The other side's address."""
        return str(self._socket.getpeername()[0]).removeprefix(_MAPPED)
