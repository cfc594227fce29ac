"""The keyword arguments of ``mlt.Context`` other than ``JobArguments``, and their transfer to the native library.

An omitted argument keeps the native library's default (src/mlt.h).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from mlt._shared.units import TIME
from mlt.errors import ConfigError
from mlt.options import limits, times
from mlt.options.faults import Faults

if TYPE_CHECKING:
    from mlt import _core
    from mlt.options import paths, qos

MAX_SPIN_US = 1_000_000


class LimitArguments(TypedDict, total=False):
    """Limits (``mlt.options.limits``)."""

    max_operations: int | None
    max_tags: int | None
    early_segments: int | None
    early_transfers: int | None
    max_window_mib: int | None


class NetworkArguments(TypedDict, total=False):
    """How packets are carried."""

    faults: Faults | None
    segment_bytes: int | None
    line_rate_gbps: float | None
    qos_policy: qos.PolicySource | None
    paths: paths.PathSource | None
    datapath: str | None
    busy_poll_us: int
    spin_us: int | None
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
    if (faults := given.get("faults")) is not None:
        native.faults = faults.to_native()
    native.segment_bytes = _at_least(given.get("segment_bytes"), 8, "segment_bytes")
    native.busy_poll_us = _at_least(given.get("busy_poll_us"), 0, "busy_poll_us")
    if (gbps := given.get("line_rate_gbps")) is not None:
        if not (math.isfinite(gbps) and gbps > 0):
            raise ConfigError(f"line_rate_gbps is {gbps!r}; it is a speed in Gbit/s, above 0")
        native.line_rate_bits_per_second = gbps * 1e9
    seconds = times.resolve(given, environ)
    if "operation_timeout" in seconds:
        native.operation_timeout_ns = times.nanoseconds(seconds["operation_timeout"], "operation_timeout")
    if "peer_timeout" in seconds:
        native.peer_timeout_ns = times.nanoseconds(seconds["peer_timeout"], "peer_timeout")
    if "suspended_timeout" in seconds:
        native.suspended_timeout_ns = times.nanoseconds(seconds["suspended_timeout"], "suspended_timeout")
    if (spin_us := _spin_us(given.get("spin_us"), environ)) is not None:
        native.spin_us = spin_us
    native.datapath = given.get("datapath") or environ.get("MLT_DATAPATH") or native.datapath
    for name, value in limits.resolve(given, environ).items():
        setattr(native, name, value)


def _at_least(value: int | None, least: int, name: str) -> int:
    if value is None:
        return 0
    if value < least:
        raise ConfigError(f"{name} is {value}; give {least} or more, or None")
    return value


def _spin_us(value: int | None, environ: Mapping[str, str]) -> int | None:
    if value is not None:
        if isinstance(value, bool) or not 0 <= value <= MAX_SPIN_US:
            raise ConfigError(f"spin_us is {value!r}; give 0 to {MAX_SPIN_US:,} microseconds, or None")
        return value
    text = environ.get("MLT_SPIN_US", "").strip()
    if not text:
        return None
    try:
        return round(TIME.read(text, base="us", most=MAX_SPIN_US / 1e6))
    except ValueError as error:
        raise ConfigError(f"MLT_SPIN_US is {text!r}: {error}; a number without a unit is in microseconds") from None
