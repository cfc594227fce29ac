"""Output files that a caller names: checked before the work, and written whole or not at all."""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlt._shared.patience import Patience

READER_SECONDS = 30  # within them a program has to read a named pipe


class UnwritableError(ValueError):
    """An output file or folder that cannot be written, found before the work starts."""

    def __init__(self, name: object, reason: str) -> None:
        printable = str(name).encode("utf-8", "backslashreplace").decode()
        super().__init__(f"{printable}: cannot be written: {reason}")
        self.reason = reason


class WriteFailedError(OSError):
    """A write that failed after the work, such as on a full disk; ``filename`` is the file, which is unchanged."""


def check_file(path: Path, *, suffixes: Sequence[str] = ()) -> None:
    """Reject a file that cannot be written, or whose folder does not exist. Changes nothing.

    ``suffixes``: the formats, such as ".png"; any if empty.

    Raises:
        UnwritableError: a folder, no folder to be in, an unknown format, or no permission.
    """
    if suffixes and path.suffix.lower() not in suffixes:
        formats = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}" if len(suffixes) > 1 else suffixes[0]
        found = f"the format {path.suffix} is unknown" if path.suffix else "its name has no suffix"
        raise UnwritableError(path, f"{found}; use {formats}")
    try:
        target = _resolved(path)
        if target.is_dir():
            raise UnwritableError(path, "it is a folder; name a file")
        if target.exists() and not os.access(target, os.W_OK):
            raise UnwritableError(path, os.strerror(errno.EACCES))
        if not _is_special(target):
            _probe(target.parent)
    except OSError as error:
        raise UnwritableError(path, error.strerror or str(error)) from None
    except RuntimeError as error:  # a loop of symbolic links, in older Python
        raise UnwritableError(path, str(error)) from None


def _resolved(path: Path) -> Path:
    target = path.resolve()
    if target.is_symlink():  # a loop, at which Python 3.13 raises no error
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target


def check_folder(path: Path) -> None:
    """Reject a folder in which files could not be written. Makes no folder.

    Raises:
        UnwritableError: a file, or no permission.
    """
    try:
        if path.exists() and not path.is_dir():
            raise UnwritableError(path, "it is a file; name a folder")
        _probe(_existing(_resolved(path)))
    except OSError as error:
        raise UnwritableError(path, error.strerror or str(error)) from None


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file's content at once, or leave the file as it is. Makes missing folders.

    Keeps permissions and follows symbolic links; devices and pipes are written directly.

    Raises:
        WriteFailedError: the disk is full, the folder is not writable any more, or no program reads a named pipe.
    """
    try:
        target = _resolved(path)
        if _is_special(target):
            descriptor = _opened(target)
            try:
                _write_all(descriptor, content)
            finally:
                os.close(descriptor)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, content)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise WriteFailedError(error.errno, error.strerror or str(error), str(path)) from None


def _opened(target: Path) -> int:
    """A device or pipe, open for writing; of a named pipe once a program reads it, within ``READER_SECONDS``."""
    deadline, patience = time.monotonic() + READER_SECONDS, Patience()
    while True:
        try:
            descriptor = os.open(target, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO or not target.is_fifo():
                raise
            if time.monotonic() >= deadline:
                text = f"no program reads this named pipe ({READER_SECONDS} s waited)"
                raise OSError(errno.ENXIO, text) from None
        else:
            os.set_blocking(descriptor, True)
            return descriptor
        patience.ask(lambda: f"still waiting for a reader of {target} (times out after {READER_SECONDS} s)")
        time.sleep(0.02)


def write_text(path: Path, text: str) -> None:
    """``write_bytes`` of UTF-8 text."""
    write_bytes(path, text.encode("utf-8"))


def write_figure(path: Path, figure: Any, **options: Any) -> None:
    """``write_bytes`` of a figure of matplotlib's, in the format of the suffix; ``options`` are savefig's."""
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix.removeprefix(".").lower(), **options)
    write_bytes(path, content.getvalue())


def _replace(target: Path, content: bytes) -> None:
    scratch = _scratch_in(target.parent)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            if target.exists():
                os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
            _write_all(descriptor, content)
            os.fsync(descriptor)  # some file systems report a full disk only here
        finally:
            os.close(descriptor)
        os.replace(scratch, target)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    while not folder.exists():
        folder = folder.parent
    return folder


def _probe(folder: Path) -> None:
    """Make and remove a file in the folder. Raises OSError."""
    scratch = _scratch_in(folder)
    os.close(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    scratch.unlink()


def _scratch_in(folder: Path) -> Path:
    return folder / f".mlt-{secrets.token_hex(8)}.tmp"


def _is_special(target: Path) -> bool:
    return target.exists() and not target.is_file() and not target.is_dir()
