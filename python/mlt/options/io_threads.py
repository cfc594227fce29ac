"""I/O threads are gone: a context that still asks for some is refused, with what to do instead."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mlt.errors import ConfigError

ADVICE = (
    "mlt has no I/O threads any more: they cost CPU and speed wherever they were measured. Leave the option out; where "
    'one rank can\'t fill the card, use several ranks on it (docs/perf.md, "What one rank can carry")'
)


def refuse(count: Any, cpus: Any, *, environ: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError if arguments or variables ask for I/O threads; 0 of them is what every context has."""
    environment = os.environ if environ is None else environ
    asked = {
        "io_threads": count,
        "io_cpus": cpus,
        "MLT_IO_THREADS": environment.get("MLT_IO_THREADS", "").strip(),
        "MLT_IO_CPUS": environment.get("MLT_IO_CPUS", "").strip(),
    }
    for name, value in asked.items():
        if value and value != "0":
            raise ConfigError(f"{name} is {value!r}: {ADVICE}")
