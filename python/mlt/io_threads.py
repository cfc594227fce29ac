"""How many threads make the system calls of a rank's paths, and on which CPUs. ``docs/paths.md`` says when it helps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlt.errors import ConfigError
from mlt.paths import MOST_PATHS

THREADS_VARIABLE = "MLT_IO_THREADS"
CPUS_VARIABLE = "MLT_IO_CPUS"
# More than any kernel is built for.
_MOST_CPU = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class IoThreads:
    """So many threads, path i served by thread i modulo their number; ``cpus`` has one for each, or none at all."""

    count: int = 0
    cpus: tuple[int, ...] = ()


def resolve(count: int | None, cpus: Sequence[int] | None, *, environ: Mapping[str, str] | None = None) -> IoThreads:
    """What ``io_threads`` and ``io_cpus`` mean; without both, MLT_IO_THREADS ("2") and MLT_IO_CPUS ("3,5" or "2-5").

    CPUs alone make a thread each. 0 threads: the thread that runs the protocol makes the calls itself. Raises
    ConfigError; whether there are as many paths, and whether the CPUs are there, the engine says.
    """
    names = ("io_threads", "io_cpus")
    if count is None and cpus is None:
        names = (THREADS_VARIABLE, CPUS_VARIABLE)
        environment = os.environ if environ is None else environ
        count = _number(environment.get(THREADS_VARIABLE, "").strip(), THREADS_VARIABLE)
        cpus = _list(environment.get(CPUS_VARIABLE, "").strip())
    chosen = tuple(cpus or ())
    if count is None:
        count = len(chosen)
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_PATHS:
        raise ConfigError(f"{names[0]} is {count!r}; give 0 to {MOST_PATHS}, and no more than there are paths")
    for cpu in chosen:
        if isinstance(cpu, bool) or not isinstance(cpu, int) or not 0 <= cpu <= _MOST_CPU:
            raise ConfigError(f"{names[1]} names CPU {cpu!r}; CPUs are integers from 0")
    if chosen and len(chosen) != count:
        raise ConfigError(f"{names[0]} is {count} and {names[1]} names {len(chosen)} CPUs; give one for each thread")
    return IoThreads(count=count, cpus=chosen)


def _number(text: str, name: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal():
        raise ConfigError(f"{name} is {text!r}; it is a number of threads")
    return int(text)


def _list(text: str) -> list[int]:
    """``3,5`` or ``2-5``, as the kernel writes them."""
    found: list[int] = []
    for item in text.split(",") if text else []:
        first, dash, last = (part.strip() for part in item.partition("-"))
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()) or not 0 <= int(last) - int(first) <= MOST_PATHS:
            raise ConfigError(f"{CPUS_VARIABLE} is {text!r}; it is a list of CPUs such as 3,5 or 2-5")
        found.extend(range(int(first), int(last) + 1))
    return found
