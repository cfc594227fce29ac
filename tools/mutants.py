"""Mutation testing of the oracle: plants one fault at a time in the protocol core; a swarm must catch it.

Faults are listed in tests/sim/mutants.yaml (by hand) and drawn_mutants.yaml (by tools/draw_mutants.py), as text to find
(exactly once) and its replacement. Each is built in a copy of the tree and run over seeds from 1 until one fails. The
unit tests of its folder check faults that the swarm does not catch or cannot see: first those in files that belong to
the faulty one, built alone, then all. The micro-swarm is a separate hunter.
Prints the rule or test that caught each fault, and the place. Exits non-zero if a fault survives, or no longer applies
to the code.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("src", "plugins/nccl", "plugins/variables", "tests", "tools/chaos", "CMakeLists.txt", "CMakePresets.json")
RULE = re.compile(r"^(rule \d+|rank \d+: .*|mlt: internal error: .*)", re.MULTILINE)


@dataclass(frozen=True)
class Hunter:
    """A program that detects faults: arguments for the clean run and for the hunt, and the pattern of its finding."""

    target: str
    clean: tuple[str, ...] | None  # None: other stages have seen that it passes without a fault
    hunts: tuple[tuple[str, ...], ...]
    shown_by: re.Pattern[str]
    limit_s: int = 1_200  # CPU time of each hunt; it may stand still for twice as long on a busy machine
    parallel: bool = False  # its hunts may run beside each other
    test_files: str | None = None  # of a test program: pattern of the only test files that it is built of; empty: all


SEEDS_OF_A_HUNT = 200


def swarm(seeds: int) -> Hunter:
    """Hunts of a few hundred seeds, so that one fault has all cores."""
    hunts = tuple(
        ("--first", str(first), "--count", str(min(SEEDS_OF_A_HUNT, seeds + 1 - first)), "--limit-s", "20")
        for first in range(1, seeds + 1, SEEDS_OF_A_HUNT)
    )
    shown_by = re.compile(r"(seed \d+) failed")
    return Hunter("mlt_swarm", ("--first", "1", "--count", "100"), hunts, shown_by, parallel=True)


def micro(seeds: int) -> Hunter:
    hunts = (("--depth", "1"), ("--depth", "2"), ("--random", "--first", "1", "--count", str(100 * seeds)))
    return Hunter("mlt_micro", ("--depth", "1"), hunts, re.compile(r"to see it again: \S+ --replay (\S+)"))


# Tests that print text without failing have a header too.
FAILED_TEST = re.compile(r"TEST CASE: +(\S+)(?:(?!TEST CASE)[\s\S])*? ERROR: ")


# Test programs and their folders, for the faults of a layer.
TESTS = {
    "src/core": {"test_core": "unit/core", "test_property": "property"},
    "src/wire": {"test_wire": "unit/wire", "test_core": "unit/core"},
    "src/collective": {"test_collective": "unit/collective", "test_sim_collectives": "sim/collectives"},
    "src/engine": {"test_engine": "unit/engine"},
    "src/io/control": {"test_io": "unit/io/control"},
}
# The swarm runs neither, but for collectives in some seeds: it hunts those faults alone that name it as their hunter.
NOT_IN_SWARM = ("src/collective", "src/engine", "src/io/control")


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    find: str
    replace: str
    hunter: str = "any"  # or the only one that can see it
    seen_by: str = ""  # a test file that fails with it, if its name and includes do not say so: it is built first
    equivalent: str = ""  # why nothing can tell it from the code: it is listed and not hunted


def belongs(test: Path, faulty: Path) -> bool:
    """Whether a test file has the faulty file's name, or its first word, or includes its header."""
    header = faulty.relative_to("src").with_suffix(".h")
    return faulty.stem.split("_")[0] in test.stem or f'#include "{header}"' in test.read_text()


def unit_tests(target: str, folder: Path, mutant: Mutant) -> list[Hunter]:
    # All of test_core takes minutes to compile and one to run. The first failure ends a run.
    files = folder.rglob("*.cc")
    first = sorted(path.name for path in files if path.name == mutant.seen_by or belongs(path, Path(mutant.file)))
    patterns = [f"/({'|'.join(first)})$", ""] if first else [""]
    hunts = (("--abort-after=1",),)
    return [Hunter(target, None, hunts, FAILED_TEST, limit_s=400, test_files=pattern) for pattern in patterns]


def hunters_of(choice: str, mutant: Mutant, seeds: int) -> list[Hunter]:
    """The hunters of a fault, in order; empty if the chosen ones cannot see it."""
    folder = str(Path(mutant.file).parent)
    if mutant.hunter == "micro":
        return [micro(seeds)] if choice in ("all", "micro") else []
    if mutant.hunter == "swarm" and choice == "micro":
        return []
    is_seen = mutant.hunter == "swarm" or (folder not in NOT_IN_SWARM and mutant.hunter != "tests")
    chosen = [swarm(seeds)] if choice in ("all", "swarm") and is_seen else []
    if choice == "micro":
        chosen.append(micro(seeds))
    if choice in ("all", "tests"):
        for target, tests in TESTS[folder].items():
            chosen += unit_tests(target, ROOT / "tests" / tests, mutant)
    return chosen


@dataclass(frozen=True)
class Result:
    mutant: Mutant
    caught: bool
    shown_by: str  # seed or run
    by: str
    seconds: float


def read_mutants(path: Path) -> list[Mutant]:
    """The faults of one list; each must apply to the current code."""
    mutants = [Mutant(**entry) for entry in yaml.safe_load(path.read_text())]
    for mutant in mutants:
        found = (ROOT / mutant.file).read_text().count(mutant.find)
        if found != 1:
            raise SystemExit(
                f"{path}: {mutant.name}: its text is in {mutant.file} {found} times, not once. "
                "The code has changed: adapt the entry, so that the fault is planted again."
            )
    return mutants


def copy_if_changed(source: Path, target: Path) -> None:
    """Copy only files that differ, so that only they are compiled again; this also restores leftovers of a run."""
    if target.exists() and target.read_bytes() == source.read_bytes():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def first_failure(commands: list[list[str]], *, at_once: int, limit_s: float) -> tuple[int, str] | None:
    """Run commands up to the first, in their order, that fails: its exit status and output; None if none does.

    Several run beside each other, which does not change the answer. Raises TimeoutExpired if one takes too long.
    """
    waiting = deque(commands)
    running: deque[subprocess.Popen[str]] = deque()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                pipe = subprocess.PIPE
                running.append(subprocess.Popen(waiting.popleft(), stdout=pipe, stderr=pipe, text=True))
            output, errors = running[0].communicate(timeout=limit_s)
            ended = running.popleft()
            if ended.returncode != 0:
                return ended.returncode, errors + output
        return None
    finally:
        for process in running:
            process.kill()
            process.communicate()


class Workshop:
    """A copy of the tree for mutation, build and restore."""

    def __init__(self, folder: Path, compilers: int, *, in_batches: bool = False) -> None:
        self._folder = folder
        self._in_batches = in_batches  # several files at a time: all of them cost less, and one that changes costs more
        self._compilers = compilers  # at a time; also programs, where a hunt has several
        self._test_files: str | None = None  # as the build is configured
        self._clean: set[str] = set()  # programs that are clean without a fault
        folder.mkdir(parents=True, exist_ok=True)
        for name in SOURCES:
            source = ROOT / name
            files = [p for p in source.rglob("*") if p.is_file()] if source.is_dir() else [source]
            for old in (folder / name).rglob("*"):
                if old.is_file() and not (ROOT / old.relative_to(folder)).exists():
                    old.unlink()
            for file in files:
                copy_if_changed(file, folder / file.relative_to(ROOT))

    def configure(self, hunter: Hunter) -> None:
        test_files = hunter.test_files if hunter.test_files is not None else self._test_files or ""
        if test_files == self._test_files:
            return
        # -O1: most of the time is compilation of the mutated files.
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1", "-DMLT_BUILD_TESTS=ON"]
        options += ["-DMLT_WARNINGS_ARE_ERRORS=OFF", "-DMLT_PRECOMPILE=ON", "-DMLT_TEST_FLAGS=-O0"]
        options += [f"-DMLT_TEST_FILES={test_files}", f"-DCMAKE_UNITY_BUILD={'ON' if self._in_batches else 'OFF'}"]
        self._run(["cmake", "-S", str(self._folder), "-B", str(self._folder / "build"), "-G", "Ninja", *options])
        self._test_files = test_files

    def _program(self, hunter: Hunter) -> Path:
        return self._folder / "build/tests" / hunter.target

    def _building(self, hunter: Hunter) -> list[str]:
        return ["cmake", "--build", str(self._folder / "build"), "--target", hunter.target, "-j", str(self._compilers)]

    def hunt(self, mutant: Mutant, hunters: list[Hunter]) -> Result:
        """Plant the fault, and run one hunter after another."""
        started = time.monotonic()
        result = Result(mutant, False, "", "nobody", 0)
        for hunter in hunters:
            result = self._plant(mutant, hunter, started)
            if result.caught:
                break
        return result

    def _plant(self, mutant: Mutant, hunter: Hunter, started: float) -> Result:
        self.configure(hunter)
        if hunter.clean is not None and hunter.target not in self._clean:
            # A detection counts only if the program without the fault is clean.
            self._run(self._building(hunter))
            self._run([str(self._program(hunter)), *hunter.clean])
            self._clean.add(hunter.target)
        path = self._folder / mutant.file
        original = path.read_text()
        try:
            path.write_text(original.replace(mutant.find, mutant.replace))
            built = subprocess.run(self._building(hunter), capture_output=True, text=True, check=False)
            if built.returncode != 0:
                error = next((line for line in built.stdout.splitlines() if " error: " in line), "no error is printed")
                return Result(mutant, False, "", f"does not build: {error}", time.monotonic() - started)
            return self._hunt(mutant, hunter, started)
        finally:
            path.write_text(original)

    def _hunt(self, mutant: Mutant, hunter: Hunter, started: float) -> Result:
        limit = ["prlimit", f"--cpu={hunter.limit_s}"]
        commands = [[*limit, str(self._program(hunter)), *hunt] for hunt in hunter.hunts]
        at_once = self._compilers if hunter.parallel else 1
        try:
            failure = first_failure(commands, at_once=at_once, limit_s=3 * hunter.limit_s)
        except subprocess.TimeoutExpired:
            failure = -signal.SIGXCPU, ""
        if failure is None:
            return Result(mutant, False, "", "nobody", time.monotonic() - started)
        status, said = failure
        if status in (-signal.SIGXCPU, -signal.SIGKILL):
            caught = hunter.target.startswith("test_")  # a test that does not end has failed
            by = f"{hunter.target}, still running after {hunter.limit_s} s"
            return Result(mutant, caught, "?", by, time.monotonic() - started)
        rule, shown = RULE.search(said), hunter.shown_by.search(said)
        by = rule.group(0)[:70] if rule else f"{hunter.target}, exit code {status}"
        return Result(mutant, True, shown.group(1) if shown else "?", by, time.monotonic() - started)

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--list", type=Path, action="append", help="list of faults; repeatable (default: both lists in tests/sim)"
    )
    hunters = ("all", "swarm", "tests", "micro")
    parser.add_argument(
        "--hunter", choices=hunters, default="all", help="programs to run on each fault (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=10_000, help="swarm seeds per fault (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time (default: CPUs)")
    parser.add_argument("--only", default="", help="run only faults whose name contains this text")
    parser.add_argument("--every", type=int, default=1, help="run only every n-th fault (default: all)")
    parser.add_argument(
        "--in-batches", action="store_true", help="compile several files at a time: cheaper for a dozen faults or fewer"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build/mutants", help="folder for the copy of the tree")
    parser.add_argument("--report", type=Path, help="JSON file for the results")
    options = parser.parse_args()
    lists = options.list or [ROOT / "tests/sim/mutants.yaml", ROOT / "tests/sim/drawn_mutants.yaml"]
    listed = [m for path in lists for m in read_mutants(path) if options.only in m.name][:: options.every]
    for mutant in listed:
        if mutant.equivalent:
            print(f"{mutant.name:42} equivalent: {mutant.equivalent}")
    mutants = [m for m in listed if not m.equivalent and hunters_of(options.hunter, m, options.seeds)]
    if not mutants:
        parser.error(f"no mutant has {options.only!r} in its name")
    workshops: SimpleQueue[Workshop] = SimpleQueue()
    jobs = min(options.jobs, len(mutants))
    print(f"{len(mutants)} mutants, {jobs} at a time; building", flush=True)
    for number in range(jobs):
        compilers = max(1, (os.cpu_count() or 1) // jobs)
        workshops.put(Workshop(options.folder / str(number), compilers, in_batches=options.in_batches))

    def hunt(mutant: Mutant) -> Result:
        workshop = workshops.get()
        try:
            result = workshop.hunt(mutant, hunters_of(options.hunter, mutant, options.seeds))
        finally:
            workshops.put(workshop)
        verdict = f"caught at {result.shown_by} by {result.by}" if result.caught else f"SURVIVED: {result.by}"
        print(f"{mutant.name:42} {verdict} ({result.seconds:.0f} s)", flush=True)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(hunt, mutants))
    caught = sum(result.caught for result in results)
    print(f"{caught} of {len(results)} caught")
    if options.report:
        rows = [{"mutant": r.mutant.name, "caught": r.caught, "shown_by": r.shown_by, "by": r.by} for r in results]
        options.report.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if caught == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
