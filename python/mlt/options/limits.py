"""Limits of one rank. ``docs/limits.md`` gives the cost of each.

``max_operations``: sends, receives and collectives that are in progress or whose completion was not taken. A post
beyond the limit fails at once (``LimitError``). Below it, no order of posts makes operations wait for each other's
slots. ``max_tags``: remembered pairs of rank and tag, for sends and receives each. ``early_segments``: buffered
segments of receives that are not posted yet, shared evenly by the other ranks. ``early_transfers``: max number of
transfers of these segments. ``max_window_mib``: max MiB in flight to a peer, where the path needs more than the
peer's receive buffer holds. Ranks may use different limits. Memory is touched only as a limit is used.

    mlt.Context(max_operations=100_000)  # or MLT_MAX_OPERATIONS=100000
"""

from __future__ import annotations

from collections.abc import Mapping

from mlt._shared import variables
from mlt.errors import ConfigError

# Ranks have 16 bits on the wire, and the low 16 bits of a cookie identify one.
MAX_RANKS = 2**16 - 1
# For each limit: environment variable, and range that the engine accepts (src/engine/options_check.cc).
VARIABLES = {
    "max_operations": ("MLT_MAX_OPERATIONS", 131_072),
    "max_tags": ("MLT_MAX_TAGS", 2**24),
    "early_segments": ("MLT_EARLY_SEGMENTS", 2**22),
    "early_transfers": ("MLT_EARLY_TRANSFERS", 2**22),
    "max_window_mib": ("MLT_MAX_WINDOW_MIB", 2**16),
}


def resolve(given: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, int]:
    """The limits in ``given``; those that are None there come from the environment; the others keep the default.

    Raises ConfigError that names the argument or the variable, and the range.
    """
    chosen: dict[str, int] = {}
    for name, (variable, maximum) in VARIABLES.items():
        value = given.get(name)
        if value is None:
            value = variables.integer(environ, variable, minimum=1, maximum=maximum)
            if value is None:
                continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
            raise ConfigError(f"{name} is {value!r}; it is an integer from 1 to {maximum}")
        chosen[name] = value
    return chosen
