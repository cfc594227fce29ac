"""Python's readers of the variables that NCCL's plugin reads itself, against the table that the plugin passes too
(driver/variables_test.cc)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from mlt._shared import variables
from mlt._shared.units import RATE
from mlt.errors import ConfigError
from mlt.job import secret
from mlt.options import arguments, io_threads, limits, paths, times
from mlt.options.faults import Faults

TABLE = Path(__file__).parent / "values.tsv"
ROWS = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
Environ = Mapping[str, str]


def time_ns(environ: Environ) -> str:
    ((name, seconds),) = times.resolve({}, environ).items()
    return str(times.nanoseconds(seconds, name))


def limit(environ: Environ) -> str:
    (number,) = limits.resolve({}, environ).values()
    return str(number)


def no_threads(environ: Environ) -> str:
    io_threads.refuse(None, None, environ=environ)
    return "none"


def found_paths(environ: Environ) -> str:
    return " ".join(one.address or one.interface or "any" for one in paths.resolve(None, environ=environ))


def faults(environ: Environ) -> str:
    found = Faults.parse(environ["MLT_NCCL_FAULTS"]).to_native()
    losses = (found.drop, found.duplicate, found.reorder, found.corrupt)
    return (
        " ".join(f"{one:g}" for one in losses)
        + f" {found.delay_ns} {found.jitter_ns} {found.seed} {int(found.control)}"
    )


def line_rate(environ: Environ) -> str:
    gbps = RATE.read(environ["MLT_NCCL_LINE_RATE_GBPS"], base="gbit", above=0.0)
    if gbps >= 1e6:  # the plugin's own limit
        raise ValueError("too fast")
    return f"{gbps:g}"


def job_secret(environ: Environ) -> str:
    found = secret.resolve(None, environ)
    assert found is not None
    return found.reveal().decode()


READERS: dict[str, Callable[[Environ], str]] = {
    **dict.fromkeys(times.VARIABLES.values(), time_ns),
    **{name: limit for name, _ in limits.VARIABLES.values()},
    "MLT_SPIN_US": lambda environ: str(arguments.resolve({}, environ)["spin_us"]),
    "MLT_INSECURE": lambda environ: str(int(variables.flag(environ, "MLT_INSECURE"))),
    "MLT_IO_THREADS": no_threads,
    "MLT_PATHS": found_paths,
    "MLT_NCCL_FAULTS": faults,
    "MLT_NCCL_LINE_RATE_GBPS": line_rate,
    "MLT_JOB_SECRET": job_secret,
}


@pytest.mark.parametrize(("name", "value", "meaning"), ROWS)
def test_value__means_what_it_means_to_the_plugin(name: str, value: str, meaning: str) -> None:
    try:
        found = READERS[name]({name: value})
    except (ConfigError, ValueError):
        found = "-"
    assert found == meaning


def test_table__has_every_reader() -> None:
    assert {row[0] for row in ROWS} == set(READERS)
