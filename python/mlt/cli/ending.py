"""The end of every command: its exit status, and standard streams that are closed or have no reader.

Exit statuses: 0, success; 1, the command failed or found a problem; 2, the command line, a variable or an input file is
wrong; 126, the program to run cannot be executed; 127, it was not found; 130, interrupted; 141, the reader of the
output is gone; 128 and the number of another signal that ended it.
Imports nothing but the standard library, so that the entry point stays light.
"""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False  # as in typing, which takes longer to import than all of the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

FAILED, USAGE, NOT_EXECUTABLE, NOT_FOUND, INTERRUPTED, UNREAD = 1, 2, 126, 127, 130, 141


class OutputError(Exception):
    """Standard output cannot be written. No OSError: commands report those as errors of their own files."""


class _StandardOutput(io.FileIO):
    def write(self, data: Any, /) -> Any:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"standard output cannot be written: {error.strerror}") from None


def open_streams() -> None:
    """Make failures of standard output known as such, and reopen the standard streams that the caller closed.

    The next file or socket would get the number of a closed one. Input is then empty, errors are discarded, and output
    fails when it is written, as in other programs.
    """
    for number, (name, flags) in enumerate((("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 (open until the end)
    sys.stderr = sys.stderr or open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
    old = sys.stdout
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_StandardOutput(1, "w", closefd=False)),
        encoding=old.encoding if old else None,
        errors=old.errors if old else None,
        line_buffering=os.isatty(1),
        write_through=bool(getattr(old, "write_through", False)),
    )


def interrupted(error: BaseException | None) -> int:
    """The exit status after a KeyboardInterrupt, or the signal that ``interruptible`` turned into one."""
    return int(getattr(error, "status", INTERRUPTED))


def finish(command: Callable[[], object]) -> NoReturn:
    """Call ``command`` and exit with the status that it returns or, if that is neither number nor text, with 0."""
    try:
        try:
            status = command()
        except SystemExit as ended:
            status = ended.code
        sys.stdout.flush()
    except BrokenPipeError:
        silence()
        raise SystemExit(UNREAD) from None
    except OutputError as error:
        silence()
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(FAILED) from None
    except KeyboardInterrupt as error:
        raise SystemExit(interrupted(error)) from None
    raise SystemExit(status if isinstance(status, int | str) else 0)


def silence() -> None:
    """Connect standard output to nothing: the interpreter would flush into the closed pipe again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
