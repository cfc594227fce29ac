"""Options of a summation service. An argument that is None comes from its variable.

``max_dead_workers``: workers that may die or leave while the sums continue without their share (0: none; one worker
must be left). ``max_wait``: seconds from the first complete push of a round to its end without the pushes that are
missing (no limit by default). docs/summation.md has what follows from each.

    mlt.SummationService(context, max_dead_workers=1)  # or MLT_MAX_DEAD_WORKERS=1
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from mlt._shared import variables
from mlt.errors import ConfigError
from mlt.job.configuration import MAX_RANKS
from mlt.options import times


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How a service treats workers that die or are late. ``max_wait_ns``: 0 is no limit."""

    max_dead_workers: int = 0
    max_wait_ns: int = 0


def resolve(
    max_dead_workers: int | None = None, max_wait: float | None = None, environ: Mapping[str, str] | None = None
) -> ServiceOptions:
    """Take what is None from MLT_MAX_DEAD_WORKERS and MLT_MAX_WAIT. Raises ConfigError that names the argument or
    variable.

    >>> resolve(1, 0.5, {})
    ServiceOptions(max_dead_workers=1, max_wait_ns=500000000)
    """
    env = os.environ if environ is None else environ
    if max_dead_workers is None:
        max_dead_workers = variables.integer(env, "MLT_MAX_DEAD_WORKERS", maximum=MAX_RANKS) or 0
    if isinstance(max_dead_workers, bool) or not isinstance(max_dead_workers, int):
        raise ConfigError(f"max_dead_workers is {max_dead_workers!r}; it is an integer")
    if not 0 <= max_dead_workers <= MAX_RANKS:
        raise ConfigError(f"max_dead_workers is {max_dead_workers}; it is from 0 to {MAX_RANKS}")
    source = "max_wait"
    if max_wait is None:
        max_wait, source = variables.time(env, "MLT_MAX_WAIT"), "MLT_MAX_WAIT"
    return ServiceOptions(max_dead_workers, 0 if max_wait is None else times.nanoseconds(max_wait, source))
