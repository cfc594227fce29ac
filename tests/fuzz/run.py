"""Run the fuzz targets, some at a time, and say how to replay what they find.

    make fuzz                           # 60 s each, two at a time
    make fuzz FUZZ_SECONDS=28800        # all night
    python3 tests/fuzz/run.py --seconds 600 endpoint
    python3 tests/fuzz/run.py --keep    # afterwards: the smallest corpus of equal coverage, to be committed

Each target starts from its committed corpus (tests/fuzz/corpus/<target>) and from what earlier runs found
(build/fuzz/corpus/<target>). A failing input is written to build/fuzz/crashes/.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "fuzz"
COMMITTED = ROOT / "tests" / "fuzz" / "corpus"
# Longest input in bytes: what the target can use, so that time is not spent on bytes that nothing reads.
TARGETS = {"packet": 128, "control": 1_200, "frame": 2_000, "channel": 400, "connect": 400, "endpoint": 800}
# Committed inputs of a target; if more are needed for equal coverage, the longest stay, which reach furthest.
COMMITTED_INPUTS = {"packet": 25, "control": 30, "frame": 30, "channel": 30, "connect": 30, "endpoint": 65}
# One input that takes longer is a failure: none needs a tenth of it.
INPUT_LIMIT_S = 10


@dataclass(frozen=True)
class Result:
    """The end of one target's run."""

    target: str
    log: Path
    failed: bool
    crashes: list[Path]
    summary: str


def run_target(target: str, seconds: int) -> Result:
    """Fuzz one target for `seconds`."""
    found = BUILD / "corpus" / target
    crashes = BUILD / "crashes"
    found.mkdir(parents=True, exist_ok=True)
    crashes.mkdir(parents=True, exist_ok=True)
    prefix = crashes / f"{target}-"
    before = set(crashes.glob(f"{target}-*"))
    log = BUILD / f"{target}.log"
    command = [str(BUILD / "tests" / "fuzz" / f"fuzz_{target}"), str(found), str(COMMITTED / target)]
    command += [f"-max_total_time={seconds}", f"-max_len={TARGETS[target]}", f"-timeout={INPUT_LIMIT_S}"]
    command += [f"-artifact_prefix={prefix}", "-print_final_stats=1", "-rss_limit_mb=2048"]
    with log.open("w", encoding="utf-8") as out:
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    text = log.read_text(encoding="utf-8", errors="replace")
    runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
    coverage = re.findall(r"cov: (\d+)", text)
    count = int(runs.group(1)) if runs else 0
    summary = f"{target:9} {count:>12,} inputs, {coverage[-1] if coverage else '?'} edges covered"
    return Result(target, log, code != 0, sorted(set(crashes.glob(f"{target}-*")) - before), summary)


def report(result: Result) -> None:
    """One line if all is well, else the end of the log and how to replay it."""
    print(result.summary + (": FAILED" if result.failed else ""), flush=True)
    if not result.failed:
        return
    lines = result.log.read_text(encoding="utf-8", errors="replace").splitlines()
    interesting = [line for line in lines if re.search(r"property broken|ERROR|SUMMARY|runtime error|mlt:", line)]
    print("\n".join(f"    {line}" for line in interesting[:10]))
    for crash in result.crashes:
        shown = crash.relative_to(ROOT)
        print(f"  replay:   build/fuzz/tests/fuzz/replay_{result.target} {shown}")
        print(f"  minimise: build/fuzz/tests/fuzz/fuzz_{result.target} -minimize_crash=1 -runs=100000 {shown}")
    print(f"  then commit it as tests/fuzz/corpus/{result.target}/regression-<what it was>, with the fix")


def keep(target: str) -> None:
    """Replace the committed corpus by the smallest set of inputs that covers as much; regressions always stay."""
    with tempfile.TemporaryDirectory() as scratch:
        # Edges only, not how often each was taken: a tenth of the files.
        command = [str(BUILD / "tests" / "fuzz" / f"fuzz_{target}"), "-set_cover_merge=1", "-use_counters=0", scratch]
        command += [str(BUILD / "corpus" / target), str(COMMITTED / target), f"-max_len={TARGETS[target]}"]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        for old in (COMMITTED / target).glob("*"):
            if not old.name.startswith("regression-"):
                old.unlink()
        chosen = sorted(Path(scratch).iterdir(), key=lambda path: (-path.stat().st_size, path.name))
        chosen = chosen[: COMMITTED_INPUTS[target]]
        for path in chosen:
            shutil.copy(path, COMMITTED / target / path.name[:16])
    print(f"{target}: {len(chosen)} inputs, {sum(p.stat().st_size for p in (COMMITTED / target).glob('*')):,} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help=f"some of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: 60)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time (default: CPUs)")
    parser.add_argument("--keep", action="store_true", help="do not fuzz; minimise what was found into the repository")
    options = parser.parse_args()
    targets = options.targets or list(TARGETS)
    if unknown := sorted(set(targets) - set(TARGETS)):
        parser.error(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if missing := [t for t in targets if not (BUILD / "tests" / "fuzz" / f"fuzz_{t}").exists()]:
        parser.error(f"not built: {', '.join(missing)}; run `make fuzz`, or cmake --build --preset fuzz")
    if options.keep:
        for target in targets:
            keep(target)
        return 0
    started = time.monotonic()
    with ThreadPoolExecutor(max_workers=options.jobs) as pool:
        results = []
        for result in pool.map(lambda target: run_target(target, options.seconds), targets):
            report(result)
            results.append(result)
    failed = [result.target for result in results if result.failed]
    print(f"fuzz: {len(results)} targets in {time.monotonic() - started:.0f} s, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
