"""Announcement of a rank to rank 0 at the rendezvous: type and range of every field are validated.

By hand, because a schema library takes longer to load than a job of two ranks takes to form.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlt._shared.json_lines import object_of

MAX_HOST_LENGTH = 255
MAX_CLASSES = 8
MAX_FAILURE_LENGTH = 500  # of failure_report.MAX_TEXT


@dataclass(frozen=True, slots=True)
class Announcement:
    """A rank's position in its job, and where it listens. ``dscp``: of control, then of the classes; empty if the rank
    does not report it. ``paths``: their number; 0 if it does not report it. ``connects_on_use``: whether it connects on
    first use. ``checksums``: whether its transfers have checksums; None if it does not report it."""

    job: str
    rank: int
    size: int
    services: int
    host: str
    port: int
    dscp: tuple[int, ...]
    paths: int
    connects_on_use: bool
    checksums: bool | None

    @classmethod
    def parse(cls, content: str) -> Announcement:
        """Raises ValueError for an invalid announcement."""
        said = object_of(content)
        dscp = said.get("dscp", ())
        if "dscp" in said and (type(dscp) is not list or not 2 <= len(dscp) <= MAX_CLASSES + 1):
            raise ValueError("dscp is not a list of code points")
        host = _text(said.get("host"), MAX_HOST_LENGTH)
        if not host.isprintable():  # it is part of error texts about unreachable ranks
            raise ValueError("a host is not an address")
        return cls(
            job=_text(said.get("job"), 1 << 20),
            rank=_number(said.get("rank"), 0, 2**16 - 1),
            size=_number(said.get("size"), 0, 2**16 - 1),
            services=_number(said.get("services"), 0, 2**16 - 1),
            host=host,
            port=_number(said.get("port"), 1, 2**16 - 1),
            dscp=tuple(_number(one, 0, 63) for one in dscp),
            paths=_number(said.get("paths", 0), 0, 2**16 - 1),
            connects_on_use=_flag(said.get("connects_on_use", False)),
            checksums=_flag(said["checksums"]) if "checksums" in said else None,
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """A process of the job cannot join it. ``rank``: -1 if it does not know its own; ``text``: its error."""

    job: str
    rank: int
    text: str

    @classmethod
    def parse(cls, content: str) -> Failure | None:
        """None if ``content`` is no report of a failure. Raises ValueError for an invalid one."""
        said = object_of(content)
        if "failed" not in said:
            return None
        return cls(
            job=_text(said.get("job"), 1 << 20),
            rank=_number(said.get("rank"), -1, 2**16 - 1),
            text=_text(said.get("failed"), MAX_FAILURE_LENGTH),
        )


def _number(value: object, minimum: int, maximum: int) -> int:
    # An exact type: True, 1.0 and 1e999 are numbers in JSON too.
    if type(value) is not int or not minimum <= value <= maximum:
        raise ValueError(f"a number is not in {minimum} to {maximum}")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("a setting is neither true nor false")
    return value


def _text(value: object, maximum: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= maximum:
        raise ValueError(f"a text has not 1 to {maximum} characters")
    return value
