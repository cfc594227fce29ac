"""JSON objects, one per line, over a connected stream socket: messages between the processes and hosts of a run.

Time and length of everything are limited. Absent: measurements and tensors.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from typing import Any

from mlt._shared.json_lines import line_of, object_of
from mlt.errors import MltError

Message = dict[str, Any]
MAX_LINE_BYTES = 64 << 20
# Time after which a link to an unreachable host fails, idle or with unacknowledged data.
GONE_SECONDS = 9
_PIECE = 1 << 16
_MAPPED = "::ffff:"


class LinkError(MltError):
    """The link failed: the other end sent something invalid, nothing in time, or closed the connection."""


class LinkTimeoutError(LinkError):
    """No message arrived in time."""


class LinkClosedError(LinkError):
    """The other end closed the connection, or the network between failed."""


class LineTooLongError(LinkError):
    """A line exceeds the length limit."""


class Link:
    """One end. ``send`` from any thread, the rest from one.

    ``program``: the program expected at the other end, for errors. ``received``: bytes already read from it.
    """

    def __init__(self, connection: socket.socket, program: str = "mlt", received: bytes = b"") -> None:
        connection.settimeout(None)
        self._socket = connection
        self._program = program
        self._lock = threading.Lock()
        self._received = bytearray(received)

    def watch_network(self) -> None:
        """Have a TCP connection end in error when the network between fails."""
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

    def send(self, message: Message, *, timeout: float | None = None) -> None:
        """Raises LinkClosedError; also if the other end has not read enough after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        rest = memoryview(line_of(message))
        with self._lock:
            while rest:
                try:
                    rest = rest[self._socket.send(rest, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    if not self._is_ready(select.POLLOUT, deadline):
                        raise LinkClosedError("it does not read its messages") from None
                except OSError as error:
                    raise _broken(error) from None

    def send_some(self, data: bytes | bytearray) -> int:
        """Send as much of ``data``, which is part of lines, as the connection accepts at once; returns its length.

        Raises LinkClosedError.
        """
        with self._lock:
            try:
                return self._socket.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return 0
            except OSError as error:
                raise _broken(error) from None

    def send_last(self, message: Message) -> None:
        """Send as much of ``message`` as the connection accepts at once: for the reason of a rejection, which no caller
        waits for."""
        with contextlib.suppress(OSError):
            self._socket.send(line_of(message), socket.MSG_DONTWAIT)

    def receive(self, *, timeout: float | None = None, limit: int = MAX_LINE_BYTES) -> Message:
        """The next message, complete within ``timeout`` seconds.

        Raises LinkTimeoutError, LinkClosedError or, for anything but a message, LinkError.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (message := self.take(limit)) is None:
            if not self._is_ready(select.POLLIN, deadline):
                raise LinkTimeoutError(f"it sent nothing for {timeout:g} s; check that it is {self._program}")
            self._read()
        return message

    def receive_ready(self, *, limit: int = MAX_LINE_BYTES) -> Message | None:
        """Read what has arrived; returns a message if one is complete. Raises as ``receive`` does."""
        self._read()
        return self.take(limit)

    def take(self, limit: int = MAX_LINE_BYTES) -> Message | None:
        """A message if one has been read completely. Raises LinkError."""
        end = self._received.find(b"\n")
        if end < 0:
            if len(self._received) > limit:
                raise LineTooLongError(f"the other program is not {self._program}: it sent an endless line")
            return None
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        try:
            return object_of(line)
        except ValueError:
            text = (
                f"the other program is not {self._program}: it sent no JSON object; does another program use the port?"
            )
            raise LinkError(text) from None

    def _read(self) -> None:
        try:
            piece = self._socket.recv(_PIECE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:  # also: closed meanwhile, by the thread that owns it
            raise _broken(error) from None
        if not piece:
            raise LinkClosedError("it closed the connection")
        self._received += piece

    def _is_ready(self, event: int, deadline: float | None) -> bool:
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        poll = select.poll()
        try:
            poll.register(self._socket, event)
        except ValueError:
            raise LinkClosedError("the connection was closed here") from None
        return bool(poll.poll(None if left is None else left * 1_000))

    def close(self) -> None:
        """Also wakes a ``receive`` in progress."""
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


def _broken(error: OSError) -> LinkClosedError:
    return LinkClosedError(f"the connection broke: {error.strerror or error}")
