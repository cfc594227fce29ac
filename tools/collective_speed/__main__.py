"""Time every collective beside gloo and Open MPI, and write docs/results/collective-speed.md.

    python tools/collective_speed               # on two cores, as root: testbeds are part of it; with loss gloo is slow
    python tools/collective_speed --loss 0%     # four minutes
    python tools/collective_speed --loss        # one host only, two minutes; the page keeps its other tables
    python tools/collective_speed --short       # two ranks, two sizes, loopback; prints the page

The page names every cell in which mlt is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from page import Times, merged, page

from mlt._shared.ports import free_port
from mlt.perf.transports.mpi import launch_command
from mlt.testbed import Testbed

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rank_outputs import PIPES, outputs_of

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "results" / "collective-speed.md"
WORKER = str(Path(__file__).resolve().parent / "worker.py")
LOOPBACK_SIZES = (4, 4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20)
TESTBED_SIZES = (4, 4 << 10, 64 << 10, 1 << 20)
SHORT_SIZES = (4, 64 << 10)
LOOPBACK_SECONDS, TESTBED_SECONDS, SHORT_SECONDS = 0.03, 0.2, 0.01
TESTBED_RATE = "1gbit"
TCP_CONTROL = "cubic"  # of gloo: what most hosts have
JOB_SECONDS = 600
SHARED_MEMORY = "Open MPI"
OPEN_MPI = (SHARED_MEMORY, "Open MPI over TCP")


def times_of(what: str, processes: Sequence[subprocess.Popen[str]]) -> Times:
    """The times that the first of them wrote, once all have ended. Raises RankError."""
    found: Times = json.loads(outputs_of(what, processes, JOB_SECONDS)[0].splitlines()[-1])
    return found


def beside_gloo(
    ranks: int,
    sizes: Sequence[int],
    seconds: float,
    start: Callable[[int, list[str]], subprocess.Popen[str]],
    master: str,
) -> Times:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, WORKER, "both", "--ranks", str(ranks), "--master", master]
        words += ["--port", str(free_port()), "--file", f"{folder}/gloo", *_what(sizes, seconds)]
        return times_of("gloo and mlt", [start(rank, [*words, "--rank", str(rank)]) for rank in range(ranks)])


def _what(sizes: Sequence[int], seconds: float) -> list[str]:
    return ["--seconds", str(seconds), "--sizes", *map(str, sizes)]


def without_open_mpi() -> str | None:
    """Why it cannot be measured; None if it can."""
    if shutil.which("mpirun") is None:
        return "mpirun is not installed (Debian: openmpi-bin)"
    try:
        import mpi4py  # noqa: F401
    except ModuleNotFoundError:
        return "mpi4py is not installed (mlt's extra perf)"
    return None


def on_loopback(ranks: int, sizes: Sequence[int], seconds: float, has_mpi: bool) -> Times:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
    found = beside_gloo(
        ranks, sizes, seconds, lambda _, words: subprocess.Popen(words, env=environment, **PIPES), "127.0.0.1"
    )
    for name in OPEN_MPI if has_mpi else ():
        words = [WORKER, "mpi", "--name", name, *_what(sizes, seconds)]
        command = launch_command(ranks, "lo", words, shared_memory=name == SHARED_MEMORY)
        found = merged(found, times_of(name, [subprocess.Popen(command, env=environment, **PIPES)]))
    return found


def on_testbed(ranks: int, loss: str) -> Times:
    with Testbed(
        hosts=ranks, rate=TESTBED_RATE, links={f"host{rank}": {"loss": loss} for rank in range(ranks)}, name="speed"
    ) as bed:
        bed.set_tcp_control(TCP_CONTROL)
        return beside_gloo(
            ranks, TESTBED_SIZES, TESTBED_SECONDS, lambda rank, words: bed.popen(f"host{rank}", words, **PIPES),
            bed.address("host0"),
        )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="sizes of the jobs (default: 2 4)")
    parser.add_argument("--loss", nargs="*", default=["0%", "1%"], help="losses of the testbed (default: 0%% 1%%)")
    parser.add_argument("--short", action="store_true", help="two ranks, two sizes, loopback; print the page")
    parser.add_argument("--output", type=Path, default=DOCUMENT, help="page to write (default: %(default)s)")
    options = parser.parse_args()
    skipped = without_open_mpi()
    tables: list[tuple[str, Times]] = []
    if options.short:
        tables.append(("2 ranks of this host", on_loopback(2, SHORT_SIZES, SHORT_SECONDS, skipped is None)))
        print(page(tables, skipped), end="")
        return 0
    before = options.output.read_text(encoding="utf-8") if options.output.exists() else ""
    for ranks in options.ranks:
        print(f"{ranks} ranks of this host", file=sys.stderr, flush=True)
        tables.append(
            (f"{ranks} ranks of this host", on_loopback(ranks, LOOPBACK_SIZES, LOOPBACK_SECONDS, skipped is None))
        )
        options.output.write_text(page(tables, skipped, before), encoding="utf-8")
    for loss in options.loss:
        for ranks in options.ranks:
            title = f"{ranks} hosts of a testbed, {TESTBED_RATE}, {loss} loss on every host's link"
            print(title, file=sys.stderr, flush=True)
            tables.append((title, on_testbed(ranks, loss)))
            # After each: with loss, gloo's calls take minutes, and may end in the time limit.
            options.output.write_text(page(tables, skipped, before), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
