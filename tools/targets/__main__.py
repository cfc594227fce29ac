"""Measure ``mlt`` against its targets; writes docs/results/line-rate.md, .json and the pictures.

    python tools/targets            # all cases: twelve minutes; the testbed's need root
    python tools/targets --only loopback

Every case is one ``mlt perf``, or one program of tests/bench. Compared transports take turns, and a figure is a ratio
within that run. The page records a missed target as missed; this exits with 0 unless a measurement failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from verdicts import (
    HOSTS,
    TURNS,
    Check,
    Run,
    Verdict,
    busy,
    check_all_reduce,
    check_asleep,
    check_cpu,
    check_incast,
    check_one_way,
    check_push_pull,
    check_ring,
    check_shared_memory,
    check_slow_host,
    counts,
    host_and_time,
    short_segments,
    table,
    untagged,
)

from mlt.perf.transports import transport_class
from mlt.testbed import Testbed, make, runner
from mlt.testbed.requirements import problems

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
PERF = [sys.executable, "-m", "mlt.cli.main", "perf"]


def runs() -> list[Run]:
    """All cases, in the order of the table."""
    # That target has one core per side; elsewhere a library may use the whole host.
    one_way = "--size 64MiB --rounds 15 --pin --datapath udp"
    reduce = "--pattern allreduce --size 64b,64KiB,1MiB,25MiB"
    paced = "--size 1MB --rounds 250 --rate 1gbit --datapath udp --compare gloo"
    bounds = "--rounds 100 --loss-bound 0,0.1 --compare gloo"
    bed = {"hosts": HOSTS, "rate": "200mbit", "buffer": "256KiB"}
    found = [
        _run("one-way", f"{one_way} --compare gloo,raw-udp", check_one_way),
        _run("one-way-untagged", f"{one_way} --compare gloo,raw-udp --priority none", untagged(check_one_way)),
        _run("one-way-1440", f"{one_way} --segment-bytes 1440 --compare raw-udp", short_segments(check_one_way)),
        _run("all-reduce", f"{reduce} --datapath udp --compare tcp,gloo,mpi,raw-udp", check_all_reduce),
        replace(
            _run("all-reduce-asleep", f"{reduce} --datapath udp --compare tcp,gloo", check_asleep),
            environment=(("MLT_SPIN_US", "0"),),
        ),
        _run("all-reduce-shm", f"{reduce} --compare mpi-shm", check_shared_memory),
        replace(
            _run("push-pull", "--bytes 4MB --keys 8 --rounds 50", check_push_pull),
            environment=(("MLT_DATAPATH", "udp"),),
            program="tests/bench/push_pull.py",
        ),
        _run("cpu", paced, check_cpu),
        _run("cpu-untagged", f"{paced} --priority none", untagged(check_cpu)),
    ]
    # With 100 short rounds, the p99 would be the second longest, which is chance.
    short = "--pattern allreduce --size 64KiB --rounds 1000 --loss-bound 0,0.1 --compare gloo"
    for loss in ("0%", "0.1%", "1%"):
        lossy, number = {**bed, "loss": loss}, loss.rstrip("%")
        found.append(_run(f"ring-64k-loss-{number}", short, check_ring, lossy))
        found.append(_run(f"ring-1m-loss-{number}", f"--pattern allreduce --size 1MiB {bounds}", check_ring, lossy))
    shallow = {**bed, "buffer": "64KiB"}
    found.append(
        replace(_run("slow-host", "--size 4MiB --rounds 60", check_slow_host, bed), program="tests/bench/slow_host.py")
    )
    found.append(_run("incast", f"--pattern incast --size 1MiB {bounds}", check_incast, shallow))
    return found


def _run(name: str, perf: str, check: Check, testbed: dict[str, Any] | None = None) -> Run:
    return Run(name, [*perf.split(), "--turns", str(TURNS)], check, testbed)


def missing_peers(chosen: Sequence[Run]) -> list[str]:
    """Why peers that these cases are compared with cannot run here."""
    lists = [run.perf[run.perf.index("--compare") + 1] for run in chosen if "--compare" in run.perf]
    names = sorted({name for text in lists for name in text.split(",")})
    return [f"{name}: {reason}" for name in names if (reason := transport_class(name).missing()) is not None]


# Running


def perform(run: Run, folder: Path) -> dict[str, Any]:
    """Run it; returns the result as written by ``mlt perf``. Raises SystemExit with its last output if it fails."""
    out, picture = folder / f"{run.name}.json", folder / f"{run.name}.png"
    words = [*run.perf, "--json", str(out), "--plot", str(picture)]
    if run.testbed is None or run.program:
        command = [*PERF, "--local", *words]
        if run.program:
            command = [sys.executable, str(ROOT / run.program), *run.perf]
        environment = {**os.environ, **dict(run.environment)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        code, said = done.returncode, done.stdout + done.stderr
        if run.program and not code:
            out.write_text(done.stdout, encoding="utf-8")
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
    """The result for the stored file: the picture contains the thousands of samples."""
    if "results" not in result:  # of a program of its own
        return {key: value for key, value in result.items() if key != "seconds"}
    return {
        **result,
        "results": [{k: v for k, v in row.items() if k != "samples_seconds"} for row in result["results"]],
    }


def markdown(verdicts: Sequence[Verdict], done: Sequence[Run], skipped: Sequence[str], load: float) -> str:
    """The page. ``load``: of the host before the first measurement."""
    met, checked = counts(verdicts)
    lines = [
        "# Against the peers: what was asked for, and what was measured",
        "",
        f"Written by `make targets` on {host_and_time()}. {met} of {checked} targets met.",
        *busy(load),
        f"A ratio of speeds is the median of {TURNS} turns, in each of which every transport ran beside the others",
        "(to the bare UDP loop, the quotient of the medians of the whole run);",
        "percentiles stand on all rounds of a run. [perf.md](../perf.md) says how they are taken, and where the time",
        "of missed targets goes.",
        "",
        *table(verdicts),
    ]
    lines += ["", *(f"Not measured: {text}." for text in skipped), "", "| run | command |", "|---|---|"]
    lines += [f"| {run.name} | `{run.command}` |" for run in done]
    lines += ["", *(f"![{run.name}](line-rate-{run.name}.png)" for run in done if not run.program), ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("loopback", "testbed"), help="run only these cases (default: all)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for the results (default: %(default)s)")
    options = parser.parse_args()
    chosen = [run for run in runs() if options.only in (None, "loopback" if run.testbed is None else "testbed")]
    if peers := missing_peers(chosen):
        raise SystemExit(f"error: peers to compare with are not here, nothing was measured: {'; '.join(peers)}")
    missing = problems(make({"hosts": HOSTS}))
    load = os.getloadavg()[0]
    skipped = ["Horovod (it is no transport of mlt perf)"]
    verdicts: list[Verdict] = []
    done: list[Run] = []
    kept: dict[str, Any] = {"schema": 1, "runs": {}}
    options.output.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, bytes] = {}
    for run in chosen:
        if run.testbed is not None and missing:
            skipped.append(f"{run.name} ({'; '.join(missing)})")
            continue
        print(run.command, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            result = perform(run, Path(folder))
            if not run.program:
                pictures[run.name] = (Path(folder) / f"{run.name}.png").read_bytes()
        found = run.check(run, result)
        for one in found:
            print(f"  {one.case}: {one.measured}; {one.ratio} (target {one.target or '-'}): {one.met}", flush=True)
        verdicts += found
        done.append(run)
        kept["runs"][run.name] = {"command": run.command, **without_samples(result)}
    kept |= {"verdicts": [vars(one) for one in verdicts], "load_before": load}
    for name, picture in pictures.items():
        (options.output / f"line-rate-{name}.png").write_bytes(picture)
    (options.output / "line-rate.md").write_text(markdown(verdicts, done, skipped, load), encoding="utf-8")
    (options.output / "line-rate.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
