"""Run the swarm over many seeds on every core: resumable, with a progress bar, and a command to replay each failure.

Separate processes of the compiled swarm (tests/sim/swarm_main.cc) run the seeds in blocks. Finished blocks are written
to a journal at once, under the digest of the program that ran them. An interrupted run continues where it stopped, and
a changed program starts again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

BLOCK = 500
TOTALS = ("seeds", "failed", "events", "packet_hops", "operations", "completions", "data_packets_dropped")


@dataclass(frozen=True)
class Hunt:
    """A program that takes --first, --count and --keep-going and ends with a line of totals as JSON."""

    name: str
    program: Path
    arguments: tuple[str, ...]
    first: int
    count: int
    block: int
    totals: tuple[str, ...]
    jobs: int
    journal: Path


def run_block(hunt: Hunt, first: int, count: int) -> dict[str, object]:
    """Run `count` seeds from `first`; returns the program's totals, with the text of failures under "errors"."""
    command = [str(hunt.program), *hunt.arguments, "--first", str(first), "--count", str(count), "--keep-going"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode in (0, 1) and lines:
        totals: dict[str, object] = json.loads(lines[-1])
    else:  # a failed assertion ended the process: run the rest of the block
        totals = {"seeds": 0, "failed": 1}
    return totals | {"first": first, "count": count, "errors": done.stderr, "ended": done.returncode in (0, 1)}


def read_journal(path: Path, digest: str) -> dict[int, dict[str, object]]:
    """Blocks that this exact program has finished, by first seed."""
    done: dict[int, dict[str, object]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # the line was incomplete when the run was stopped
            if entry.get("program") == digest:
                done[entry["first"]] = entry
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    program = Path("build/default/tests/mlt_swarm")
    parser.add_argument("--program", type=Path, default=program, help="the compiled swarm (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=2000, help="number of seeds (default: %(default)s)")
    parser.add_argument("--first", type=int, default=1, help="first seed (default: %(default)s)")
    add_common_options(parser, Path("build/swarm/journal.jsonl"))
    options = parser.parse_args()
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs are at least 1")
    if not options.program.exists():
        parser.error(f"{options.program} is not built: make swarm builds it")
    hunt = Hunt(
        "swarm", options.program, (), options.first, options.seeds, BLOCK, TOTALS, options.jobs, options.journal
    )
    return run(hunt, fresh=options.fresh)


def add_common_options(parser: argparse.ArgumentParser, journal: Path) -> None:
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="max processes (default: CPUs)")
    parser.add_argument("--journal", type=Path, default=journal, help="list of finished blocks (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="ignore the journal and run everything again")


def run(hunt: Hunt, *, fresh: bool) -> int:
    """Run the blocks that the journal lacks; print totals and failures. The exit code: 1 if anything failed."""
    # The digest covers the program and its arguments.
    called = hunt.program.read_bytes() + "\0".join(hunt.arguments).encode()
    digest = hashlib.sha256(called).hexdigest()[:16]
    hunt.journal.parent.mkdir(parents=True, exist_ok=True)
    if fresh:
        hunt.journal.unlink(missing_ok=True)
    journal = read_journal(hunt.journal, digest)

    end = hunt.first + hunt.count
    blocks = [(first, min(hunt.block, end - first)) for first in range(hunt.first, end, hunt.block)]
    finished = [journal[first] for first, count in blocks if first in journal and journal[first]["count"] == count]
    todo = [(first, count) for first, count in blocks if not (first in journal and journal[first]["count"] == count)]
    if finished:
        print(f"{len(finished)} of {len(blocks)} blocks were run before; continuing")
    started = time.monotonic()
    with Progress(hunt.name, len(blocks), len(finished)) as progress, hunt.journal.open("a") as log:
        for entry in in_parallel(hunt, todo):
            log.write(json.dumps(entry | {"program": digest}) + "\n")
            log.flush()
            finished.append(entry)
            progress.advance(failures(finished))
            if entry["errors"]:
                progress.say(str(entry["errors"]))
    seconds = time.monotonic() - started
    totals = {name: sum(int(str(entry.get(name, 0))) for entry in finished) for name in hunt.totals}
    print(json.dumps(totals | {"seconds_now": round(seconds, 1)}))
    for entry in finished:
        if not entry["ended"]:
            print(f"the block from {entry['first']} on ended early; see the message above", file=sys.stderr)
    return 1 if failures(finished) else 0


def failures(entries: list[dict[str, object]]) -> int:
    return sum(int(str(entry["failed"])) for entry in entries)


def in_parallel(hunt: Hunt, todo: list[tuple[int, int]]) -> Iterator[dict[str, object]]:
    """Results in order of completion; up to `hunt.jobs` blocks run at once."""
    with ThreadPoolExecutor(hunt.jobs) as pool:
        queue = iter(todo)
        running: set[Future[dict[str, object]]] = set()
        for first, count in queue:
            running.add(pool.submit(run_block, hunt, first, count))
            if len(running) >= hunt.jobs:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        for future in running:
            yield future.result()


class Progress:
    """A progress bar on a terminal, occasional lines elsewhere."""

    def __init__(self, name: str, blocks: int, finished: int) -> None:
        self._name, self._blocks, self._finished, self._printed = name, blocks, finished, time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            from rich.progress import Progress as Bar

            self._bar = Bar()
            self._task = self._bar.add_task(name, total=blocks, completed=finished)

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def advance(self, failed: int) -> None:
        self._finished += 1
        if self._bar:
            self._bar.update(self._task, advance=1, description=f"{self._name}, {failed} failed")
        elif time.monotonic() - self._printed > 15:
            self._printed = time.monotonic()
            print(f"{self._finished} of {self._blocks} blocks, {failed} failed", flush=True)

    def say(self, text: str) -> None:
        (self._bar.console.print if self._bar else print)(text)


if __name__ == "__main__":
    sys.exit(main())
