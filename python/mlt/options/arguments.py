"""The keyword arguments of ``mlt.Context`` other than ``JobArguments``, and their transfer to the native library.

An omitted argument keeps the native library's default (src/mlt.h).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from mlt._shared import variables
from mlt.errors import ConfigError
from mlt.options import limits, times
from mlt.options.faults import Faults

if TYPE_CHECKING:
    from mlt import _core
    from mlt.options import paths, qos

MAX_SPIN_US = 1_000_000
SWITCHES = {
    "shares_by_rate": "MLT_SHARES_BY_RATE",
    "checksums": "MLT_CHECKSUMS",
    "erasure_correction": "MLT_ERASURE_CORRECTION",
    "connects_on_use": "MLT_CONNECTS_ON_USE",
}


class LimitArguments(TypedDict, total=False):
    """Limits (``mlt.options.limits``)."""

    max_operations: int | None
    max_tags: int | None
    early_segments: int | None
    early_transfers: int | None
    max_window_mib: int | None


class NetworkArguments(TypedDict, total=False):
    """Arguments about how packets are carried."""

    faults: Faults | None
    segment_bytes: int | None
    line_rate_gbps: float | None
    qos_policy: qos.PolicySource | None
    paths: paths.PathSource | None
    datapath: str | None
    busy_poll_us: int | None
    spin_us: int | None
    shares_by_rate: bool | None
    checksums: bool | None
    erasure_correction: bool | None
    connects_on_use: bool | None
    io_threads: int | None
    io_cpus: Sequence[int] | None


class TimeArguments(TypedDict, total=False):
    """Times in seconds (``mlt.options.times``)."""

    operation_timeout: float | None
    connect_timeout: float | None
    peer_timeout: float | None
    suspended_timeout: float | None


class TransportArguments(LimitArguments, NetworkArguments, TimeArguments, total=False):
    """All keyword arguments of the transport."""


def apply(given: TransportArguments, native: _core.Options, environ: Mapping[str, str] = os.environ) -> None:
    """Copy the options of ``given`` and of the environment to ``native``, except paths and DSCPs, which need the job.

    Raises ConfigError that names the argument or variable.
    """
    for name, value in resolve(given, environ).items():
        setattr(native, name, value)


def resolve(given: TransportArguments, environ: Mapping[str, str]) -> dict[str, object]:
    """The values that ``apply`` copies, by their native names. Raises its errors."""
    chosen: dict[str, object] = {
        "segment_bytes": _at_least(given.get("segment_bytes"), 8, "segment_bytes"),
        "busy_poll_us": _at_least(given.get("busy_poll_us"), 0, "busy_poll_us"),
        **limits.resolve(given, environ),
    }
    if (faults := given.get("faults")) is not None:
        chosen["faults"] = faults.to_native()
    if (gbps := given.get("line_rate_gbps")) is not None:
        if not (math.isfinite(gbps) and gbps > 0):
            raise ConfigError(f"line_rate_gbps is {gbps!r}; it is a speed in Gbit/s, above 0")
        chosen["line_rate_bits_per_second"] = gbps * 1e9
    for name, seconds in times.resolve(given, environ).items():
        if name != "connect_timeout":  # the job's, not the engine's
            chosen[f"{name}_ns"] = times.nanoseconds(seconds, name)
    if (spin_us := _spin_us(given.get("spin_us"), environ)) is not None:
        chosen["spin_us"] = spin_us
    for name, variable in SWITCHES.items():
        chosen[name] = _switch(given.get(name), name, variable, environ)
    if datapath := given.get("datapath") or variables.text(environ, "MLT_DATAPATH"):
        chosen["datapath"] = datapath
    return chosen


def _at_least(value: int | None, minimum: int, name: str) -> int:
    if value is None:
        return 0
    if value < minimum:
        raise ConfigError(f"{name} is {value}; give {minimum} or more, or None")
    return value


def _switch(value: object, name: str, variable: str, environ: Mapping[str, str]) -> bool:
    if value is None:
        return variables.flag(environ, variable)
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; give True, False or None")
    return value


def _spin_us(value: int | None, environ: Mapping[str, str]) -> int | None:
    if value is not None:
        if isinstance(value, bool) or not 0 <= value <= MAX_SPIN_US:
            raise ConfigError(f"spin_us is {value!r}; give 0 to {MAX_SPIN_US:,} microseconds, or None")
        return value
    read = variables.time(environ, "MLT_SPIN_US", unit="us", maximum=MAX_SPIN_US / 1e6, is_zero_valid=True)
    return None if read is None else round(read)
