"""Settings of an elastic job: the bounds that its coordinator keeps, and where its members find it (MLT_ELASTIC)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mlt._shared import variables
from mlt._shared.addresses import parse_target
from mlt.errors import ConfigError
from mlt.options.limits import MAX_RANKS

Kind = Literal["worker", "service"]
KINDS: tuple[Kind, Kind] = ("worker", "service")
VARIABLE = "MLT_ELASTIC"
DEFAULT_PORT = 29_700
WAIT_SECONDS = 60.0
# For the members of an earlier coordinator, which try to connect again twice a second.
SETTLE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Members of an epoch. Raises ConfigError if they contradict each other.

    ``first_workers``, ``first_services``: awaited for the first epoch (None: the minimum). ``wait_seconds``: for the
    minimum, and for members that have not asked for the next epoch after the first of them did. ``settle_seconds``:
    from the last joining to the first epoch. ``ends_when_empty``: services end when no worker is left, also if the last
    one died; otherwise they wait ``wait_seconds`` for new ones.
    """

    min_workers: int = 1
    max_workers: int = MAX_RANKS
    min_services: int = 0
    first_workers: int | None = None
    first_services: int | None = None
    wait_seconds: float = WAIT_SECONDS
    settle_seconds: float = SETTLE_SECONDS
    ends_when_empty: bool = False

    def __post_init__(self) -> None:
        first = self.min_workers if self.first_workers is None else self.first_workers
        if not 1 <= self.min_workers <= self.max_workers <= MAX_RANKS:
            raise ConfigError(
                f"the job has {self.min_workers} to {self.max_workers} workers (--min-workers, --max-workers): give "
                f"1 <= minimum <= maximum <= {MAX_RANKS}"
            )
        if not self.min_workers <= first <= self.max_workers:
            raise ConfigError(
                f"the job starts with {first} workers, and has {self.min_workers} to {self.max_workers} "
                "(--min-workers, --max-workers): start with a number between these"
            )
        if not 0 <= self.min_services <= MAX_RANKS - 1:
            raise ConfigError(f"min_services is {self.min_services}; give 0 to {MAX_RANKS - 1}")
        if not self.wait_seconds > 0:
            raise ConfigError(f"the time to wait for members is {self.wait_seconds:g} s; give more than 0")


def is_elastic(environ: Mapping[str, str] | None = None) -> bool:
    """Whether MLT_ELASTIC names the coordinator of a job for this process to join."""
    return variables.text(os.environ if environ is None else environ, VARIABLE) is not None


@dataclass(frozen=True, slots=True)
class Place:
    """Address and port of a job's membership coordinator."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, *, source: str = VARIABLE) -> Place:
        """Raises ConfigError that names ``source``.

        >>> str(Place.parse("10.0.0.1:29700"))
        '10.0.0.1:29700'
        """
        try:
            return cls(*parse_target(text, DEFAULT_PORT))
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}; it is the address of the job's membership coordinator") from None

    @classmethod
    def resolve(cls, given: str | None = None, environ: Mapping[str, str] | None = None) -> Place:
        """``given``, else MLT_ELASTIC. Raises ConfigError."""
        env = os.environ if environ is None else environ
        text = given if given is not None else variables.text(env, VARIABLE)
        if text is None:
            raise ConfigError(
                f"{VARIABLE} is not set: start the process with `mlt launch --min-workers`, or set it to HOST:PORT of "
                "the job's `mlt elastic`"
            )
        return cls.parse(text, source="coordinator" if given is not None else VARIABLE)
