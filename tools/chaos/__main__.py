"""Real ranks on real sockets in a faulty network, checked by the simulator's oracle.

    python tools/chaos                            # 30 s of jobs; needs root
    python tools/chaos --seconds 600              # the long form; writes docs/results/chaos.md
    python tools/chaos --seed 7 --job 3           # one job again: the same posts, the same faults at the same times

Jobs of four ranks run one after another on a testbed of two leaves and two spines. The seed determines each rank's
stream of sends, receives and collectives, and the faults of ranks and network: SIGKILL, SIGSTOP, wall clocks that jump,
partitions, slow and paused paths, interfaces that go down, packets lost, copied, damaged and reordered. Every rank
writes a trace; mlt_chaos_check (tests/sim/chaos) checks it against the oracle's rules. Exits with 1 if a rule was
violated. A seed repeats posts and faults, but not real time.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import report
import run
import schedule
from network import Network
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from mlt._shared.units import TIME

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "default"
CHECKER = BUILD / "tests" / "mlt_chaos_check"
WIRE = BUILD / "tests" / "mlt_chaos_wire"
CLOCK = BUILD / "tests" / "libmlt_chaos_clock.so"
RANKS, SPINES = 4, 2
LONG = 600.0
DRAINING = 6.0  # seconds of a job besides its traffic: start and end


def build() -> None:
    """Build the three programs unless they exist."""
    if all(path.exists() for path in (CHECKER, WIRE, CLOCK)):
        return
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if cmake is None:
        raise SystemExit("chaos: cmake is not there; `make chaos` installs it")
    targets = [path.name.removeprefix("lib").removesuffix(".so") for path in (CHECKER, WIRE, CLOCK)]
    for words in (["--preset", "default"], ["--build", "--preset", "default", "--target", *targets]):
        subprocess.run([cmake, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def plans(options: argparse.Namespace) -> tuple[int, list[schedule.Plan]]:
    """The first job's number, and a plan for each job."""
    only = tuple(options.only.split(",")) if options.only else ()
    lengths = random.Random(f"{options.seed}/lengths")
    found: list[schedule.Plan] = []
    left = options.seconds
    while left > 0 or (options.job is not None and len(found) <= options.job):
        seconds = min(lengths.uniform(6.0, 22.0), options.longest)
        found.append(schedule.draw(options.seed, len(found), ranks=RANKS, spines=SPINES, seconds=seconds, only=only))
        left -= seconds + DRAINING
    if options.job is not None:
        return options.job, [found[options.job]]
    return 0, found


def check(folder: Path) -> report.Verdict:
    """Verdict of mlt_chaos_check on the traces in ``folder``; raises RuntimeError if it cannot read them."""
    done = subprocess.run([str(CHECKER), str(folder)], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr.strip() or f"mlt_chaos_check ended with {done.returncode}")
    return report.Verdict.parse(done.stdout)


def play(options: argparse.Namespace, folder: Path) -> run.Outcome:
    """Run the jobs, with their traces in ``folder``, and a progress bar."""
    first, chosen = plans(options)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Network(RANKS, WIRE) as network, Progress(*columns, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("chaos", total=sum(plan.seconds for plan in chosen))

        def tick(job: int, seconds: float) -> None:
            before = sum(plan.seconds for plan in chosen[: job - first])
            kind = next((one.kind for one in chosen[job - first].events if one.begin > seconds), "no more faults")
            progress.update(bar, completed=before + seconds, description=f"job {job}, next: {kind}")

        return run.run(network, chosen, folder, CLOCK, seed=options.seed, first=first, size=RANKS, tick=tick)


def explain(options: argparse.Namespace, verdict: report.Verdict, outcome: run.Outcome, folder: Path) -> None:
    """Print the violations, and how to reproduce them."""
    for text in [*outcome.wrong, *verdict.broken[:40]]:
        print(text, file=sys.stderr)
    if len(verdict.broken) > 40:
        print(f"... and {len(verdict.broken) - 40} more", file=sys.stderr)
    jobs = sorted({int(text.split("job chaos-")[1].split("-")[1].split(":")[0]) for text in verdict.broken
                   if "job chaos-" in text})  # fmt: skip
    only = f" --only {options.only}" if options.only else ""
    for job in jobs or [max(outcome.jobs - 1, 0)]:
        again = f"python tools/chaos --seed {options.seed} --job {job} --longest {options.longest:g}{only}"
        print(f"again, with the same posts and faults at the same times (real time is not repeatable): {again}")
        _, (plan,) = plans(argparse.Namespace(**{**vars(options), "job": job}))
        print("\n".join(event.text() for event in plan.events))
    print(f"traces: {folder}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--seconds", type=TIME.read, default=30.0, help="duration of all jobs together (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=None, help="seed of posts and faults (default: random)")
    parser.add_argument("--job", type=int, help="run only the job with this number")
    parser.add_argument(
        "--longest", type=float, default=22.0, help="max seconds of traffic per job (default: %(default)s)"
    )
    parser.add_argument("--only", help=f"kinds of faults, separated by commas: {', '.join(schedule.KINDS)}")
    parser.add_argument("--keep", type=Path, help="folder for the traces (default: kept only if a rule was violated)")
    parser.add_argument(
        "--out", type=Path, help=f"Markdown report (default: docs/results/chaos.md if --seconds >= {LONG:g})"
    )
    options = parser.parse_args()
    if options.seed is None:
        options.seed = secrets.randbelow(2**31)
    unknown = set(options.only.split(",") if options.only else ()) - set(schedule.KINDS)
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(schedule.KINDS)}")
    if options.out is None and options.seconds >= LONG:
        options.out = ROOT / "docs" / "results" / "chaos.md"
    build()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="mlt-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"chaos: seed {options.seed}", file=sys.stderr, flush=True)
    outcome = play(options, folder)
    verdict = check(folder)
    report.show(verdict, outcome)
    if options.out is not None:
        options.out.write_text(
            report.markdown(options.seed, options.seconds, verdict, outcome, [os.cpu_count() or 1, RANKS])
        )
    if verdict.broken or outcome.wrong:
        explain(options, verdict, outcome, folder)
        return 1
    if options.keep is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
