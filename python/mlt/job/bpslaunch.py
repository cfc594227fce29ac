"""The workers of one host of a job of BytePS, as its launcher would start them: from the host's variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mlt._shared import variables
from mlt.errors import ConfigError
from mlt.job.launchers import position
from mlt.options.limits import MAX_RANKS

_ROLES: Final = ("worker", "joint", "server", "scheduler")
_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
_GLOBAL_RANK: Final = "BYTEPS_GLOBAL_RANK"


def role(environ: Mapping[str, str]) -> str:
    """The host's role in the job. Raises ConfigError if DMLC_ROLE is missing or another."""
    given = (variables.text(environ, "DMLC_ROLE") or "").lower()
    if given not in _ROLES:
        raise ConfigError(f"DMLC_ROLE is {given!r}: set it to worker; {', '.join(_ROLES[1:])} are known too")
    return given


def environments(environ: Mapping[str, str], workers: int | None = None) -> list[dict[str, str]]:
    """The variables of each worker of this host, by local rank.

    ``workers``: number of workers of this host, the same on all hosts; None: one for each device of
    NVIDIA_VISIBLE_DEVICES, or one. Each gets its variables of BytePS, and those that ``mlt.Context`` and torch read:
    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, the last two unless they are set.
    Raises ConfigError for variables that are missing or wrong.
    """
    hosts = variables.integer(environ, "DMLC_NUM_WORKER", minimum=1, maximum=MAX_RANKS)
    needed = ["DMLC_NUM_WORKER", "DMLC_WORKER_ID"]
    if hosts is not None and hosts > 1:
        needed += ["DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"]
    if missing := [name for name in needed if variables.text(environ, name) is None]:
        raise ConfigError(f"a worker of BytePS needs {', '.join(missing)}, which {_is(missing)} not set")
    host = variables.integer(environ, "DMLC_WORKER_ID", maximum=MAX_RANKS)
    if host is not None and hosts is not None and host >= hosts:
        raise ConfigError(f"DMLC_WORKER_ID is {host}: with DMLC_NUM_WORKER={hosts} it is at most {hosts - 1}")
    size = workers if workers is not None else _devices(environ)
    given_rank = variables.text(environ, _GLOBAL_RANK)
    if given_rank is not None and size > 1:
        raise ConfigError(
            f"{_GLOBAL_RANK} is {given_rank!r}, which would be the rank of all {size} workers of this host: unset it"
        )
    found = []
    for local_rank in range(size):
        own = {"BYTEPS_LOCAL_RANK": str(local_rank), "BYTEPS_LOCAL_SIZE": str(size)}
        # Only what BytePS says counts: this command may run under another launcher.
        of_byteps = {name: value for name, value in environ.items() if name.startswith(("DMLC_", _GLOBAL_RANK))}
        own_position = position({**of_byteps, **own})
        own |= {
            "RANK": str(own_position.rank),
            "WORLD_SIZE": str(own_position.world_size),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(size),
        }
        for name, source in (("MASTER_ADDR", "DMLC_PS_ROOT_URI"), ("MASTER_PORT", "DMLC_PS_ROOT_PORT")):
            value = variables.text(environ, source)
            if value is not None and variables.text(environ, name) is None:
                own[name] = value
        found.append(own)
    return found


def _devices(environ: Mapping[str, str]) -> int:
    """Number of this host's devices as BytePS's launcher counts them; words such as "all" are one."""
    return len([one for one in (variables.text(environ, _DEVICES) or "").split(",") if one.strip()]) or 1


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
