"""Errors between a policy and a switch; every message names the object, the cause and the fix."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from mlt._shared.structured_text import SyntaxProblem


def listed(names: Sequence[str], maximum: int = 4) -> str:
    """``"a, b, c, d and 64 more"``: keeps the message short for any list."""
    more = len(names) - maximum
    return ", ".join(names[:maximum]) + (f" and {more} more" if more > 0 else "")


def invalid_thresholds(low: int, high: int, percent: int) -> str:
    """``"invalid thresholds 9..5 at 0%: need 0 <= min <= max and 0 < probability <= 100"``."""
    return f"invalid thresholds {low}..{high} at {percent}%: need 0 <= min <= max and 0 < probability <= 100"


def not_json(text: str, error: SyntaxProblem) -> str:
    """``"not JSON at line 1: expected a value: 'hostname leaf1'"``."""
    lines = text.splitlines()
    at = lines[error.line - 1].strip() if error.line and error.line <= len(lines) else ""
    return f"{error}: {at[:40]!r}" if at else str(error)


class SwitchConfigError(Exception):
    """Base of this package's errors."""


class PolicyError(SwitchConfigError):
    """The policy file cannot be read, or breaks a rule of ``semantics``."""

    def __init__(self, source: str, problems: Sequence[str], lines: Sequence[int | None] = ()) -> None:
        """``lines``: of the file, one for each problem; None and those that are left out are unknown."""
        self.source = source
        self.problems = tuple(problems)
        places = (source if line is None else f"{source}:{line}" for line in lines)
        found = zip_longest(places, self.problems, fillvalue=source)
        super().__init__("\n".join(f"{place}: {problem}" for place, problem in found))


class TargetError(SwitchConfigError):
    """No switch system, release or platform has that name."""


class CannotExpressError(SwitchConfigError):
    """A target cannot express the policy, and the policy does not accept that."""

    def __init__(self, target: str, problems: Sequence[str]) -> None:
        self.target = target
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{target}: {problem}" for problem in self.problems))


class ParseError(SwitchConfigError):
    """The target's parser cannot read a configuration text."""

    def __init__(self, target: str, where: str, cause: str) -> None:
        self.target = target
        self.where = where
        self.cause = cause
        super().__init__(f"{target}: {where}: {cause}")


class MissingToolError(SwitchConfigError):
    """A generator or validator needs a package or program that is not installed."""
