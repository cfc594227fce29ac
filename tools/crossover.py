"""Measure each algorithm of an all-reduce by world and size: the crossover table of docs/collectives.md.

    python tools/crossover.py                       # 2 to 256 ranks: ten minutes on two cores
    python tools/crossover.py --ranks 8 --sizes 4096,65536 --datapath udp

All ranks are processes of this host. The algorithms take turns at each size, so that all run under the same load; a
figure is the median over all repetitions of the time until the last rank has the result. An algorithm that was more
than ``TOO_SLOW`` times as slow as the best in its first turn is left out of the others at this size.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "scale"))

from cases import serve
from ranks import LIMIT_SECONDS
from team import Team

from mlt import collectives

# All ranks are on one host, which has no two levels.
ALGORITHMS = tuple(one for one in collectives.ALGORITHMS if one != "two-level")
RANKS = (2, 4, 8, 16, 64, 256)
SIZES = tuple(1 << power for power in (2, 10, 12, 14, 16, 18, 20, 22, 24))
TOO_SLOW = 8.0
# Bytes that direct and central ranks may hold together: the measurement must fit the memory of one host.
RECORDS_BYTES = 512 << 20

Times = dict[int, dict[str, list[float]]]


def measure(ranks: int, sizes: list[int], *, turns: int, seconds: float, datapath: str | None) -> Times:
    """Seconds of every repetition, by bytes and algorithm. ``seconds``: about as long for one size."""
    found: Times = {}
    with Team(ranks, serve("mlt", ranks, datapath=datapath), f"{ranks} ranks") as team:
        team.order("connect", limit=LIMIT_SECONDS + 30)

        def all_reduce(size: int, algorithm: str, repetitions: int) -> list[float]:
            phase = team.order("all_reduce", size // 4, repetitions, algorithm, limit=LIMIT_SECONDS * repetitions)
            return [max(times) for times in zip(*phase.values, strict=True)]

        for size in sizes:
            once = {one: min(all_reduce(size, one, 3)) for one in ALGORITHMS if _fits(one, ranks, size)}
            best = min(once.values())
            found[size] = {one: [] for one in once if once[one] <= TOO_SLOW * best}
            share = seconds / turns / len(found[size])
            for _ in range(turns):
                for one, times in found[size].items():
                    times += all_reduce(size, one, max(2, min(200, round(share / once[one]))))
            for one in once.keys() - found[size].keys():
                found[size][one] = [once[one]]
        team.order("close", limit=60)
    return found


def _fits(algorithm: str, ranks: int, size: int) -> bool:
    return algorithm in ("ring", "halving") or ranks * ranks * size <= RECORDS_BYTES


def table(ranks: int, found: Times) -> str:
    """Milliseconds, the best in bold type."""
    lines = [f"| {ranks} ranks | {' | '.join(ALGORITHMS)} |", "|---" * (len(ALGORITHMS) + 1) + "|"]
    for size, times in found.items():
        medians = {one: statistics.median(times[one]) * 1e3 if one in times else math.nan for one in ALGORITHMS}
        best = min(one for one in medians.values() if not math.isnan(one))
        cells = [
            "" if math.isnan(one) else f"**{one:.3g}**" if one == best else f"{one:.3g}" for one in medians.values()
        ]
        lines.append(f"| {_size(size)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _size(size: int) -> str:
    for factor, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= factor:
            return f"{size // factor} {unit}"
    return f"{size} B"


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=_numbers, default=list(RANKS), help="Numbers of ranks, by commas.")
    parser.add_argument("--sizes", type=_numbers, default=list(SIZES), help="Bytes, by commas.")
    parser.add_argument("--turns", type=int, default=3, help="Turns of each algorithm at each size.")
    parser.add_argument("--seconds", type=float, default=3.0, help="Duration of one size, about.")
    parser.add_argument("--datapath", help="Datapath of all ranks (default: shared memory).")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    print(
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, load {load:.1f} at the start; milliseconds\n", flush=True
    )
    for ranks in given.ranks:
        found = measure(ranks, given.sizes, turns=given.turns, seconds=given.seconds, datapath=given.datapath)
        print(table(ranks, found) + "\n", flush=True)


if __name__ == "__main__":
    main()
