"""Runs jobs one after another, each with traffic and faults, and traces of both."""

from __future__ import annotations

import heapq
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ranks
import schedule
from network import Network

SAMPLE_SECONDS = 0.4
DRAIN_SECONDS = 25.0
CUTS = 0.6  # of the peer timeout: after longer cuts, peers may declare each other failed
CALM_SECONDS = 0.5  # when a fault ends, its packets are still in flight


@dataclass
class Outcome:
    """The driver's own observations."""

    jobs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    rejoins_refused: int = 0
    worst_stall_ns: int = 0
    seconds: float = 0.0


class Stalls:
    """Measures how long this host keeps a thread from running; a context manager."""

    STEP = 0.01

    def __init__(self) -> None:
        self.worst_ns = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Stalls:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.is_set():
            before = time.monotonic_ns()
            time.sleep(self.STEP)
            self.worst_ns = max(self.worst_ns, time.monotonic_ns() - before - round(self.STEP * 1e9))


class JobRun:
    """The traffic of one job, the faults of its plan, and their trace."""

    def __init__(self, network: Network, job: ranks.Job, plan: schedule.Plan, outcome: Outcome) -> None:
        self.network, self.job, self.plan, self.outcome = network, job, plan, outcome
        self.lines: list[str] = []
        self.open: dict[int, tuple[schedule.Event, int]] = {}
        self.again: list[tuple[int, subprocess.Popen[str]]] = []
        self.drops: dict[str, int] = {}
        self.sampled_ns = 0

    def write(self, word: str, **values: Any) -> None:
        pairs = " ".join(f"{key}={value}" for key, value in values.items() if value is not None)
        self.lines.append(f"{word} job={self.job.number} {pairs}\n")

    def run(self, tick: Callable[[float], None]) -> None:
        timeout_ns = round(self.plan.peer_timeout * 1e9)
        self.write("job", name=self.job.name, peer_timeout=timeout_ns)
        with Stalls() as stalls:
            self.job.start()
            self.sample()
            began = time.monotonic()
            due = [(event.begin, 0, i) for i, event in enumerate(self.plan.events)]
            due += [(event.begin + event.seconds, 1, i) for i, event in enumerate(self.plan.events)]
            heapq.heapify(due)
            next_sample = 0.0
            while (now := time.monotonic() - began) < self.plan.seconds or due:
                if due and due[0][0] <= now:
                    _, is_end, i = heapq.heappop(due)
                    (self.end if is_end else self.begin)(i)
                elif now >= next_sample:
                    self.sample()
                    next_sample = now + SAMPLE_SECONDS
                    tick(min(now, self.plan.seconds))
                else:
                    time.sleep(0.002)
            self.outcome.wrong += self.job.drain(DRAIN_SECONDS)
            self.sample()
        self.end_again()
        self.write("stall", ns=stalls.worst_ns)
        self.outcome.worst_stall_ns = max(self.outcome.worst_stall_ns, stalls.worst_ns)
        (self.job.folder / f"{self.job.number:04}-network.trace").write_text("".join(self.lines))

    # Faults

    def begin(self, i: int) -> None:
        event = self.plan.events[i]
        self.open[i] = (event, time.monotonic_ns())
        self.outcome.faults[event.kind] += 1
        values = dict(event.values)
        if event.kind in ("stop", "long_stop"):
            self.job.signal(int(event.target), signal.SIGSTOP)
        elif event.kind == "kill":
            self.job.signal(int(event.target), signal.SIGKILL)
            self.again.append((int(event.target), self.job.rejoin(int(event.target))))
        elif event.kind == "clock":
            self.job.clocks[int(event.target)].jump(round(values["hours"] * 3.6e12))
        else:
            self.network.begin(event.kind, event.target, values, seed=self.job.number * 1_000 + i + 1)

    def end(self, i: int) -> None:
        event, began = self.open.pop(i)
        if event.kind in ("stop", "long_stop"):
            self.job.signal(int(event.target), signal.SIGCONT)
        elif event.kind not in ("kill", "clock"):
            self.network.end(event.kind, event.target)
        ended = time.monotonic_ns()
        hit = event.target.removeprefix("host") if event.target.removeprefix("host").isdigit() else None
        long = (ended - began) / 1e9 > CUTS * self.plan.peer_timeout
        cuts = 1 if long and event.kind not in ("kill", "clock", "slow_path") else None
        kind = {"long_stop": "stop"}.get(event.kind, event.kind)
        self.write("fault", kind=kind, begin=began, end=ended, ranks=hit, cuts=cuts)
        if event.kind == "damage":  # a later sample shows drops but not reordering
            self.write("drop", kind=event.kind, begin=began, end=ended + round(CALM_SECONDS * 1e9))

    def end_again(self) -> None:
        """A rank that was killed and started again must have been rejected."""
        for rank, process in self.again:
            try:
                out, _ = process.communicate(timeout=ranks.REJOIN_SECONDS + 20)
            except subprocess.TimeoutExpired:
                process.kill()
                out, _ = process.communicate()
                self.outcome.wrong.append(f"{self.job.name}: rank {rank}, started again, neither joined nor ended")
                continue
            if "up " in out:
                self.outcome.wrong.append(f"{self.job.name}: rank {rank} was killed, started again, and let in")
            else:
                self.outcome.rejoins_refused += 1

    def sample(self) -> None:
        """Record the interval since the last sample if packets were dropped in it."""
        now = time.monotonic_ns()
        drops = self.network.drops()
        rose = [name for name, count in drops.items() if count != self.drops.get(name, count)]
        if rose:
            self.write("drop", kind=",".join(rose), begin=self.sampled_ns, end=time.monotonic_ns())
        self.drops, self.sampled_ns = drops, now


def run(
    network: Network, plans: list[schedule.Plan], folder: Path, library: Path, *, seed: int, first: int, size: int,
    tick: Callable[[int, float], None],
) -> Outcome:  # fmt: skip
    """Run a job for each plan, numbered from ``first``; calls ``tick(job, seconds)`` at intervals."""
    outcome = Outcome()
    began = time.monotonic()
    shift = ranks.can_shift_monotonic()
    for number, plan in enumerate(plans, first):
        job = ranks.Job(
            network.bed, folder, library, seed=seed, number=number, ranks=size, peer_timeout=plan.peer_timeout,
            paths=plan.paths, shift=shift,
        )  # fmt: skip
        try:
            JobRun(network, job, plan, outcome).run(lambda seconds, number=number: tick(number, seconds))  # type: ignore[misc]
        finally:
            job.end()
        outcome.jobs += 1
        if outcome.wrong:
            break
    outcome.seconds = time.monotonic() - began
    return outcome
