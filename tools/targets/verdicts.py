"""Requirements of a run and their verdicts: one verdict for each line of the table."""

from __future__ import annotations

import os
import platform
import shlex
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from mlt._shared.units import format_size

TURNS = 5
HOSTS, RATE_BITS = 4, 200_000_000
KIB, MIB = 1 << 10, 1 << 20
SIZES = (64, 64 * KIB, MIB, 25 * MIB)
# Of a full packet: payload, and bytes on the testbed's links (headers of mlt, UDP, IP and Ethernet). The links lack
# preamble, FCS and gap, 24 bytes on a real wire.
PAYLOAD_BYTES, FRAME_BYTES = 1_432, 1_514
# An acknowledgement of one path, for every ten packets of the other direction (PROTOCOL.md 4.6, 7.2.4).
ACK_FRAME_BYTES, PACKETS_PER_ACK = 52 + 42, 10
# Half of TCP's min retransmission timeout: a round this far above the median waited for a timer.
GAP_SECONDS = 0.1

Row = dict[str, Any]
Check = Callable[["Run", dict[str, Any]], list["Verdict"]]


@dataclass(frozen=True)
class Verdict:
    """One line of the table. ``met`` None: no target."""

    case: str
    measured: str
    ratio: str
    target: str
    met: bool | None
    run: str


@dataclass(frozen=True)
class Run:
    """One ``mlt perf``; ``testbed`` None: over loopback. ``check`` turns its result into verdicts.

    ``program``: a file to run instead of ``mlt perf``, which prints its result as JSON, and makes its own testbed.
    """

    name: str
    perf: Sequence[str]
    check: Check
    testbed: dict[str, Any] | None = None
    environment: tuple[tuple[str, str], ...] = ()
    program: str = ""

    @property
    def command(self) -> str:
        """The equivalent command line."""
        given = [f"{name}={value}" for name, value in self.environment]
        if self.program:
            return shlex.join([*given, "python", self.program, *self.perf])
        words = ["mlt", "perf", *self.perf] if self.testbed is not None else ["mlt", "perf", "--local", *self.perf]
        words = [*given, *words]
        if self.testbed is not None:
            bed = [item for key, value in self.testbed.items() for item in (f"--{key}", str(value))]
            words = ["mlt", "testbed", "run", *bed, "--", *words]
        return shlex.join(words)


# The table of verdicts, here and in tools/scale


def counts(verdicts: Sequence[Verdict]) -> tuple[int, int]:
    """Met targets, and all that were checked."""
    return sum(one.met is True for one in verdicts), sum(one.met is not None for one in verdicts)


def table(verdicts: Sequence[Verdict]) -> list[str]:
    words = {True: "yes", False: "**no**", None: "-"}
    return [
        "| case | measured | ratio | target | met | run |",
        "|---|---|---|---|---|---|",
        *(f"| {v.case} | {v.measured} | {v.ratio} | {v.target or '-'} | {words[v.met]} | {v.run} |" for v in verdicts),
    ]


def host_and_time() -> str:
    """When and where a page was measured."""
    now = datetime.now(timezone.utc)
    return f"{now:%Y-%m-%d %H:%M} UTC: {os.cpu_count()} shared cores, Linux {platform.release()}"


def busy(load: float) -> list[str]:
    """A warning if the host's load before the first measurement was high."""
    cores = os.cpu_count() or 1
    if load < 0.5 * cores:
        return []
    return [
        f"**The load was {load:.0f} on {cores} cores when this began**: times against the wire are those of a machine",
        "short of CPU. Ratios between transports, and CPU per GB, suffer less.",
    ]


# Reading a result


def row_of(result: dict[str, Any], label: str, size: int) -> Row | None:
    """A transport's row at a size; None if it was skipped."""
    return next((row for row in result["results"] if row["label"] == label and row["bytes"] == size), None)


def turn_medians(row: Row) -> list[float]:
    """The median round time of each turn; turns of the same number on different transports are adjacent in time."""
    samples, turns = row["samples_seconds"], min(TURNS, len(row["samples_seconds"]))
    edges = [len(samples) * turn // turns for turn in range(turns + 1)]
    return [statistics.median(samples[edges[i] : edges[i + 1]]) for i in range(turns)]


def speed_ratio(ours: Row, theirs: Row) -> float:
    """Our speed over theirs: the median over the turns of the ratio within each."""
    pairs = zip(turn_medians(ours), turn_medians(theirs), strict=True)
    return statistics.median(their / our for our, their in pairs)


def microseconds(row: Row) -> float:
    return float(row["seconds"]["p50"]) * 1e6


def gbit(row: Row) -> str:
    return f"{row['goodput_bits_per_second'] / 1e9:.1f}"


def ring_limit_seconds(size: int) -> float:
    """Time of a ring's all-reduce on the wire: payload, headers and acknowledgements, no processing.

    Acknowledgements of received data leave through the sending port.
    """
    per_payload_byte = (FRAME_BYTES + ACK_FRAME_BYTES / PACKETS_PER_ACK) / PAYLOAD_BYTES
    return 2 * (HOSTS - 1) / HOSTS * size * per_payload_byte * 8 / RATE_BITS


# Checks


def check_one_way(run: Run, result: dict[str, Any]) -> list[Verdict]:
    size = 64 * MIB
    ours, verdicts = row_of(result, "mlt p=0", size), []
    assert ours is not None
    for name, label, minimum in (("raw-udp", "bare UDP loop", 0.9), ("gloo", "gloo", 1.3)):
        theirs = row_of(result, name, size)
        if theirs is not None:
            ratio = speed_ratio(ours, theirs)
            if name == "raw-udp":
                # Its rounds count received data: the quotient of the whole run's medians, not the median by turn.
                ratio = ours["goodput_bits_per_second"] / theirs["goodput_bits_per_second"]
            measured = f"mlt {gbit(ours)}, {label} {gbit(theirs)} Gbit/s"
            verdicts.append(
                Verdict(
                    "64 MiB one way, loopback",
                    measured,
                    f"{ratio:.2f}",
                    f">= {minimum}",
                    ratio >= minimum,
                    run.name,
                )
            )
    return verdicts


def untagged(check: Check) -> Check:
    """The same without priorities by magnitude, to measure its cost: for information, without a target."""
    return _for_information(check, "untagged")


def short_segments(check: Check) -> Check:
    """The same with the packets of an Ethernet of MTU 1,500: for information, without a target."""
    return _for_information(check, "1,440 B")


def _for_information(check: Check, what: str) -> Check:
    def check_all(run: Run, result: dict[str, Any]) -> list[Verdict]:
        return [replace(one, case=f"{one.case}, {what}", target="", met=None) for one in check(run, result)]

    return check_all


def _beside(run: Run, result: dict[str, Any], size: int, name: str, minimum: float | None) -> list[Verdict]:
    """Our speed over that of ``name``, against ``minimum``; None: for information."""
    ours, theirs = row_of(result, "mlt p=0", size), row_of(result, name, size)
    assert ours is not None
    if theirs is None:
        return []
    ratio = speed_ratio(ours, theirs)
    if name == "raw-udp":
        ratio = ours["goodput_bits_per_second"] / theirs["goodput_bits_per_second"]  # as in check_one_way
    measured = f"mlt {microseconds(ours):,.0f}, {name} {microseconds(theirs):,.0f} us"
    met = None if minimum is None else ratio > minimum if minimum == 1 else ratio >= minimum
    target = "" if minimum is None else "> 1" if minimum == 1 else f">= {minimum:g}"
    return [Verdict(_case(run, size), measured, f"{ratio:.2f}", target, met, run.name)]


def _within(run: Run, result: dict[str, Any], size: int, max_us: float, peer: str = "") -> Verdict:
    """Our median time against ``max_us``, or that of ``peer`` if it is longer."""
    ours, theirs = row_of(result, "mlt p=0", size), row_of(result, peer, size)
    assert ours is not None
    took = microseconds(ours)
    maximum = max(max_us, 0.0 if theirs is None else microseconds(theirs))
    target = f"<= {max_us:,g} us" + (f" or {peer}'s" if peer else "")
    return Verdict(_case(run, size), f"mlt {took:,.0f} us", f"{took / max_us:.2f}", target, took <= maximum, run.name)


def _case(run: Run, size: int) -> str:
    what = {"all-reduce": "UDP", "all-reduce-asleep": "UDP, no polling", "all-reduce-shm": "shared memory"}[run.name]
    return f"all-reduce of {format_size(size)}, 2 ranks, {what}"


def check_all_reduce(run: Run, result: dict[str, Any]) -> list[Verdict]:
    small, middle, large, huge = SIZES
    verdicts = [_within(run, result, small, 20), _within(run, result, middle, 46, "mpi")]
    verdicts += _beside(run, result, large, "mpi", 1)
    # max 0.8 of its time
    verdicts += _beside(run, result, huge, "mpi", 1.25)
    for size in SIZES:
        for name in ("tcp", "gloo", "raw-udp"):
            verdicts += _beside(run, result, size, name, None)
    return verdicts


def check_asleep(run: Run, result: dict[str, Any]) -> list[Verdict]:
    return [one for size in SIZES for name in ("tcp", "gloo") for one in _beside(run, result, size, name, 1)]


def check_shared_memory(run: Run, result: dict[str, Any]) -> list[Verdict]:
    verdicts = [
        _within(run, result, size, maximum) for size, maximum in zip(SIZES, (3.0, 20.0, 100.0, 7_000.0), strict=True)
    ]
    for size in SIZES:
        verdicts += _beside(run, result, size, "mpi-shm", None if size < 64 * KIB else 1)
    return verdicts


def check_push_pull(run: Run, result: dict[str, Any]) -> list[Verdict]:
    one_way, push_pull = (result["bytes_per_second"][kind] for kind in ("one_way", "push_pull"))
    ratio = push_pull / one_way
    measured = f"push-pull {push_pull * 8e-9:.1f}, one way {one_way * 8e-9:.1f} Gbit/s of keys in one direction"
    case = "push-pull of 4 MB keys, one worker, one service, loopback, UDP"
    return [Verdict(case, measured, f"{ratio:.2f}", ">= 0.8", ratio >= 0.8, run.name)]


def check_slow_host(run: Run, result: dict[str, Any]) -> list[Verdict]:
    """One host of half the rate: what it costs beside equal links, and who is ahead there."""
    case = f"all-reduce of 4 MiB, {HOSTS} hosts of 200 Mbit/s, one of half the rate"
    equal, slow, shares = (result[links] for links in ("equal", "slow", "shares"))
    ours, ratio = shares["mlt p=0"], shares["mlt p=0"] / equal["mlt p=0"]
    measured = f"mlt with shares by rate {ours * 1e3:.0f}, over equal links {equal['mlt p=0'] * 1e3:.0f} ms"
    verdicts = [Verdict(case, measured, f"{ratio:.2f}", "<= 1.45", ratio <= 1.45, run.name)]
    chunks = slow["mlt p=0"]
    measured = f"mlt with equal chunks {chunks * 1e3:.0f}, over equal links {equal['mlt p=0'] * 1e3:.0f} ms"
    verdicts.append(Verdict(case, measured, f"{chunks / equal['mlt p=0']:.2f}", "", None, run.name))
    for name in ("tcp", "gloo"):
        if name in shares:
            measured = f"mlt with shares by rate {ours * 1e3:.0f}, {name} {shares[name] * 1e3:.0f} ms"
            ahead = shares[name] / ours
            verdicts.append(Verdict(case, measured, f"{ahead:.2f}", "> 1", ahead > 1, run.name))
    return verdicts


def check_cpu(run: Run, result: dict[str, Any]) -> list[Verdict]:
    ours, theirs = row_of(result, "mlt p=0", 10**6), row_of(result, "gloo", 10**6)
    if ours is None or theirs is None:
        return []
    mine, others = ours["cpu_seconds_per_gigabyte"], theirs["cpu_seconds_per_gigabyte"]
    rate = ours["achieved_bits_per_second"] / 1e9
    measured = f"mlt {mine:.2f}, gloo {others:.2f} CPU s/GB (mlt carried {rate:.2f} Gbit/s)"
    return [
        Verdict(
            "CPU per GB, 1 MB rounds offered at 1 Gbit/s",
            measured,
            f"{mine / others:.2f}",
            "<= 0.7",
            mine <= 0.7 * others,
            run.name,
        )
    ]


def check_ring(run: Run, result: dict[str, Any]) -> list[Verdict]:
    assert run.testbed is not None
    verdicts = []
    for size, maximum in ((64 * KIB, 1.5), (MIB, 1.15)):
        if all(row["bytes"] != size for row in result["results"]):
            continue  # the other size has a run of its own
        limit = ring_limit_seconds(size)
        case = f"all-reduce of {size // KIB} KiB, {HOSTS} hosts, 200 Mbit/s, loss {run.testbed['loss']}"
        for label in ("mlt p=0.1", "mlt p=0"):
            ours = row_of(result, label, size)
            assert ours is not None
            p50, p99 = ours["seconds"]["p50"], ours["seconds"]["p99"]
            measured = f"{label}: p50 {p50 * 1e3:.1f}, p99 {p99 * 1e3:.1f} ms"
            verdicts.append(
                Verdict(
                    case,
                    measured,
                    f"{p99 / limit:.2f}",
                    f"p99 <= {maximum} x {limit * 1e3:.1f} ms",
                    p99 <= maximum * limit,
                    run.name,
                )
            )
        gloo = row_of(result, "gloo", size)
        if gloo is not None:
            p50, p99 = gloo["seconds"]["p50"], gloo["seconds"]["p99"]
            measured = f"gloo: p50 {p50 * 1e3:.1f}, p99 {p99 * 1e3:.1f} ms"
            verdicts.append(Verdict(case, measured, f"{p99 / limit:.2f}", "", None, run.name))
    return verdicts


def check_incast(run: Run, result: dict[str, Any]) -> list[Verdict]:
    verdicts = []
    for label in ("mlt p=0", "mlt p=0.1", "gloo"):
        row = row_of(result, label, MIB)
        if row is None:
            continue
        p50, p99, worst = row["seconds"]["p50"], row["seconds"]["p99"], max(row["samples_seconds"])
        measured = f"{label}: p50 {p50 * 1e3:.0f}, p99 {p99 * 1e3:.0f}, worst {worst * 1e3:.0f} ms"
        met = p99 <= 1.2 * p50 and worst - p50 < GAP_SECONDS
        target = "p99 / p50 <= 1.2, no gap of 100 ms" if label != "gloo" else ""
        verdicts.append(
            Verdict(
                "incast 3:1 of 1 MiB, 64 KiB buffers",
                measured,
                f"{p99 / p50:.2f}",
                target,
                met if target else None,
                run.name,
            )
        )
    return verdicts
