"""Measures ps-lite's goodput over mlt's van and over ZMQ, in turns, on loopback: ``make van-speed``.

One worker and one server; all keys are in progress at once. Prints a table of medians (docs/byteps-van.md).
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import statistics
import subprocess
import sys
from pathlib import Path

from mlt._shared.ports import free_port

PROGRAM = Path(__file__).parents[1] / "build/default/tests/plugins/byteps/van/van_program"
SHAPES = ((4_096_000, 8), (65_536, 64))  # bytes of a key, keys
TRANSPORTS: dict[str, dict[str, str]] = {
    "ZMQ": {},
    "mlt": {"DMLC_PS_VAN_TYPE": "mlt"},
    "mlt, pulls in place": {"DMLC_ENABLE_RDMA": "mlt"},
    "mlt, UDP only": {"DMLC_PS_VAN_TYPE": "mlt", "MLT_DATAPATH": "udp"},
    "mlt, UDP only, 1 % lost": {"DMLC_PS_VAN_TYPE": "mlt", "MLT_DATAPATH": "udp", "MLT_VAN_FAULTS": "drop=1%"},
    "mlt, UDP only, 1 % lost, bound 5 %": {
        "DMLC_PS_VAN_TYPE": "mlt",
        "MLT_DATAPATH": "udp",
        "MLT_VAN_FAULTS": "drop=1%",
        "MLT_VAN_LOSS_BOUND": "5%",
    },
}


def measure(program: Path, transport: dict[str, str], size: int, keys: int, seconds: float) -> tuple[float, float]:
    """Gbit/s of pushes and of pulls."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MLT_", "DMLC_"))}
    environment |= {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "1",
        "MLT_JOB_SECRET": secrets.token_hex(16),
        **transport,
    }
    command = [str(program), "speed", str(size), str(keys), str(seconds)]
    nodes = [
        subprocess.Popen(
            command, env=environment | {"DMLC_ROLE": role}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for role in ("scheduler", "server", "worker")
    ]
    try:
        text = nodes[-1].communicate(timeout=60)[0]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    found = re.search(r"push (\S+) pull (\S+) Gbit/s", text)
    if found is None:
        sys.exit(f"error: {command} printed no result; run it by hand for its error")
    return float(found[1]), float(found[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, default=PROGRAM, help="van_program of another build")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="time of the pushes and of the pulls of a run")
    parser.add_argument("--transports", default=";".join(TRANSPORTS), help="names, separated by ;")
    options = parser.parse_args()
    transports = {name: TRANSPORTS[name] for name in options.transports.split(";")}
    print("| key | transport | push, Gbit/s | pull, Gbit/s |\n|---|---|---|---|")
    for size, keys in SHAPES:
        results: dict[str, list[tuple[float, float]]] = {name: [] for name in transports}
        for _ in range(options.turns):
            for name, transport in transports.items():
                results[name].append(measure(options.program, transport, size, keys, options.seconds))
        for name, runs in results.items():
            push, pull = (statistics.median(one[i] for one in runs) for i in (0, 1))
            print(f"| {size:,} B | {name} | {push:.2f} | {pull:.2f} |", flush=True)


if __name__ == "__main__":
    main()
