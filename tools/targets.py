"""Measure what ``mlt`` must reach beside its peers, and write docs/results/line-rate.md, .json and the pictures.

    python tools/targets.py            # all cases: five minutes; the testbed's need root
    python tools/targets.py --only loopback

Every case is one ``mlt perf``: its transports take turns, and a figure is a ratio within that run. A target that was
missed is written down as missed; this ends with 0 unless a measurement failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mlt.testbed import Testbed, make, runner
from mlt.testbed.requirements import problems

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
PERF = [sys.executable, "-m", "mlt.cli.main", "perf"]
TURNS = 5
HOSTS, RATE_BITS = 4, 200_000_000
KIB, MIB = 1 << 10, 1 << 20
# Half of TCP's least retransmission timeout: a round this far above the median waited for a timer.
GAP_SECONDS = 0.1

Row = dict[str, Any]
Judge = Callable[["Run", dict[str, Any]], list["Verdict"]]


@dataclass(frozen=True)
class Verdict:
    """One line of the table. ``met`` None: nothing to hold it against."""

    case: str
    measured: str
    ratio: str
    target: str
    met: bool | None
    run: str


@dataclass(frozen=True)
class Run:
    """One ``mlt perf``; ``testbed`` None: over loopback. ``judge`` turns its result into verdicts."""

    name: str
    perf: Sequence[str]
    judge: Judge
    testbed: dict[str, Any] | None = None

    @property
    def command(self) -> str:
        """What a person would type for it."""
        words = ["mlt", "perf", *self.perf] if self.testbed is not None else ["mlt", "perf", "--local", *self.perf]
        if self.testbed is not None:
            bed = [item for key, value in self.testbed.items() for item in (f"--{key}", str(value))]
            words = ["mlt", "testbed", "run", *bed, "--", *words]
        return shlex.join(words)


# Reading a result


def row_of(result: dict[str, Any], label: str, size: int) -> Row | None:
    """A transport's row at a size; None if it was skipped."""
    return next((row for row in result["results"] if row["label"] == label and row["bytes"] == size), None)


def turn_medians(row: Row) -> list[float]:
    """The median round time of each turn; transports' turns of one number lie beside each other in time."""
    samples, turns = row["samples_seconds"], min(TURNS, len(row["samples_seconds"]))
    edges = [len(samples) * turn // turns for turn in range(turns + 1)]
    return [statistics.median(samples[edges[i] : edges[i + 1]]) for i in range(turns)]


def speed_ratio(ours: Row, theirs: Row) -> float:
    """How many times as fast as theirs: the median over the turns of the ratio within each."""
    pairs = zip(turn_medians(ours), turn_medians(theirs), strict=True)
    return statistics.median(their / our for our, their in pairs)


def gbit(row: Row) -> str:
    return f"{row['goodput_bits_per_second'] / 1e9:.1f}"


def ring_limit_seconds(size: int) -> float:
    """What a ring's payload takes on the wire of the testbed, headers and processing apart."""
    return 2 * (HOSTS - 1) / HOSTS * size * 8 / RATE_BITS


# Judging


def judge_one_way(run: Run, result: dict[str, Any]) -> list[Verdict]:
    size = 64 * MIB
    ours, verdicts = row_of(result, "mlt p=0", size), []
    assert ours is not None
    for name, label, least in (("raw-udp", "bare UDP loop", 0.75), ("gloo", "gloo", 1.3)):
        theirs = row_of(result, name, size)
        if theirs is not None:
            ratio = speed_ratio(ours, theirs)
            if name == "raw-udp":
                # Its rounds are of what arrived: the quotient of the whole run's medians, not the median by turn.
                ratio = ours["goodput_bits_per_second"] / theirs["goodput_bits_per_second"]
            measured = f"mlt {gbit(ours)}, {label} {gbit(theirs)} Gbit/s"
            verdicts.append(
                Verdict(
                    "64 MiB one way, loopback, 1,440 B",
                    measured,
                    f"{ratio:.2f}",
                    f">= {least}",
                    ratio >= least,
                    run.name,
                )
            )
    return verdicts


def untagged(judge: Judge) -> Judge:
    """The same without tagging by magnitude, to see what that costs: for information, against no target."""

    def judge_all(run: Run, result: dict[str, Any]) -> list[Verdict]:
        return [replace(one, case=f"{one.case}, untagged", target="", met=None) for one in judge(run, result)]

    return judge_all


def judge_all_reduce(run: Run, result: dict[str, Any]) -> list[Verdict]:
    verdicts = []
    for size in (MIB, 25 * MIB):
        ours = row_of(result, "mlt p=0", size)
        assert ours is not None
        for name in ("gloo", "mpi"):
            theirs = row_of(result, name, size)
            if theirs is not None:
                ratio = speed_ratio(ours, theirs)
                measured = f"mlt {gbit(ours)}, {name} {gbit(theirs)} Gbit/s"
                case = f"all-reduce of {size // MIB} MiB, 2 ranks, loopback"
                verdicts.append(Verdict(case, measured, f"{ratio:.2f}", "> 1", ratio > 1, run.name))
    return verdicts


def judge_cpu(run: Run, result: dict[str, Any]) -> list[Verdict]:
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
            "<= 1",
            mine <= others,
            run.name,
        )
    ]


def judge_ring(run: Run, result: dict[str, Any]) -> list[Verdict]:
    assert run.testbed is not None
    verdicts = []
    for size, limits in ((64 * KIB, {"mlt p=0.1": 1.5, "mlt p=0": 2.5}), (MIB, {"mlt p=0.1": 1.15, "mlt p=0": 1.3})):
        if all(row["bytes"] != size for row in result["results"]):
            continue  # the other size has a run of its own
        limit = ring_limit_seconds(size)
        case = f"all-reduce of {size // KIB} KiB, {HOSTS} hosts, 200 Mbit/s, loss {run.testbed['loss']}"
        for label, most in limits.items():
            ours = row_of(result, label, size)
            assert ours is not None
            p50, p99 = ours["seconds"]["p50"], ours["seconds"]["p99"]
            measured = f"{label}: p50 {p50 * 1e3:.1f}, p99 {p99 * 1e3:.1f} ms"
            verdicts.append(
                Verdict(
                    case,
                    measured,
                    f"{p99 / limit:.2f}",
                    f"p99 <= {most} x {limit * 1e3:.1f} ms",
                    p99 <= most * limit,
                    run.name,
                )
            )
        gloo = row_of(result, "gloo", size)
        if gloo is not None:
            p50, p99 = gloo["seconds"]["p50"], gloo["seconds"]["p99"]
            measured = f"gloo: p50 {p50 * 1e3:.1f}, p99 {p99 * 1e3:.1f} ms"
            verdicts.append(Verdict(case, measured, f"{p99 / limit:.2f}", "", None, run.name))
    return verdicts


def judge_incast(run: Run, result: dict[str, Any]) -> list[Verdict]:
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


def runs() -> list[Run]:
    """All cases, in the order of the table."""
    # One core per side is part of that target; elsewhere a library may use what the machine has.
    one_way = "--size 64MiB --rounds 15 --segment-bytes 1440 --pin --datapath udp"
    reduce = "--pattern allreduce --size 1MiB,25MiB --rounds 50 --datapath udp --compare gloo,mpi"
    paced = "--size 1MB --rounds 250 --rate 1gbit --datapath udp --compare gloo"
    bounds = "--rounds 100 --loss-bound 0,0.1 --compare gloo"
    bed = {"hosts": HOSTS, "rate": "200mbit", "buffer": "256KiB"}
    found = [
        _run("one-way", f"{one_way} --compare gloo,raw-udp", judge_one_way),
        _run("one-way-untagged", f"{one_way} --compare gloo,raw-udp --tags none", untagged(judge_one_way)),
        _run("all-reduce", reduce, judge_all_reduce),
        _run("cpu", paced, judge_cpu),
        _run("cpu-untagged", f"{paced} --tags none", untagged(judge_cpu)),
    ]
    # Of 100 short rounds the second worst would be the p99, and chance would choose it.
    short = "--pattern allreduce --size 64KiB --rounds 1000 --loss-bound 0,0.1 --compare gloo"
    for loss in ("0%", "0.1%", "1%"):
        lossy, number = {**bed, "loss": loss}, loss.rstrip("%")
        found.append(_run(f"ring-64k-loss-{number}", short, judge_ring, lossy))
        found.append(_run(f"ring-1m-loss-{number}", f"--pattern allreduce --size 1MiB {bounds}", judge_ring, lossy))
    shallow = {**bed, "buffer": "64KiB"}
    found.append(_run("incast", f"--pattern incast --size 1MiB {bounds}", judge_incast, shallow))
    return found


def _run(name: str, perf: str, judge: Judge, testbed: dict[str, Any] | None = None) -> Run:
    return Run(name, [*perf.split(), "--turns", str(TURNS)], judge, testbed)


# Running


def perform(run: Run, folder: Path) -> dict[str, Any]:
    """Run it; the result as ``mlt perf`` wrote it. Raises SystemExit with its last words if it fails."""
    out, picture = folder / f"{run.name}.json", folder / f"{run.name}.png"
    words = [*run.perf, "--json", str(out), "--plot", str(picture)]
    if run.testbed is None:
        done = subprocess.run([*PERF, "--local", *words], capture_output=True, text=True, check=False)
        code, said = done.returncode, done.stdout + done.stderr
    else:
        lines: list[str] = []
        shape = {key: value for key, value in run.testbed.items() if value != "0%"}
        with Testbed(**shape) as bed:
            outcome = runner.run(
                bed, [*PERF, *words], write=lambda rank, line: lines.append(f"[{rank}] {line.decode()}")
            )
        code, said = outcome.code, "\n".join(lines)
    if code:
        raise SystemExit(f"{run.command}\nended with exit code {code}:\n{said[-3000:]}")
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def without_samples(result: dict[str, Any]) -> dict[str, Any]:
    """For the file that is kept: thousands of samples are in the picture."""
    return {
        **result,
        "results": [{k: v for k, v in row.items() if k != "samples_seconds"} for row in result["results"]],
    }


def markdown(verdicts: Sequence[Verdict], done: Sequence[Run], skipped: Sequence[str], load: float) -> str:
    """The page. ``load``: of the machine before anything of this began."""
    met, judged = sum(one.met is True for one in verdicts), sum(one.met is not None for one in verdicts)
    lines = [
        "# Against the peers: what was asked for, and what was measured",
        "",
        f"Written by `make targets` on {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC: {os.cpu_count()} shared cores, "
        f"Linux {platform.release()}. {met} of {judged} targets met.",
        *_busy(load),
        f"A ratio of speeds is the median of {TURNS} turns, in each of which every transport ran beside the others",
        "(to the bare UDP loop, the quotient of the medians of the whole run);",
        "percentiles stand on all rounds of a run. [perf.md](../perf.md) says how they are taken, and where the time",
        "of missed targets goes.",
        "",
        "| case | measured | ratio | target | met | run |",
        "|---|---|---|---|---|---|",
    ]
    words = {True: "yes", False: "**no**", None: "-"}
    lines += [
        f"| {v.case} | {v.measured} | {v.ratio} | {v.target or '-'} | {words[v.met]} | {v.run} |" for v in verdicts
    ]
    lines += ["", *(f"Not measured: {text}." for text in skipped), "", "| run | command |", "|---|---|"]
    lines += [f"| {run.name} | `{run.command}` |" for run in done]
    lines += ["", *(f"![{run.name}](line-rate-{run.name}.png)" for run in done), ""]
    return "\n".join(lines)


def _busy(load: float) -> list[str]:
    cores = os.cpu_count() or 1
    if load < 0.5 * cores:
        return []
    return [
        f"**The load was {load:.0f} on {cores} cores when this began**: times against the wire are those of a machine",
        "short of CPU. Ratios between transports, and CPU per GB, suffer less.",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("loopback", "testbed"), help="a part of the cases")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of what is written")
    options = parser.parse_args()
    missing = problems(make({"hosts": HOSTS}))
    load = os.getloadavg()[0]
    skipped = ["Horovod (it is no transport of mlt perf)"]
    verdicts: list[Verdict] = []
    done: list[Run] = []
    kept: dict[str, Any] = {"schema": 1, "runs": {}}
    options.output.mkdir(parents=True, exist_ok=True)
    for run in runs():
        part = "loopback" if run.testbed is None else "testbed"
        if options.only not in (None, part):
            continue
        if part == "testbed" and missing:
            skipped.append(f"{run.name} ({'; '.join(missing)})")
            continue
        print(run.command, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            result = perform(run, Path(folder))
            picture = (Path(folder) / f"{run.name}.png").read_bytes()
        (options.output / f"line-rate-{run.name}.png").write_bytes(picture)
        found = run.judge(run, result)
        for one in found:
            print(f"  {one.case}: {one.measured}; {one.ratio} (target {one.target or '-'}): {one.met}", flush=True)
        verdicts += found
        done.append(run)
        kept["runs"][run.name] = {"command": run.command, **without_samples(result)}
    kept |= {"verdicts": [vars(one) for one in verdicts], "load_before": load}
    (options.output / "line-rate.md").write_text(markdown(verdicts, done, skipped, load), encoding="utf-8")
    (options.output / "line-rate.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
