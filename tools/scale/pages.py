"""The page and the curves of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limits import Figures, complete, memory_line, milliseconds

PICTURE = "scale.png"
FAR_RANKS = 10_000
PARTS = ("jobs", "keys", "messages", "simulated", "gloo")
STYLES = {"mlt": "#4477aa", "gloo": "#ee6677"}


def page(figures: Figures, verdict_lines: Sequence[str], head: str, command: str) -> str:
    lines = ["# Scale: what grows with ranks, keys and messages", "", head, ""]
    lines += ["[scale.md](../scale.md) says what is measured, and where time and memory go.", "", *verdict_lines, ""]
    failed = [one["error"] for part in PARTS for one in figures[part] if "error" in one]
    lines += [
        *(f"Failed: {text}\n" for text in failed),
        "## Jobs",
        "",
        *_job_table(figures),
        "",
    ]
    lines += [
        "## Keys",
        "",
        *_key_table(figures["keys"]),
        "",
        *_simulated_table(figures["simulated"]),
        "",
        *_far(figures["jobs"]),
        "",
    ]
    lines += ["## Curves", "", f"![Curves by ranks and keys]({PICTURE})", "", f"Command: `{command}`", ""]
    return "\n".join(lines)


def _job_table(figures: Figures) -> list[str]:
    lines = [
        "All ranks on this host. Of an all-reduce the median, by the slowest rank, without the first one, which is in",
        "brackets; memory is what a rank added to its process, after `connect` and after the all-reduces; CPU of all",
        "ranks together.",
        "",
        "| ranks | transport | connect | its CPU | private MiB a rank | after all-reduces | descriptors "
        "| all-reduce of 4 B | of 1 MiB | CPU of the latter | idle, % of a core |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in complete([*figures["jobs"], *figures["gloo"]]):
        small, large = (
            f"{milliseconds(one, size):,.1f} ms ({1e3 * one['all_reduce'][size]['first_seconds']:,.1f})"
            for size in ("4 B", "1 MiB")
        )
        lines.append(
            f"| {one['ranks']} | {one['transport']} "
            f"| {one['connect_seconds']:.2f} s | {one['connect_cpu_seconds']:.2f} s "
            f"| {one['kib_per_rank'] / 1024:.1f} | {one['kib_per_rank_used'] / 1024:.1f} "
            f"| {one['descriptors_per_rank']:.0f} | {small} | {large} "
            f"| {one['all_reduce']['1 MiB']['cpu_seconds']:.2f} s | {one['idle_core_percent']:.1f} |"
        )
    return lines


def _key_table(runs: Sequence[Figures]) -> list[str]:
    lines = [
        "| keys | rounds | ms a key | packets | probes | copies over TCP |",
        "|---|---|---|---|---|---|",
    ]
    for one in complete(runs):
        rounds = ", ".join(f"{seconds:.2f}" for seconds in one["seconds"])
        lines.append(
            f"| {one['keys']:,} | {rounds} s | {1e3 * one['seconds_per_key']:.2f} | {one['packets']:,} "
            f"| {one['probes']:,} ({100 * one['probes'] / one['packets']:.1f} %) | {one['tcp_fallbacks']:,} |"
        )
    return lines


def _simulated_table(runs: Sequence[Figures]) -> list[str]:
    lines = [
        "## Simulated ranks",
        "",
        "Of an all-reduce of 64 KiB by halving and doubling, with 0.1 % loss, the mean of three. Memory is that of the",
        "process: endpoints, network and tensors.",
        "",
        "| ranks | connections a rank | events a rank | datagrams a rank | CPU a rank | KiB a rank | virtual time |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in complete(runs):
        lines.append(
            f"| {one['ranks']:,} | {one['connections_per_rank']:.0f} | {one['events_per_rank']:.0f} "
            f"| {one['datagrams_per_rank']:.0f} | {one['cpu_microseconds_per_rank']:,.0f} us "
            f"| {one['kib_per_rank']:,.0f} | {one['virtual_microseconds']:,.0f} us |"
        )
    return lines


def _far(jobs: Sequence[Figures]) -> list[str]:
    """Arithmetic for more ranks than a host carries, from the measured slopes."""
    largest = max(complete(jobs), key=lambda one: int(one["ranks"]))
    ranks, peers = largest["ranks"], largest["ranks"] - 1
    rank_kib, peer_kib = memory_line(jobs)
    descriptors = largest["descriptors_per_rank"] / peers
    # Each connection costs both of its ranks.
    connect_us = 1e6 * largest["connect_cpu_seconds"] / (ranks * peers)
    far = FAR_RANKS - 1
    return [
        f"## {FAR_RANKS:,} ranks, by arithmetic",
        "",
        f"One rank of {FAR_RANKS:,}, from the slopes up to {ranks} ranks. Every rank connects to every other.",
        "",
        f"| | measured slope | one rank of {FAR_RANKS:,} |",
        "|---|---|---|",
        f"| private memory | {rank_kib / 1024:.1f} MiB and {peer_kib:.1f} KiB a peer "
        f"| {(rank_kib + peer_kib * far) / 1024:,.0f} MiB |",
        f"| descriptors | {descriptors:.2f} a peer (of one host) | {descriptors * far:,.0f} |",
        f"| CPU to connect | {connect_us:,.0f} us a peer | {1e-6 * connect_us * far:.1f} s |",
        f"| wake-ups while idle | {largest['idle_wakes_per_rank_second']:.1f} a second at {ranks} ranks | no more: two "
        "neighbours exchange heartbeats |",
        f"| CPU while idle | {largest['idle_core_percent'] / ranks:.3f} % of a core at {ranks} ranks | not known |",
    ]


def draw(figures: Figures, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    canvas, axes = pyplot.subplots(2, 4, figsize=(17, 7), layout="constrained")
    panels: list[tuple[str, Any]] = [
        ("connect, s", lambda one: one["connect_seconds"]),
        ("all-reduce of 4 B, ms", lambda one: milliseconds(one, "4 B")),
        ("all-reduce of 1 MiB, ms", lambda one: milliseconds(one, "1 MiB")),
        ("private memory a rank, MiB", lambda one: one["kib_per_rank"] / 1024),
        ("idle job, % of a core", lambda one: one["idle_core_percent"]),
    ]
    for place, (title, value) in zip(axes.flat, panels, strict=False):
        for name, jobs in (("mlt", figures["jobs"]), ("gloo", figures["gloo"])):
            ranks = [one["ranks"] for one in complete(jobs)]
            place.plot(ranks, [value(one) for one in complete(jobs)], "o-", color=STYLES[name], label=name)
        place.set(title=title, xlabel="ranks", xscale="log", yscale="log")
        place.legend()
    simulated = complete(figures["simulated"])
    for place, (title, name) in zip(
        axes.flat[5:7],
        (("simulated: events a rank", "events_per_rank"), ("simulated: KiB a rank", "kib_per_rank")),
        strict=True,
    ):
        place.plot([one["ranks"] for one in simulated], [one[name] for one in simulated], "o-", color=STYLES["mlt"])
        place.set(title=title, xlabel="ranks", xscale="log", ylim=(0, None))
    last = axes.flat[-1]
    runs = complete(figures["keys"])
    times = [1e3 * one["seconds_per_key"] for one in runs]
    last.plot([one["keys"] for one in runs], times, "o-", color=STYLES["mlt"])
    last.set(title="push-pull, ms a key of 64 KiB", xlabel="keys", xscale="log", ylim=(0, None))
    for place in axes.flat:
        place.grid(alpha=0.3)
    canvas.savefig(path, dpi=90)
    pyplot.close(canvas)
