"""The removed I/O threads: rejects a context that requests them and gives the replacement."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mlt._shared import variables
from mlt.errors import ConfigError

ADVICE = (
    "mlt no longer has I/O threads, which cost CPU and speed in every measurement. Leave the option out; where "
    'one rank cannot fill the NIC, use several ranks on it (docs/perf.md, "What one rank can carry")'
)


def refuse(count: Any, cpus: Any, *, environ: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError if an argument or variable requests I/O threads; 0 is accepted."""
    environment = os.environ if environ is None else environ
    asked = {
        "io_threads": count,
        "io_cpus": cpus,
        "MLT_IO_THREADS": variables.text(environment, "MLT_IO_THREADS"),
        "MLT_IO_CPUS": variables.text(environment, "MLT_IO_CPUS"),
    }
    for name, value in asked.items():
        if value and value != "0":
            raise ConfigError(f"{name} is {value!r}: {ADVICE}")
