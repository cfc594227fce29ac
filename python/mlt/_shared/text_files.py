"""Text files that a caller names: UTF-8, and one wording of why a file cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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


def read_text(path: str | Path) -> str:
    """The text of a file.

    Raises:
        UnreadableError: missing, a folder, not readable, or not UTF-8.
    """
    with reading(path):
        return Path(path).read_text(encoding="utf-8")
