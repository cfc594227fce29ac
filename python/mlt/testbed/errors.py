"""What can go wrong in a testbed. Every text says what is missing or wrong and the way out."""

from __future__ import annotations

from mlt.errors import ErrorCode, MltError


class TestbedError(MltError):
    """A testbed could not be made, changed or found; whatever was begun has been removed again."""

    __test__ = False  # not a class of tests, whatever pytest makes of its name
    default_code = ErrorCode.SYSTEM


class BadTopologyError(TestbedError, ValueError):
    """An option or a topology file is wrong; nothing was touched."""

    default_code = ErrorCode.CONFIG


class MissingError(TestbedError):
    """This machine lacks privileges, programs or kernel features; ``problems`` has one line for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
