"""Errors of a testbed. Every text says what is missing or wrong, and the fix."""

from __future__ import annotations

from mlt.errors import ErrorCode, MltError


class TestbedError(MltError):
    """A testbed could not be created, changed or found; a partly created one has been removed again."""

    __test__ = False  # keeps pytest from collecting it
    default_code = ErrorCode.SYSTEM


class BadTopologyError(TestbedError, ValueError):
    """An option or a topology file is invalid; nothing was changed."""

    default_code = ErrorCode.CONFIG


class MissingError(TestbedError):
    """This host lacks privileges, programs or kernel features; ``problems`` has one line for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
