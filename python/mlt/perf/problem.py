"""Errors of ``mlt perf``."""

from __future__ import annotations

from mlt.errors import ErrorCode, MltError

PROGRAM = "mlt perf"


class PerfError(MltError):
    """A measurement that failed; the text names the rank, the cause and the remedy."""

    default_code = ErrorCode.SYSTEM


class BadOptionError(PerfError, ValueError):
    """An option is invalid; nothing was started."""

    default_code = ErrorCode.CONFIG


class TransportMissingError(PerfError):
    """A requested transport is not installed or cannot run here."""
