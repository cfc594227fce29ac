"""The time to join with a job secret, and without one (MLT_INSECURE=1), for jobs of some sizes on loopback.

    python tests/bench/joining.py 2 32 128

Ranks are forks of one process that has loaded mlt. Settings take turns, so that all see the same machine; printed are
medians over the turns: seconds until the last rank is up, and CPU milliseconds of a rank.
"""

from __future__ import annotations

import os
import resource
import statistics
import struct
import sys
import time

import mlt
from mlt._shared.ports import free_port

TURNS = 5
SETTINGS = {"secret": {"MLT_JOB_SECRET": "0123456789abcdef" * 4}, "none": {"MLT_INSECURE": "1"}}
# A machine that runs 128 ranks on few cores may leave one alone for longer than the usual silence.
PATIENCE = 120.0


def join(ranks: int, setting: dict[str, str]) -> tuple[float, float]:
    """Seconds until all are up, and the CPU seconds that a rank used, on average."""
    port = free_port()
    reading, writing = os.pipe()
    began = time.monotonic()
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            os.environ.update(setting)
            before = resource.getrusage(resource.RUSAGE_SELF)
            with mlt.Context(
                rank, ranks, master_addr="127.0.0.1", rendezvous_port=port, connect_timeout=PATIENCE,
                peer_timeout=PATIENCE,
            ):  # fmt: skip
                after = resource.getrusage(resource.RUSAGE_SELF)
                cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                os.write(writing, struct.pack("dd", time.monotonic() - began, cpu))
                time.sleep(0.5)  # the others measure until they are done
            os._exit(0)
        children.append(child)
    os.close(writing)
    said = []
    with os.fdopen(reading, "rb") as pipe:
        while record := pipe.read(16):
            said.append(struct.unpack("dd", record))
    for child in children:
        os.waitpid(child, 0)
    if len(said) != ranks:
        raise SystemExit(f"only {len(said)} of {ranks} ranks came up")
    return max(seconds for seconds, _ in said), sum(cpu for _, cpu in said) / ranks


def main() -> None:
    assert mlt.Context  # loads the native library, which the forks then have
    print("ranks  setting  seconds  CPU ms per rank")
    for ranks in map(int, sys.argv[1:] or ["2", "32"]):
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in SETTINGS}
        for _ in range(TURNS):
            for name, setting in SETTINGS.items():
                found[name].append(join(ranks, setting))
        for name, runs in found.items():
            seconds, cpu = (statistics.median(column) for column in zip(*runs, strict=True))
            print(f"{ranks:5}  {name:7}  {seconds:7.2f}  {1e3 * cpu:15.1f}", flush=True)


if __name__ == "__main__":
    main()
