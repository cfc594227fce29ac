"""Text files that a caller names: UTF-8, and one wording of why a file cannot be read."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Longer files are no input of ours; one that never ends, such as /dev/zero, must not fill the memory.
MAX_BYTES = 64 << 20


class UnreadableError(ValueError):
    """A file that cannot be read as text; ``reason`` is the message without the file's name."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: cannot be read: {reason}")
        self.reason = reason


@contextmanager
def reading(name: object) -> Iterator[None]:
    """Within this, a failure to read or decode is an UnreadableError about ``name``."""
    try:
        yield
    except OSError as error:
        raise UnreadableError(str(name), error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        raise UnreadableError(str(name), f"not UTF-8 text ({error.reason} at byte {error.start:,})") from None


def read_input(path: str | Path, maximum: int, check: Callable[[os.stat_result], object] = lambda found: None) -> bytes:
    """The first ``maximum`` bytes of a file, after ``check`` of what was opened.

    Raises:
        OSError: missing, a folder, not readable, or a pipe without a writer, for which it does not wait.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        check(found)
        content = b""
        if stat.S_ISFIFO(found.st_mode):
            with suppress(BlockingIOError):  # there is a writer, who has written nothing yet
                content = os.read(descriptor, 1)
                if not content:
                    raise OSError(errno.ENXIO, "no process writes into this pipe")
        os.set_blocking(descriptor, True)
        pieces = [content]
        left = maximum - len(content)
        while left > 0 and (piece := os.read(descriptor, min(left, 1 << 20))):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def read_text(path: str | Path) -> str:
    """The text of a file.

    Raises:
        UnreadableError: missing, a folder, not readable, a pipe without a writer, longer than 64 MiB, or not
            UTF-8.
    """
    with reading(path):
        content = read_input(path, MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise UnreadableError(str(path), f"longer than {MAX_BYTES >> 20} MiB")
        return content.decode("utf-8")
