"""Options of summation services and of the workers that use them. An argument that is None comes from its variable.

``max_dead_workers``: workers that may die or leave while the sums continue without their share (0: none; one worker
must be left). ``max_wait``: seconds from the first complete push of a round to its end without the pushes that are
missing (no limit by default). ``max_dead_services``, of workers: services that may die while the others take over (0:
none; one must be left). docs/summation.md has what follows from each.

    mlt.SummationService(context, max_dead_workers=1)  # or MLT_MAX_DEAD_WORKERS=1
    mlt.PushPull(context, max_dead_services=1)  # or MLT_MAX_DEAD_SERVICES=1
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from mlt._shared import variables
from mlt.errors import ConfigError
from mlt.options import times
from mlt.options.limits import MAX_RANKS


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Bounds on the workers that a service sums without. ``max_wait_ns``: 0 is no limit."""

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
    dead = _count(max_dead_workers, "max_dead_workers", "MLT_MAX_DEAD_WORKERS", env)
    source = "max_wait"
    if max_wait is None:
        max_wait, source = variables.time(env, "MLT_MAX_WAIT"), "MLT_MAX_WAIT"
    return ServiceOptions(dead, 0 if max_wait is None else times.nanoseconds(max_wait, source))


def max_dead_services(given: int | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Take what is None from MLT_MAX_DEAD_SERVICES. Raises ConfigError that names the argument or variable.

    >>> max_dead_services(None, {"MLT_MAX_DEAD_SERVICES": "1"})
    1
    """
    return _count(given, "max_dead_services", "MLT_MAX_DEAD_SERVICES", os.environ if environ is None else environ)


def _count(given: int | None, name: str, variable: str, environ: Mapping[str, str]) -> int:
    if given is None:
        return variables.integer(environ, variable, maximum=MAX_RANKS) or 0
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= MAX_RANKS:
        raise ConfigError(f"{name} is {given!r}; it is an integer from 0 to {MAX_RANKS}")
    return given
