"""Steps per second of DDP and FSDP2 on a testbed, over gloo and over mlt, in turns; writes docs/results/pytorch.md.

    python tools/torch_speed                                   # every case; needs root; about 30 minutes
    python tools/torch_speed --rates 200mbit --losses 1% --workers 2 --models small --turns 1 --steps 20 --no-page

One worker per host. Kinds: gloo; the backend "mlt"; the backend with a loss bound of 10 % (DDP: the hook; FSDP2:
LossyReduceScatter); the hook with one summation service on a host of its own, and with as many as workers, beside them.
With trainer "slow", DDP where one host's link has half the rate, also with shares by rate. gloo's connections use
cubic, as nearly everywhere.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from mlt.testbed import Testbed

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from rank_outputs import PIPES, outputs_of  # noqa: E402

PAGE = HERE.parent.parent / "docs" / "results" / "pytorch.md"
LIMIT_SECONDS = 240
CONTROL = "cubic"
# The trainer of each section, its title, and whether one host's link has half the rate.
TRAINERS = {"ddp": "ddp", "fsdp2": "fsdp2", "slow": "ddp"}
TITLES = {"ddp": "DDP", "fsdp2": "FSDP2", "slow": "DDP, one host of half the rate"}
SLOW_HOST = "host1"


@dataclass(frozen=True)
class Kind:
    backend: str
    bound: str = "none"
    services: int = 0  # -1: one beside each worker
    shares_by_rate: bool = False


PLAIN = {"gloo": Kind("gloo"), "mlt": Kind("mlt")}
KINDS = {
    "ddp": {
        **PLAIN,
        "mlt, hook": Kind("mlt", "0.1"),
        "mlt, hook, 1 service": Kind("mlt", "0.1", 1),
        "mlt, hook, a service beside each worker": Kind("mlt", "0.1", -1),
    },
    "fsdp2": {**PLAIN, "mlt, LossyReduceScatter": Kind("mlt", "0.1")},
    "slow": {**PLAIN, "mlt, shares by rate": Kind("mlt", shares_by_rate=True)},
}


@dataclass(frozen=True)
class Case:
    rate: str
    loss: str
    workers: int
    model: str
    trainer: str

    def __str__(self) -> str:
        return f"{self.trainer}, {self.rate}, {self.loss} loss, {self.workers} workers, {self.model} model"


def run(case: Case, kind: str, steps: int) -> tuple[list[float], int]:
    """The times of rank 0's steps in seconds, and the bytes of the gradients."""
    how = KINDS[case.trainer][kind]
    beside = how.services < 0
    services = case.workers if beside else how.services
    with Testbed(hosts=case.workers + (0 if beside else services), rate=case.rate, loss=case.loss) as bed:
        bed.set_tcp_control(CONTROL)
        if case.trainer == "slow":
            bed.set_rate(bed.topology.settings(SLOW_HOST).rate // 2, link=SLOW_HOST)
        hosts = bed.hosts * 2 if beside else bed.hosts
        processes = []
        for rank, host in enumerate(hosts):
            training = [how.backend, how.bound, case.model, TRAINERS[case.trainer], str(steps)]
            worker = [sys.executable, str(HERE / "train.py"), *training]
            command = worker if rank < case.workers else [sys.executable, "-m", "mlt", "serve"]
            env = {
                "RANK": str(rank),
                "WORLD_SIZE": str(case.workers),
                "MLT_SERVICES": str(services),
                "MLT_SHARES_BY_RATE": str(int(how.shares_by_rate)),
                "OMP_NUM_THREADS": "1",
            }
            processes.append(bed.popen(host, command, env=env, **PIPES))
        outputs = outputs_of(f"{case}, {kind}", processes, LIMIT_SECONDS)
    told = json.loads(outputs[0].splitlines()[-1])
    # The ranks learn the rates in the first half.
    return told["seconds"][steps // 2 :] if case.trainer == "slow" else told["seconds"], told["bytes"]


def measure(cases: list[Case], turns: int, steps: int) -> list[tuple[Case, int, dict[str, list[float]]]]:
    """For each case the median step of every turn and kind; the kinds take turns."""
    results = []
    for number, case in enumerate(cases, 1):
        medians: dict[str, list[float]] = {kind: [] for kind in KINDS[case.trainer]}
        size = 0
        for turn in range(turns):
            for kind in medians:
                seconds, size = run(case, kind, steps)
                medians[kind].append(statistics.median(seconds))
                speed = 1 / medians[kind][-1]
                print(f"[{number}/{len(cases)}] {case}, turn {turn + 1}: {kind} {speed:.1f} steps/s", flush=True)
        results.append((case, size, medians))
    return results


def table(results: list[tuple[Case, int, dict[str, list[float]]]], trainer: str) -> str:
    """Markdown: steps/s by the median over turns, and each kind's speed as a multiple of gloo's."""
    kinds = KINDS[trainer]
    lines = [
        "| rate | loss | workers | gradients | " + " | ".join(kinds) + " |",
        "|---|---|---|---|" + "---|" * len(kinds),
    ]
    for case, size, medians in results:
        if case.trainer != trainer:
            continue
        speeds = {kind: 1 / statistics.median(times) for kind, times in medians.items()}
        cells = [f"{speed:.1f} ({speed / speeds['gloo']:.2f} x)" for speed in speeds.values()]
        lines.append(
            f"| {case.rate} | {case.loss} | {case.workers} | {size / 2**20:.1f} MiB | " + " | ".join(cells) + " |"
        )
    return "\n".join(lines)


def command() -> str:
    """The command that makes this page again."""
    return "make torch-speed" + (f' SPEED_ARGS="{" ".join(sys.argv[1:])}"' if len(sys.argv) > 1 else "")


def page(results: list[tuple[Case, int, dict[str, list[float]]]], turns: int, steps: int) -> str:
    date = datetime.now(timezone.utc).date()
    samples = f"one turn of {steps} steps" if turns == 1 else f"median of {turns} turns of {steps} steps"
    return f"""# PyTorch on a testbed, over gloo and over mlt

Made by `{command()}` on {date}, on a machine
with 2 shared cores that workers, services and switch share. Steps per second ({samples}, the
kinds in turns), and in brackets the multiple of gloo's in the same row. gloo's TCP uses cubic. "Hook":
`bounded_loss_hook`, and `LossyReduceScatter`, with a bound of 10 %. One service has a host of its own. With one host of
half the rate, the second half of the steps counts.

{tables(results)}
"""


def tables(results: list[tuple[Case, int, dict[str, list[float]]]]) -> str:
    trainers = dict.fromkeys(case.trainer for case, _, _ in results)
    return "\n\n".join(f"## {TITLES[trainer]}\n\n{table(results, trainer)}" for trainer in trainers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="200mbit,1gbit")
    parser.add_argument("--losses", default="0%,0.1%,1%")
    parser.add_argument("--workers", default="2,4")
    parser.add_argument("--models", default="small,large")
    parser.add_argument("--trainers", default="ddp,fsdp2,slow")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    chosen = parser.parse_args()
    # Between two workers both links of the ring carry the tensor once, however it is cut.
    cases = [
        Case(rate, loss, int(workers), model, trainer)
        for trainer in chosen.trainers.split(",")
        for rate in chosen.rates.split(",")
        for workers in chosen.workers.split(",")
        for model in chosen.models.split(",")
        for loss in chosen.losses.split(",")
        if trainer != "slow" or int(workers) > 2
    ]
    results = measure(cases, chosen.turns, chosen.steps)
    print(tables(results))
    if not chosen.no_page:
        PAGE.write_text(page(results, chosen.turns, chosen.steps))


if __name__ == "__main__":
    main()
