"""A stream of tensors from host0 to host1 over several paths, and a log of what the sender knew of them meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from checks import until

from mlt.testbed import Testbed

# Rank 0 sends until a line comes on its standard input; the first value of a tensor says whether another follows.
WORKER = """
import json, select, sys, time
import numpy as np
import mlt

size, paths, host = json.loads(sys.argv[1])
with mlt.Context(host=host, paths=paths, line_rate_gbps=1.0) as context:
    tensor = np.ones(size // 4, np.float32)
    while tensor[0]:
        if context.rank == 1:
            tensor[:] = 2
            context.wait(context.post_recv(tensor, from_=0, tag=1))
            assert (tensor[1:] == 1).all()
            continue
        start = time.monotonic()
        tensor[0] = not select.select([sys.stdin], [], [], 0)[0]
        context.wait(context.post_send(tensor, mlt.priority.all_important, to=1, tag=1))
        record = [(one.share, one.loss, one.silent, one.packets_sent) for one in context.paths(1)]
        print(json.dumps([start, time.monotonic(), record]), flush=True)
"""


@dataclass
class Record:
    """One tensor: when it was begun and done, and the paths then."""

    start: float
    end: float
    share: list[float]
    loss: list[float]
    silent: list[bool]
    packets: list[int]


@dataclass
class Stream:
    records: list[Record] = field(default_factory=list)

    def since(self, moment: float) -> list[Record]:
        return [record for record in self.records if record.start >= moment]

    def when(self, condition: Callable[[Record], bool], *, after: float, within: float) -> float | None:
        """The time from ``after`` until a tensor met the condition first; None if none did in time."""
        while time.monotonic() < after + within + 0.2:
            for record in list(self.records):
                if record.end >= after and condition(record):
                    return record.end - after
            time.sleep(0.01)
        return None


def crossed(bed: Testbed) -> dict[str, int]:
    """Packets that each spine has had from leaf0."""
    rows = bed.link_counters()
    return {
        row.link.removeprefix("leaf0-"): row.seen for row in rows if row.link[:6] == "leaf0-" and row.direction == "up"
    }


@contextmanager
def stream(
    bed: Testbed, paths: Any, *, size: int = 262_144, ipv6: bool = False, port: int = 29_600
) -> Iterator[Stream]:
    """Tensors flow while the block runs; both ranks must end well."""
    found = Stream()
    processes = []
    for rank in (0, 1):
        address = f"fd77:0:0:{rank}::1" if ipv6 else bed.address(f"host{rank}")
        env = {"MASTER_ADDR": "fd77::1" if ipv6 else bed.address("host0"), "MASTER_PORT": str(port)}
        words = [sys.executable, "-c", WORKER, json.dumps([size, paths, address])]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(bed.popen(f"host{rank}", words, env=env, **pipes))

    def read() -> None:
        for line in processes[0].stdout:
            start, end, rows = json.loads(line)
            found.records.append(Record(start, end, *(list(column) for column in zip(*rows, strict=True))))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        until(lambda: len(found.records) >= 20 or processes[0].poll() is not None, 20)
        yield found
        with suppress(BrokenPipeError):
            processes[0].stdin.write("\n")
            processes[0].stdin.flush()
        for process in processes:
            process.wait(timeout=20)
    finally:
        for process in processes:
            process.kill()
        reader.join()
        errors = [process.stderr.read() for process in processes]
        for process in processes:
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                with suppress(BrokenPipeError):
                    pipe.close()
    assert [process.returncode for process in processes] == [0, 0], errors
