"""The processes of one job: started on the testbed's hosts, signalled, and ended."""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from mlt.testbed import Testbed

HERE = Path(__file__).resolve().parent
FIRST_PORT = 29_600
CONNECT_SECONDS = 20.0
REJOIN_SECONDS = 2.0
# The ranks' CLOCK_MONOTONIC differ by days: no clause compares two hosts' clocks.
CLOCK_DAYS = 3


class WallClock:
    """The wall clock of one rank (clock_shift.cc): the file that its library reads."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(struct.pack("=qqq", 0, 0, 0))
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 24)
        self.path, self.wrong_ns = path, 0

    def jump(self, nanoseconds: int) -> None:
        """Shift the clock by this much more. Writes whole words, so a reader sees the old or the new time only."""
        self.memory[8:16] = struct.pack("=q", self.wrong_ns)
        self.memory[0:8] = struct.pack("=q", time.time_ns())
        self.wrong_ns += nanoseconds
        self.memory[16:24] = struct.pack("=q", self.wrong_ns)


def can_shift_monotonic() -> bool:
    """Whether the kernel has time namespaces and this process may create one."""
    return subprocess.run(["unshare", "--time", "--fork", "true"], capture_output=True, check=False).returncode == 0


class Job:
    """One job of ``ranks`` processes with a trace each."""

    def __init__(
        self, bed: Testbed, folder: Path, library: Path, *, seed: int, number: int, ranks: int, peer_timeout: float,
        paths: int, shift: bool,
    ) -> None:  # fmt: skip
        self.bed, self.folder, self.library, self.shift = bed, folder, library, shift
        self.name = f"chaos-{seed}-{number}"
        self.number, self.size = number, ranks
        self.description = {
            "seed": seed, "job": number, "ranks": ranks, "folder": str(folder), "peer_timeout": peer_timeout,
            "connect_timeout": CONNECT_SECONDS, "paths": paths,
        }  # fmt: skip
        self.processes: list[subprocess.Popen[str]] = []
        self.pids: list[int] = []
        self.clocks = [WallClock(folder / f"{number:04}-{rank}.clock") for rank in range(ranks)]
        self.killed: set[int] = set()
        self.stopped: set[int] = set()

    def start(self) -> None:
        """Start every rank and wait until all are connected; raises RuntimeError with a rank's output otherwise."""
        self.processes = [self._popen(rank, self.description) for rank in range(self.size)]
        for rank in range(self.size):
            line = self.line(rank, CONNECT_SECONDS + 20)
            if not line.startswith("up "):
                raise RuntimeError(f"{self.name}: rank {rank} did not come up: {line}{self.text(rank)[-800:]}")
            self.pids.append(int(line.split()[1]))

    def _popen(self, rank: int, description: dict[str, Any]) -> subprocess.Popen[str]:
        words = [sys.executable, str(HERE / "rank.py")]
        offset = 0
        if self.shift:
            offset = rank * CLOCK_DAYS * 86_400 + rank * 1_234_567
            words = ["unshare", "--time", "--monotonic", str(offset), "--fork", "--kill-child", *words]
        full = {**description, "rank": rank, "clock_offset_ns": offset * 1_000_000_000}
        env = {
            "MLT_JOB": self.name,
            "MLT_RENDEZVOUS_PORT": str(FIRST_PORT + self.number % 1_000),
            "MLT_CHAOS_CLOCK": str(self.clocks[rank].path),
            "LD_PRELOAD": str(self.library),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        errors = (self.folder / f"{self.number:04}-{rank}.err").open("a")
        try:
            return self.bed.popen(  # type: ignore[no-any-return]
                f"host{rank}", [*words, json.dumps(full)], env=env, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        finally:
            errors.close()

    def line(self, rank: int, seconds: float) -> str:
        """The next output line of a rank; empty if it ended or printed nothing within ``seconds``."""
        out = self.processes[rank].stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], seconds)
        return str(out.readline()) if ready else ""

    def text(self, rank: int) -> str:
        """The standard error output of a rank."""
        return (self.folder / f"{self.number:04}-{rank}.err").read_text(errors="replace")

    def signal(self, rank: int, number: signal.Signals) -> None:
        if rank in self.killed:
            return
        os.kill(self.pids[rank], number)
        if number == signal.SIGSTOP:
            self.stopped.add(rank)
        elif number == signal.SIGCONT:
            self.stopped.discard(rank)
        elif number == signal.SIGKILL:
            self.killed.add(rank)

    def rejoin(self, rank: int) -> subprocess.Popen[str]:
        """Start a killed rank again as a new incarnation, which the job must reject (PROTOCOL 3.3.2)."""
        other = {**self.description, "job": self.number, "folder": str(self.folder), "connect_timeout": REJOIN_SECONDS}
        return self._popen(rank, other)

    def drain(self, seconds: float) -> list[str]:
        """Make all ranks stop posting and wait until their operations end; returns the problems."""
        for rank in sorted(self.stopped):
            self.signal(rank, signal.SIGCONT)
        (self.folder / f"{self.number:04}.stop").touch()
        faults = []
        until = time.monotonic() + seconds
        for rank in set(range(self.size)) - self.killed:
            line = self.line(rank, max(until - time.monotonic(), 0.1))
            if line != "drained\n":
                text = self.text(rank).strip()[-800:]
                faults.append(f"{self.name}: rank {rank} did not end its operations within {seconds:g} s: {text}")
        (self.folder / f"{self.number:04}.close").touch()
        for rank, process in enumerate(self.processes):
            if rank in self.killed:
                continue
            try:
                if process.wait(timeout=10) != 0:
                    faults.append(f"{self.name}: rank {rank} ended with {process.returncode}: {self.text(rank)[-800:]}")
            except subprocess.TimeoutExpired:
                faults.append(f"{self.name}: rank {rank} did not leave within 10 s")
        return faults

    def end(self) -> None:
        """End all remaining processes."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
