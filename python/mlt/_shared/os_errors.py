"""The system's text of a failure, without the number that Python puts before it."""

from __future__ import annotations

import re


def cause_of(error: BaseException) -> str:
    """The text of an error; of the system's, the files and the cause, as ``/etc: Is a directory``."""
    if isinstance(error, OSError) and error.strerror is not None:
        files = " to ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        return f"{files}: {error.strerror}" if files else str(error.strerror)
    return re.sub(r"\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
