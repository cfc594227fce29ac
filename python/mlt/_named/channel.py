"""Messages of any length between two ranks, in order, over the sends and receives of one tag.

A message is one frame of fixed size, which begins with the length; what does not fit follows in a second transfer.
"""

from __future__ import annotations

import json
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from mlt.errors import MltError

if TYPE_CHECKING:
    from mlt.context import Context
    from mlt.operation import Operation

TAG: Final = (1 << 62) + 0x6E616D65  # no tag of a caller of this context
OVERTAKING_TAG: Final = TAG + (1 << 40)  # of answers that overtake others; sums of ``shared_sum`` have those between
FRAME_BYTES: Final = 1024
_LENGTH: Final = struct.Struct("<I")
# A rank may compute for hours before it submits the next tensor; a rank that is gone is noticed all the same.
FOREVER_SECONDS: Final = 3e8


class Outbox:
    """Sends messages to one rank; safe to use from any thread. Raises MltError."""

    def __init__(self, context: Context, peer: int, tag: int = TAG) -> None:
        self._context = context
        self._peer = peer
        self._tag = tag
        self._lock = threading.Lock()
        self._in_progress: deque[Operation] = deque()

    def send(self, message: Any) -> Operation:
        """Start sending what JSON can express; the operation completes last."""
        text = json.dumps(message, separators=(",", ":")).encode()
        frame = (_LENGTH.pack(len(text)) + text[: FRAME_BYTES - _LENGTH.size]).ljust(FRAME_BYTES, b"\0")
        rest = text[FRAME_BYTES - _LENGTH.size :]
        with self._lock:
            while self._in_progress and self._in_progress[0].done():
                self._in_progress.popleft().wait()
            for part in (frame, rest):
                if part:
                    posted = self._context.post_send(part, to=self._peer, tag=self._tag, timeout=FOREVER_SECONDS)
                    self._in_progress.append(posted)
            return posted


class RequestQueue:
    """Passes requests on in order. While a message is on its way, further requests wait, and leave together.

    ``post`` returns the operation of its message, None if there is none.
    """

    def __init__(self, post: Callable[[list[Any]], Operation | None]) -> None:
        self._post = post
        self._lock = threading.Lock()
        self._waiting: list[Any] = []
        self._is_posting = False

    def add(self, request: Any) -> None:
        with self._lock:
            self._waiting.append(request)
            if self._is_posting:
                return
            self._is_posting = True
        self._flush()

    def _flush(self, _: object = None) -> None:
        while True:
            with self._lock:
                requests, self._waiting = self._waiting, []
                if not requests:
                    self._is_posting = False
                    return
            operation = self._post(requests)
            if operation is not None:
                with suppress(MltError):  # closed: nothing leaves any more
                    operation.add_done_callback(self._flush)
                return


class Inbox:
    """Receives the messages of one rank."""

    def __init__(self, context: Context, peer: int, tag: int = TAG) -> None:
        self._context = context
        self._peer = peer
        self._tag = tag

    def receive(self) -> Any:
        """The next message; blocks. Raises MltError."""
        frame = bytearray(FRAME_BYTES)
        self._post(frame).expect_idle().wait()
        rest = _rest_of(frame)
        if rest:
            self._post(rest).wait()
        return _decode(frame, rest)

    def listen(self, on_message: Callable[[Any], None], on_error: Callable[[MltError], None]) -> None:
        """Call ``on_message`` with each message, and ``on_error`` once at the end, on the context's callback thread."""
        frame = bytearray(FRAME_BYTES)

        def framed(operation: Operation) -> None:
            try:
                operation.wait()
                rest = _rest_of(frame)
                if rest:
                    self._post(rest).add_done_callback(lambda operation: ended(operation, rest))
                else:
                    ended(operation, rest)
            except MltError as error:
                on_error(error)

        def ended(operation: Operation, rest: bytearray) -> None:
            try:
                operation.wait()
                on_message(_decode(frame, rest))  # before the next may arrive
                self._post(frame).add_done_callback(framed)
            except MltError as error:
                on_error(error)

        self._post(frame).add_done_callback(framed)

    def _post(self, buffer: bytearray) -> Operation:
        return self._context.post_recv(buffer, from_=self._peer, tag=self._tag, timeout=FOREVER_SECONDS)


def _rest_of(frame: bytearray) -> bytearray:
    """A buffer for what did not fit in the frame."""
    (length,) = _LENGTH.unpack_from(frame)
    return bytearray(max(length - (FRAME_BYTES - _LENGTH.size), 0))


def _decode(frame: bytearray, rest: bytearray) -> Any:
    (length,) = _LENGTH.unpack_from(frame)
    return json.loads((frame[_LENGTH.size :] + rest)[:length])
