"""The error that a user of ``mlt perf`` reads."""

from __future__ import annotations

from mlt.errors import ErrorCode, MltError

PROGRAM = "mlt perf"


class PerfError(MltError):
    """A measurement that could not be made; the text names the rank, the cause and the way out."""

    default_code = ErrorCode.SYSTEM


class BadOptionError(PerfError, ValueError):
    """An option is wrong; nothing was started."""

    default_code = ErrorCode.CONFIG


class TransportMissingError(PerfError):
    """Another transport was asked for that is not installed or cannot run here."""

    default_code = ErrorCode.CONFIG
