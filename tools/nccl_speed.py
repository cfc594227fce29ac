"""NCCL's plugin against a plain TCP plugin of the same table, in turns; writes docs/results/nccl.md.

    python tools/nccl_speed.py                        # needs root and the programs of the default preset; 6 minutes
    python tools/nccl_speed.py --turns 1 --seconds 2 --no-page

Without a GPU: tests/plugins/nccl/speed plays NCCL's part. Two processes on loopback, then one on each of two hosts of a
testbed, then of one with a delay. Every connection has 8 transfers in progress, as NCCL's has steps; TCP uses cubic.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from rank_outputs import PIPES, results_of

from mlt._shared.units import LOSS
from mlt.testbed import Testbed

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "default"
PROGRAM = BUILD / "tests" / "nccl_speed"
LIBRARIES = {"TCP": BUILD / "tests" / "libnccl_tcp.so", "mlt": BUILD / "libnccl-net-mlt.so"}
PAGE = ROOT / "docs" / "results" / "nccl.md"
CONTROL = "cubic"
LIMIT_SECONDS = 120
TCP_SEGMENT = 1_448  # bytes of data in a packet of 1,500 bytes, with TCP's time stamps


@dataclass(frozen=True)
class Case:
    """``rate``: of the testbed's links; empty: loopback. ``datapath``: of mlt. ``delay_ms``: of a packet, one way."""

    rate: str
    loss: str
    connections: int
    kib: int
    datapath: str = "auto"
    delay_ms: int = 0

    @property
    def kind(self) -> str:
        """Name of its part of the measurement, for ``--places``."""
        return "delay" if self.delay_ms else "testbed" if self.rate else "loopback"

    @property
    def place(self) -> str:
        if self.rate:
            delay = f", round trip {2 * self.delay_ms} ms" if self.delay_ms else ""
            return f"testbed, {self.rate}, {self.loss} loss{delay}"
        return "loopback" + ("" if self.datapath == "auto" else f", mlt by {self.datapath}")

    @property
    def bound_gbps(self) -> float | None:
        """The rate of all connections together that loss leaves TCP, if that is less than the link's."""
        loss = LOSS.read(self.loss) if self.rate else 0.0
        if not self.delay_ms or not loss:
            return None
        return self.connections * (1.5 / loss) ** 0.5 * 8 * TCP_SEGMENT / (2e-3 * self.delay_ms) / 1e9


@dataclass(frozen=True)
class Result:
    gbps: float
    test_ns: float
    one_way_us: float


CASES = [
    Case("", "", 2, 512),
    Case("", "", 2, 512, "udp"),
    Case("1gbit", "0%", 2, 512),
    Case("1gbit", "1%", 2, 512),
    Case("10gbit", "0%", 2, 512),
    Case("10gbit", "1%", 2, 512),
    Case("10gbit", "1%", 8, 512),
    *(
        Case(rate, loss, 2, 512, delay_ms=delay_ms)
        for rate, delay_ms in (("500mbit", 1), ("1gbit", 1), ("1gbit", 10))
        for loss in ("0%", "1%")
    ),
]


def commands(kind: str, case: Case, folder: str, seconds: float) -> list[list[str]]:
    return [
        [str(PROGRAM), str(LIBRARIES[kind]), role, folder, str(case.connections), str(case.kib << 10), str(seconds)]
        for role in ("receive", "send")
    ]


def result_of(processes: list[subprocess.Popen[str]], what: str) -> Result:
    """``processes``: the receiver and the sender, in this order."""
    receiver, _ = results_of(what, processes, LIMIT_SECONDS)
    return Result(8 * receiver["bytes"] / 1e9 / receiver["seconds"], receiver["test_ns"], receiver["one_way_us"])


def run(kind: str, case: Case, seconds: float) -> Result:
    what = f"{case}, {kind}"
    with tempfile.TemporaryDirectory() as folder:
        both = commands(kind, case, folder, seconds)
        if not case.rate:
            env = {**os.environ, "MLT_HOST": "127.0.0.1", "MLT_DATAPATH": case.datapath}
            return result_of([subprocess.Popen(one, env=env, **PIPES) for one in both], what)
        delay = {"delay": f"{case.delay_ms}ms"} if case.delay_ms else {}
        with Testbed(hosts=2, rate=case.rate, loss=case.loss, **delay) as bed:
            bed.set_tcp_control(CONTROL)
            return result_of([bed.popen(host, one, **PIPES) for host, one in zip(bed.hosts, both, strict=True)], what)


def measure(cases: list[Case], turns: int, seconds: float) -> dict[Case, dict[str, list[Result]]]:
    """The kinds take turns, the first of which changes."""
    results: dict[Case, dict[str, list[Result]]] = {case: {kind: [] for kind in LIBRARIES} for case in cases}
    for case in cases:
        for turn in range(turns):
            for kind in list(LIBRARIES)[:: 1 if turn % 2 == 0 else -1]:
                one = run(kind, case, seconds)
                results[case][kind].append(one)
                print(f"{case.place}, {case.connections} connections, turn {turn + 1}: {kind} {one.gbps:.2f} Gbit/s, "
                      f"test {one.test_ns:.0f} ns, one way {one.one_way_us:.0f} us", flush=True)  # fmt: skip
    return results


def median(results: list[Result], name: str) -> float:
    return statistics.median(getattr(one, name) for one in results)


def table(results: dict[Case, dict[str, list[Result]]]) -> str:
    kinds = list(LIBRARIES)
    lines = ["| network | connections | transfers | " + " | ".join(f"{kind}, Gbit/s" for kind in kinds)
             + " | TCP's bound, Gbit/s | mlt / TCP | " + " | ".join(f"{kind}, `test` in ns" for kind in kinds)
             + " | " + " | ".join(f"{kind}, 8 bytes one way in us" for kind in kinds) + " |",
             "|---|---|---|" + "---|" * (3 * len(kinds) + 2)]  # fmt: skip
    for case, by_kind in results.items():
        speeds = {kind: median(by_kind[kind], "gbps") for kind in kinds}
        bound = case.bound_gbps
        cells = [f"{speed:.3g}" for speed in speeds.values()] + ["" if bound is None else f"{bound:.2g}"]
        cells += [f"{speeds['mlt'] / speeds['TCP']:.3g}"]
        cells += [f"{median(by_kind[kind], name):.0f}" for name in ("test_ns", "one_way_us") for kind in kinds]
        lines.append(f"| {case.place} | {case.connections} | {case.kib} KiB | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(results: dict[Case, dict[str, list[Result]]], turns: int, seconds: float) -> str:
    arguments = f' NCCL_SPEED_ARGS="{" ".join(sys.argv[1:])}"' if len(sys.argv) > 1 else ""
    samples = "One turn" if turns == 1 else f"Medians of {turns} turns"
    return f"""# NCCL's plugin and plain TCP

Made by `make nccl-speed{arguments}` on {datetime.now(timezone.utc).date()}, on a machine with 2 shared cores, without a
GPU and without NCCL: a program plays NCCL's part with either plugin (`tests/plugins/nccl`). {samples} of
{seconds:g} s, of which the first second does not count; the plugins take turns. 8 transfers in progress on each
connection. TCP: a plain plugin of the same table, one socket for each connection, cubic. Both processes poll all
the time, and give way when nothing has progressed, as NCCL's proxy threads do, so CPU times say nothing. `test`: a call
for a receive that nothing was sent for.

TCP's bound: a loss p leaves a connection a window of about sqrt(1.5 / p) segments, 12 at 1 %, whatever the link (Mathis
1997; cubic has the same at such losses, RFC 9438 section 5.2). Given for round trips that the testbed's delay sets.

{table(results)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3, help="per run; the first is not counted")
    parser.add_argument("--places", default="loopback,testbed,delay", help="(default: %(default)s)")
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    chosen = parser.parse_args()
    places = chosen.places.split(",")
    cases = [case for case in CASES if case.kind in places]
    results = measure(cases, chosen.turns, chosen.seconds)
    print(table(results))
    if not chosen.no_page:
        PAGE.write_text(page(results, chosen.turns, chosen.seconds), encoding="utf-8")


if __name__ == "__main__":
    main()
