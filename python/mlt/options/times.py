"""Times of one rank, in seconds. An argument that is None comes from its variable, which also takes a unit.

``operation_timeout``: limit of an operation that sets none (300 s). ``connect_timeout``: limit of the start of the job
(60 s). ``peer_timeout``: silence after which a peer has failed (3 s). ``suspended_timeout``: the same for a peer whose
host acknowledges what is sent to it (30 s, or ``peer_timeout`` if that is longer): its process is stopped (SIGSTOP, a
debugger, a frozen container). A process that died is noticed at once.

    mlt.Context(peer_timeout=20)  # or MLT_PEER_TIMEOUT=20s
"""

from __future__ import annotations

from collections.abc import Mapping

from mlt._shared import variables
from mlt._shared.units import MAX_SECONDS
from mlt.errors import ConfigError

VARIABLES = {
    "operation_timeout": "MLT_OPERATION_TIMEOUT",
    "connect_timeout": "MLT_CONNECT_TIMEOUT",
    "peer_timeout": "MLT_PEER_TIMEOUT",
    "suspended_timeout": "MLT_SUSPENDED_TIMEOUT",
}
CONNECT_SECONDS = 60.0
# Below it, what follows from them (heartbeats, pauses between attempts) would be 0.
_MIN_SECONDS = {"peer_timeout": 1e-3, "suspended_timeout": 1e-3}


def resolve(given: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, float]:
    """The times in ``given``; those that are None there come from the environment; the others are left out.

    Raises ConfigError that names the argument or the variable.
    """
    chosen: dict[str, float] = {}
    for name, variable in VARIABLES.items():
        value = given.get(name)
        source = name
        if value is None:
            value, source = variables.time(environ, variable), variable
        if value is not None:
            chosen[name] = _seconds(value, source, minimum=_MIN_SECONDS.get(name, 0.0))
    return chosen


def nanoseconds(seconds: float, name: str) -> int:
    """``seconds``, above 0 and 9e9 at most, as nanoseconds. Raises ConfigError that names ``name``."""
    return max(round(_seconds(seconds, name) * 1e9), 1)


def limit_ns(seconds: float | None, name: str = "timeout") -> int:
    """``nanoseconds`` of an operation's limit; 0, the context's default, for None."""
    return 0 if seconds is None else nanoseconds(seconds, name)


def _seconds(value: object, name: str, *, minimum: float = 0.0) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not max(0.0, minimum) <= value <= MAX_SECONDS
        or not value
    ):
        low = f"{minimum:g} or more" if minimum else "above 0"
        raise ConfigError(f"{name} is {value!r}; it is a time in seconds, {low} and {MAX_SECONDS:g} at most")
    return float(value)
