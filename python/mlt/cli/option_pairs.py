"""Options that need or exclude one another, by command: what would be ignored is refused.

Counts what the command line gives, not variables or defaults.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

from mlt._shared.addresses import parse_target
from mlt.errors import ConfigError

# Command -> option -> the options or arguments of which it needs one.
NEEDS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "doctor": {
        "--once": ("--serve",),
        "--port": ("HOST", "--serve", "--job"),
        "--interface": ("HOST", "--serve", "--job"),
        "--policy": ("HOST", "--serve", "--job", "--switch"),
        "--target": ("--switch",),
        "--inventory": ("--switch",),
        "--known-hosts": ("--switch",),
        "--connect-timeout": ("--job",),
    },
    "launch": {"--wait": ("--min-workers", "--max-workers")},
    "perf": {
        "--once": ("--serve",),
        "--port": ("HOST", "--serve"),
        "--ranks": ("--local",),  # a job has WORLD_SIZE, a server and a client are two
        "--pin": ("--local",),
        "--stop": ("--loss-bound",),
    },
    "plan auto": {"--packet-hops": ("--simulate",)},
    "plan show": {"--job": ("--plot",)},
    "switch apply": {"--keep-if": ("--confirm",)},
    "switch verify": {
        "--before": ("--input",),
        "--during": ("--switch",),
        "--for": ("--switch",),
        "--partial": ("--input", "--switch"),
        "--json": ("--input", "--switch"),
        "--inventory": ("--switch",),
        "--known-hosts": ("--switch",),
    },
}
# Of one run of mlt perf: the side that asks for it has them, not the server that waits.
_MEASUREMENT: Final = [
    "HOST",
    "--local",
    "--pattern",
    "--size",
    "--rounds",
    "--turns",
    "--compare",
    "--loss-bound",
    "--priority",
    "--segment-bytes",
    "--paths",
    "--datapath",
    "--rate",
    "--line-rate",
    "--faults",
    "--timeout",
    "--json",
    "--plot",
]
# Command -> pairs of which only one can be obeyed.
EXCLUDES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "doctor": (
        ("--serve", "--fix"),
        ("--serve", "--json"),
        *(("--topology", option) for option in ("--port", "--interface", "--policy")),
    ),
    "perf": (("HOST", "--local"), *(("--serve", option) for option in _MEASUREMENT)),
    "serve": (("--rank", "--index"),),
    "switch apply": (("--dry-run", "--undo"), ("--dry-run", "--confirm"), ("--undo", "--confirm")),
    "switch verify": (("--input", "--switch"), ("--during", "--for")),
    "testbed status": (("--json", "--watch"),),
}


def wrong_pair(command: Any, ctx: Any) -> str | None:
    """An error about the first option that would be ignored; None: none would be."""
    path = ctx.command_path.partition(" ")[2]
    given = {
        name
        for param in command.params
        if getattr(ctx.get_parameter_source(param.name), "name", "") == "COMMANDLINE"
        for name in (*param.opts, *param.secondary_opts, _argument(param))
    }
    for option, partners in NEEDS.get(path, {}).items():
        if option in given and not given & set(partners):
            others = f"{', '.join(partners[:-1])} or {partners[-1]}" if len(partners) > 1 else partners[0]
            return f"{option} goes with {others}"
    target = _target(command, ctx) if "--port" in given else None
    if target is not None and parse_target(target, 1) == parse_target(target, 2):
        return f"--port and the port in {target!r}: give one of them"
    for one, other in EXCLUDES.get(path, ()):
        if {one, other} <= given:
            return f"{one} and {other}: give one of them"
    return None


def _target(command: Any, ctx: Any) -> str | None:
    """The value of the argument HOST, if it is given and valid."""
    for param in command.params:
        value = ctx.params.get(param.name)
        if _argument(param) == "HOST" and isinstance(value, str):
            with contextlib.suppress(ConfigError):
                parse_target(value, 1)
                return value
    return None


def _argument(param: Any) -> str:
    metavar = str(param.metavar or param.name).strip("[].").partition("[")[0]
    return metavar.upper() if param.param_type_name == "argument" else ""
