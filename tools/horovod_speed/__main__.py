"""Steps per second of Horovod over gloo and of mlt with Horovod's names, in turns, on a testbed (docs/horovod.md).

    make horovod-speed                # needs root; builds Horovod, which takes minutes
    python tools/horovod_speed --torch build/horovod/torch/bin/python --turns 1

For each framework an interpreter is needed that has it and Horovod with gloo (build.sh). mlt is that of .venv, or of
.venv-mxnet. One script, train.py, in which only the import and the loss bound differ; one worker per host; gloo's
connections use cubic.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlt.testbed import Testbed
from mlt.testbed.layout import HOST_INTERFACE

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from rank_outputs import PIPES, results_of  # noqa: E402
from training_speed import median_of  # noqa: E402

ENVIRONMENTS = {"torch": ".venv", "mxnet": ".venv-mxnet"}
HOROVOD = "Horovod, gloo"
# Column -> loss bound of mlt.
KINDS = {HOROVOD: "none", "mlt": "0", "mlt, bound 10 %": "0.1"}
LIMIT_SECONDS = 150
WORKERS = 4


@dataclass(frozen=True)
class Case:
    """``horovod``: the interpreter that has the framework and Horovod."""

    framework: str
    horovod: Path
    rate: str
    loss: str
    steps: int


def rendezvous(bed: Testbed, python: Path) -> tuple[subprocess.Popen[str], Mapping[str, str]]:
    """Horovod's rendezvous on the first host, as horovodrun starts it, and what the workers need to know of it."""
    host = bed.hosts[0]
    command = [str(python), str(HERE / "rendezvous.py"), *map(str, bed.hosts)]
    server = bed.popen(host, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    return server, {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": str(bed.address(host)),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": server.stdout.readline().strip(),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": HOST_INTERFACE,
    }


def place(rank: int, host: str) -> dict[str, str]:
    """The place of a worker, as horovodrun sets it."""
    each = {"LOCAL_RANK": 0, "LOCAL_SIZE": 1, "RANK": rank, "SIZE": WORKERS, "CROSS_RANK": rank, "CROSS_SIZE": WORKERS}
    return {"HOROVOD_HOSTNAME": host, **{f"HOROVOD_{name}": str(value) for name, value in each.items()}}


def named(address: str, command: list[str]) -> list[str]:
    """The command on a host whose name is its address: Horovod 0.28.1 opens the connections of its process sets, that
    of all ranks too, at the address of the host's name, and HOROVOD_GLOO_IFACE does not count for them."""
    return ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', address, *command]


def median_step(case: Case, kind: str) -> float:
    """In seconds."""
    is_horovod = kind == HOROVOD
    python = case.horovod if is_horovod else HERE.parents[1] / ENVIRONMENTS[case.framework] / "bin" / "python"
    command = [str(python), str(HERE / "train.py"), case.framework, KINDS[kind], str(case.steps)]
    with Testbed(hosts=WORKERS, rate=case.rate, loss=case.loss) as bed:
        bed.set_tcp_control("cubic")
        server, common = rendezvous(bed, case.horovod) if is_horovod else (None, {})
        try:
            processes: list[subprocess.Popen[Any]] = []
            for rank, host in enumerate(bed.hosts):
                env = {"OMP_NUM_THREADS": "1", "MXNET_CPU_WORKER_NTHREADS": "1", **common}
                env |= place(rank, host) if is_horovod else {"RANK": str(rank), "WORLD_SIZE": str(WORKERS)}
                started = named(str(bed.address(host)), command) if is_horovod else command
                processes.append(bed.popen(host, started, env=env, **PIPES))
            return median_of(results_of(f"{case}, {kind}", processes, LIMIT_SECONDS))
        finally:
            if server is not None:
                server.kill()
                server.wait()


def row(case: Case, turns: int) -> str:
    """Steps per second of each kind, and multiples of Horovod's; the kinds take turns."""
    medians: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(turns):
        for kind in list(KINDS)[:: 1 if turn % 2 == 0 else -1]:
            medians[kind].append(median_step(case, kind))
            print(f"{case.framework}, {case.loss} loss, turn {turn + 1}: {kind} {1 / medians[kind][-1]:.1f} steps/s",
                  flush=True)  # fmt: skip
    speeds = [1 / statistics.median(times) for times in medians.values()]
    cells = [f"{speed:.1f} ({speed / speeds[0]:.2f} x)" for speed in speeds]
    return f"| {case.framework} | {case.rate} | {case.loss} | {WORKERS} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for framework in ENVIRONMENTS:
        parser.add_argument(f"--{framework}", type=Path, help=f"interpreter with {framework} and Horovod")
    parser.add_argument("--rate", default="200mbit", help="(default: %(default)s)")
    parser.add_argument("--losses", default="0%,1%", help="(default: 0%%,1%%)")
    parser.add_argument("--turns", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="of a turn (default: %(default)s)")
    chosen = parser.parse_args()
    given = {framework: getattr(chosen, framework) for framework in ENVIRONMENTS}
    rows = [
        row(Case(framework, python, chosen.rate, loss, chosen.steps), chosen.turns)
        for framework, python in given.items()
        for loss in chosen.losses.split(",")
        if python is not None
    ]
    print(f"\n| framework | rate | loss | workers | {' | '.join(KINDS)} |\n|---|---|---|---|{'---|' * len(KINDS)}")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
