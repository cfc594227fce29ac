"""The targets of each measurement, in the long and in the short form, and the verdicts."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "targets"))

from verdicts import Verdict, busy, counts, host_and_time, table

__all__ = ["Verdict", "busy", "counts", "host_and_time", "table"]  # for the program, which finds them here only

Figures = dict[str, Any]


@dataclass(frozen=True)
class Form:
    """Sizes and limits. The long form's limits are the targets of this project, whether met or not.

    The short form runs in CI, on a host that is busy with other work. Its limits are those that a cost which grows
    faster than the work exceeds: a storm of probes, a walk over all peers for each wake-up.
    """

    sizes: Sequence[int]  # ranks of a job
    gloo_sizes: Sequence[int]
    repetitions: int
    idle_seconds: float
    workers: int
    keys: Sequence[int]
    key_rounds: int
    messages: int
    checked_size: int  # for connections and all-reduces
    connect_seconds: float
    small_seconds: float  # all-reduce of 4 B
    large_seconds: float  # of 1 MiB
    idle_size: int
    idle_core_percent: float
    rank_kib: float
    peer_kib: float
    seconds_per_key: float | None  # None: no limit
    key_growth: float  # longest over shortest time per key
    probe_share: float  # of all packets
    messages_per_second: float
    simulated_sizes: Sequence[int]
    simulated_growth: float  # of a rank's cost, over that of the levels of its tree


LONG = Form(
    sizes=(8, 16, 32, 64, 128, 256),
    gloo_sizes=(8, 16, 32),
    repetitions=5,
    idle_seconds=5.0,
    workers=16,
    keys=(64, 256, 1_000, 2_000),
    key_rounds=3,
    messages=200_000,
    checked_size=256,
    connect_seconds=10.0,
    small_seconds=0.1,
    large_seconds=1.0,
    idle_size=128,
    idle_core_percent=3.0,
    rank_kib=6 * 1024,
    peer_kib=2.0,
    seconds_per_key=None,
    key_growth=1.5,
    probe_share=0.01,
    messages_per_second=300_000,
    simulated_sizes=(64, 256, 1_024, 4_096),
    simulated_growth=1.0,
)

# Where a storm of probes kept a service from its work, 600 keys took 25 to 48 ms each; with a read chunk of 16 KiB for
# each connection an idle peer took 24 KiB.
SHORT = replace(
    LONG,
    sizes=(8, 64),
    gloo_sizes=(),
    idle_seconds=3.0,
    keys=(150, 600),
    key_rounds=2,
    messages=20_000,
    checked_size=64,
    connect_seconds=15.0,
    small_seconds=1.0,
    large_seconds=4.0,
    idle_size=64,
    idle_core_percent=8.0,
    rank_kib=8 * 1024,
    peer_kib=6.0,
    seconds_per_key=0.020,
    key_growth=4.0,
    probe_share=0.4,
    messages_per_second=2_000,
    simulated_sizes=(),  # ctest runs 64 and 256: sim_scale
)


def check_jobs(form: Form, jobs: Sequence[Figures]) -> list[Verdict]:
    """Jobs of mlt, by size; those with an "error" ended with it."""
    by_size = {one["ranks"]: one for one in jobs}
    large, idle = by_size[form.checked_size], by_size[form.idle_size]
    rank_kib, peer_kib = memory_line(jobs)
    case = f"{form.checked_size} ranks"
    return [
        _at_most(f"{case} connected", large.get("connect_seconds"), form.connect_seconds, "s", "ranks"),
        _at_most(f"{case}, all-reduce of 4 B", milliseconds(large, "4 B"), 1e3 * form.small_seconds, "ms", "ranks"),
        _at_most(f"{case}, all-reduce of 1 MiB", milliseconds(large, "1 MiB"), 1e3 * form.large_seconds, "ms", "ranks"),
        _at_most(
            f"idle job of {form.idle_size} ranks",
            idle.get("idle_core_percent"),
            form.idle_core_percent,
            "% of a core",
            "ranks",
        ),
        _at_most("idle rank, without its peers", rank_kib, form.rank_kib, "KiB", "ranks"),
        _at_most("idle peer", peer_kib, form.peer_kib, "KiB", "ranks"),
    ]


def milliseconds(job: Figures, size: str) -> float | None:
    """The median all-reduce without the first; None if the job failed before it."""
    reduced = job.get("all_reduce", {}).get(size)
    return None if reduced is None else 1e3 * statistics.median(reduced["seconds"])


def complete(runs: Sequence[Figures]) -> list[Figures]:
    return [one for one in runs if "error" not in one]


def memory_line(jobs: Sequence[Figures]) -> tuple[float, float]:
    """KiB of a rank without peers, and of each peer: the line through the smallest and the largest job."""
    minimum, maximum = (choose(complete(jobs), key=lambda one: int(one["ranks"])) for choose in (min, max))
    slope = (maximum["kib_per_rank"] - minimum["kib_per_rank"]) / (maximum["ranks"] - minimum["ranks"])
    return minimum["kib_per_rank"] - slope * (minimum["ranks"] - 1), slope


def check_keys(form: Form, runs: Sequence[Figures]) -> list[Verdict]:
    case = f"{form.workers} workers, 1 service, keys of 64 KiB"
    times = {one["keys"]: 1e3 * one["seconds_per_key"] for one in complete(runs)}
    growth = max(times.values()) / min(times.values())
    shown = ", ".join(f"{count:,}: {time:.2f}" for count, time in times.items())
    failures = [text for one in runs for text in one.get("failures", [one.get("error")])]
    share = max(one["probes"] / one["packets"] for one in complete(runs))
    grown = f"<= {form.key_growth:g} x"
    verdicts = [
        Verdict(f"{case}: time per key", f"{shown} ms", f"{growth:.2f}", grown, growth <= form.key_growth, "keys"),
        Verdict(f"{case}: silent peers", "; ".join(failures) or "none", "-", "none", not failures, "keys"),
        _at_most(f"{case}: probes", 100 * share, 100 * form.probe_share, "% of packets", "keys"),
    ]
    if form.seconds_per_key is not None:
        verdicts.append(_at_most(f"{case}: a key", max(times.values()), 1e3 * form.seconds_per_key, "ms", "keys"))
    return verdicts


def check_messages(form: Form, runs: Sequence[Figures]) -> list[Verdict]:
    """Checked are the first run of lists and the first of single messages; the others, bare sockets and gloo, are for
    information."""
    verdicts = []
    checked = set()
    bare = [one["messages_per_second"] for one in complete(runs) if one["transport"] == "sockets"]
    for one in runs:
        posts = one.get("posts", "one by one")
        case = f"messages of 64 B, window of 256, {one['transport']}, {one['datapath']}, {posts}"
        is_checked = one["transport"] == "mlt" and posts not in checked
        if is_checked:
            checked.add(posts)
        if "error" in one:
            verdicts.append(Verdict(case, one["error"], "-", "", False, "messages"))
            continue
        rate, minimum = one["messages_per_second"], form.messages_per_second
        target, met = (f">= {minimum:,.0f}", rate >= minimum) if is_checked else ("", None)
        measured = f"{rate:,.0f} a second, {one['cpu_microseconds_per_message']:.1f} us of CPU each"
        if bare and one["transport"] != "sockets":
            measured += f", {rate / bare[0]:.2f} of bare sockets' rate"
        verdicts.append(Verdict(case, measured, f"{rate / minimum:.2f}", target, met, "messages"))
    return verdicts


def check_simulated(form: Form, runs: Sequence[Figures]) -> list[Verdict]:
    """Growth of a rank's cost from the smallest job to the largest. What a rank has of a tensor is no cost of a rank,
    and is the same in each."""
    if not runs:
        return []
    first, last = complete(runs)[0], complete(runs)[-1]
    levels = math.log2(last["ranks"]) / math.log2(first["ranks"])
    case = f"{last['ranks']:,} simulated ranks, all-reduce in a tree, 0.1 % loss"
    ended = Verdict(
        case,
        f"ends after {last['virtual_microseconds']:,.0f} us of virtual time, {last['cpu_seconds']:.1f} s of CPU",
        "-",
        f"{form.simulated_sizes[-1]:,} ranks end",
        all("error" not in one for one in runs),
        "simulated",
    )
    verdicts = [ended]
    for what, name in (
        ("events", "events_per_rank"),
        ("datagrams", "datagrams_per_rank"),
        ("memory", "kib_per_rank"),
        ("CPU", "cpu_microseconds_per_rank"),  # of this one process, whose memory leaves its caches: for information
    ):
        growth = last[name] / first[name]
        measured = f"{growth:.2f} times that of {first['ranks']} ranks, with {levels:.2f} times the levels"
        target, met = ("as log n", growth <= form.simulated_growth * levels) if what != "CPU" else ("", None)
        verdicts.append(
            Verdict(f"{case}: {what} of a rank", measured, f"{growth / levels:.2f}", target, met, "simulated")
        )
    return verdicts


def check_beside_gloo(jobs: Sequence[Figures], gloo: Sequence[Figures]) -> list[Verdict]:
    """Ratios of mlt's figures to gloo's at the same size, for information."""
    by_size = {one["ranks"]: one for one in complete(jobs)}
    verdicts = []
    for theirs in complete(gloo):
        ours, case = by_size.get(theirs["ranks"]), f"{theirs['ranks']} ranks"
        if ours is None:
            continue
        for what, name, unit in (
            ("connected", "connect_seconds", "s"),
            ("private memory a rank", "kib_per_rank", "KiB"),
            ("idle", "idle_core_percent", "% of a core"),
        ):
            verdicts.append(_beside(f"{case}, {what}", ours[name], theirs[name], unit))
        for size in ours["all_reduce"]:
            mine, other = milliseconds(ours, size), milliseconds(theirs, size)
            assert mine is not None
            assert other is not None
            verdicts.append(_beside(f"{case}, all-reduce of {size}", mine, other, "ms"))
    return verdicts


def _at_most(case: str, value: float | None, limit: float, unit: str, run: str) -> Verdict:
    """``value`` None: the measurement failed, which misses every target."""
    target = f"<= {_number(limit)} {unit}"
    if value is None:
        return Verdict(case, "failed", "-", target, False, run)
    return Verdict(case, f"{_number(value)} {unit}", f"{value / limit:.2f}", target, value <= limit, run)


def _beside(case: str, ours: float, theirs: float, unit: str) -> Verdict:
    return Verdict(
        case, f"mlt {_number(ours)}, gloo {_number(theirs)} {unit}", f"{ours / theirs:.2f}", "", None, "gloo"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
