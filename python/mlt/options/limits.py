"""How much one rank may have in progress and remember. ``docs/limits.md`` says what each limit costs.

``max_operations``: sends, receives and collectives in progress, or done and not taken. One more is refused at once
(``LimitError``); below it no order of posting makes operations wait for each other's slots. ``max_tags``: pairs of
rank and tag that are remembered, of sends and of receives each. ``early_segments``: segments kept for receives that
are not posted yet, shared evenly by the other ranks; ``early_transfers``: how many transfers these may belong to.
Ranks may differ in them. Memory is touched as a limit is used, not before.

    mlt.Context(max_operations=100_000)  # or MLT_MAX_OPERATIONS=100000
"""

from __future__ import annotations

from collections.abc import Mapping

from mlt.errors import ConfigError

# Of each, the environment variable and the range that the engine takes (src/engine/event_loop.h).
VARIABLES = {
    "max_operations": ("MLT_MAX_OPERATIONS", 131_072),
    "max_tags": ("MLT_MAX_TAGS", 2**24),
    "early_segments": ("MLT_EARLY_SEGMENTS", 2**22),
    "early_transfers": ("MLT_EARLY_TRANSFERS", 2**22),
}


def resolve(given: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, int]:
    """The limits that ``given`` names, and those that are None there from the environment; the others keep the default.
    Raises ConfigError that names the argument or the variable, and the range."""
    chosen: dict[str, int] = {}
    for name, (variable, most) in VARIABLES.items():
        source, value = name, given.get(name)
        if value is None:
            text = environ.get(variable, "").strip()
            if not text:
                continue
            if not text.isdecimal():
                raise ConfigError(f"{variable} is {text!r}; it is an integer from 1 to {most}")
            source, value = variable, int(text)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ConfigError(f"{source} is {value!r}; it is an integer from 1 to {most}")
        chosen[name] = value
    return chosen
