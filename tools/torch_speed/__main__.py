"""Steps per second of DDP and FSDP2 on a testbed, over gloo and over mlt, in turns; writes docs/results/pytorch.md.

    python tools/torch_speed                                   # every section; needs root; about 25 minutes
    python tools/torch_speed --sections ddp --rates 200mbit --losses 1% --models vgg --turns 1 --steps 20 --no-page

One worker per host. Kinds: gloo; the backend "mlt"; the backend with a loss bound of 10 % (DDP: the hook; FSDP2:
LossyReduceScatter). Sections: ``ddp`` (four workers by rate, loss and model), ``two`` (two workers), ``gray`` (one of
two links between a pair of switches loses 5 %), ``slow`` (one host's link has half the rate; also shares by rate),
``services`` (the hook with summation services), ``fsdp2``. gloo's connections use cubic, as nearly everywhere.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from plot import draw

from mlt._shared.output_files import write_figure
from mlt.testbed import Testbed

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from rank_outputs import PIPES, outputs_of  # noqa: E402

PAGE = HERE.parent.parent / "docs" / "results" / "pytorch.md"
FIGURE = PAGE.with_suffix(".png")
LIMIT_SECONDS = 240
CONTROL = "cubic"
SLOW_HOST = "host1"
GRAY_LINK = "leaf0-spine1"
GRAY_LOSS = "5%"
PATHS = 8


@dataclass(frozen=True)
class Kind:
    backend: str
    bound: str = "none"
    services: int = 0  # -1: one beside each worker
    env: Mapping[str, str] = field(default_factory=dict)


GLOO, MLT, HOOK = Kind("gloo"), Kind("mlt"), Kind("mlt", "0.1")
BY_BACKEND = {"gloo": GLOO, "mlt": MLT, "mlt, hook": HOOK}


@dataclass(frozen=True)
class Section:
    """The cases of one table. ``trainer``: of train.py; ``length``: multiple of the usual steps."""

    title: str
    kinds: Mapping[str, Kind] = field(default_factory=lambda: BY_BACKEND)
    trainer: str = "ddp"
    rates: tuple[str, ...] = ("200mbit",)
    losses: tuple[str, ...] = ("0%", "1%")
    workers: tuple[str, ...] = ("4",)
    models: tuple[str, ...] = ("vgg",)
    length: int = 1


SECTIONS = {
    "ddp": Section(
        "DDP, four workers",
        rates=("200mbit", "1gbit"),
        losses=("0%", "0.01%", "0.1%", "1%"),
        models=("vgg", "resnet"),
    ),
    "two": Section("DDP, two workers"),
    "gray": Section(
        f"DDP, two spines, {GRAY_LINK} loses {GRAY_LOSS} both ways",
        {name: Kind(kind.backend, kind.bound, env={"MLT_PATHS": str(PATHS)}) for name, kind in BY_BACKEND.items()},
        losses=("0%",),
        models=("vgg", "resnet"),
    ),
    "slow": Section(
        f"DDP, {SLOW_HOST} of half the rate",
        {"gloo": GLOO, "mlt": MLT, "mlt, shares by rate": Kind("mlt", env={"MLT_SHARES_BY_RATE": "1"})},
        length=3,
    ),
    "services": Section(
        "DDP with summation services",
        {
            "gloo": GLOO,
            "mlt, hook": HOOK,
            "mlt, hook, 1 service": Kind("mlt", "0.1", 1),
            "mlt, hook, a service beside each worker": Kind("mlt", "0.1", -1),
        },
    ),
    "fsdp2": Section("FSDP2", {"gloo": GLOO, "mlt": MLT, "mlt, LossyReduceScatter": HOOK}, "fsdp2", models=("small",)),
}


@dataclass(frozen=True)
class Case:
    section: str
    rate: str
    loss: str
    workers: int
    model: str

    def __str__(self) -> str:
        return f"{self.section}, {self.rate}, {self.loss} loss, {self.workers} workers, {self.model}"


@dataclass(frozen=True)
class Result:
    """``medians``: by kind, the median step of each turn in seconds; ``size``: bytes of the gradients."""

    case: Case
    size: int
    medians: Mapping[str, list[float]]

    def speeds(self) -> dict[str, float]:
        """Steps per second by kind."""
        return {kind: 1 / statistics.median(times) for kind, times in self.medians.items()}


def topology(case: Case, hosts: int) -> dict[str, Any]:
    """The fields of the case's testbed."""
    more: dict[str, Any] = {"spines": 2, "links": {GRAY_LINK: {"loss": GRAY_LOSS}}} if case.section == "gray" else {}
    return {"hosts": hosts, "rate": case.rate, "loss": case.loss, **more}


def run(case: Case, kind: str, steps: int) -> tuple[list[float], int]:
    """The times of rank 0's steps in seconds, and the bytes of the gradients."""
    section = SECTIONS[case.section]
    steps *= section.length
    how = section.kinds[kind]
    beside = how.services < 0
    services = case.workers if beside else how.services
    with Testbed(**topology(case, case.workers + (0 if beside else services))) as bed:
        bed.set_tcp_control(CONTROL)
        if case.section == "slow":
            bed.set_rate(bed.topology.settings(SLOW_HOST).rate // 2, link=SLOW_HOST)
        hosts = bed.hosts * 2 if beside else bed.hosts
        processes = []
        for rank, host in enumerate(hosts):
            training = [how.backend, how.bound, case.model, section.trainer, str(steps)]
            worker = [sys.executable, str(HERE / "train.py"), *training]
            command = worker if rank < case.workers else [sys.executable, "-m", "mlt", "serve"]
            env = {
                "RANK": str(rank),
                "WORLD_SIZE": str(case.workers),
                "MLT_SERVICES": str(services),
                "OMP_NUM_THREADS": "1",
                **how.env,
            }
            processes.append(bed.popen(host, command, env=env, **PIPES))
        outputs = outputs_of(f"{case}, {kind}", processes, LIMIT_SECONDS)
    told = json.loads(outputs[0].splitlines()[-1])
    # The ranks learn the rates in 32 calls.
    return told["seconds"][steps // 2 :] if case.section == "slow" else told["seconds"], told["bytes"]


def measure(cases: list[Case], turns: int, steps: int) -> list[Result]:
    """For each case the median step of every turn and kind; the kinds take turns."""
    results = []
    for number, case in enumerate(cases, 1):
        medians: dict[str, list[float]] = {kind: [] for kind in SECTIONS[case.section].kinds}
        size = 0
        for turn in range(turns):
            for kind in medians:
                seconds, size = run(case, kind, steps)
                medians[kind].append(statistics.median(seconds))
                speed = 1 / medians[kind][-1]
                print(f"[{number}/{len(cases)}] {case}, turn {turn + 1}: {kind} {speed:.1f} steps/s", flush=True)
        results.append(Result(case, size, medians))
    return results


def table(results: list[Result], section: str) -> str:
    """Markdown: steps/s by the median over turns, and each kind's speed as a multiple of gloo's."""
    kinds = SECTIONS[section].kinds
    lines = [
        "| model | rate | loss | workers | gradients | " + " | ".join(kinds) + " |",
        "|---|---|---|---|---|" + "---|" * len(kinds),
    ]
    for result in results:
        case, speeds = result.case, result.speeds()
        if case.section != section:
            continue
        cells = [f"{speed:.1f} ({speed / speeds['gloo']:.2f} x)" for speed in speeds.values()]
        what = f"{case.model} | {case.rate} | {case.loss} | {case.workers} | {result.size / 2**20:.1f} MiB"
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def command() -> str:
    """The command that makes this page again."""
    return "make torch-speed" + (f' SPEED_ARGS="{" ".join(sys.argv[1:])}"' if len(sys.argv) > 1 else "")


def page(results: list[Result], turns: int, steps: int) -> str:
    date = datetime.now(timezone.utc).date()
    samples = f"one turn of {steps} steps" if turns == 1 else f"median of {turns} turns of {steps} steps"
    figure = f"\n![steps per second by loss]({FIGURE.name})\n" if FIGURE.exists() else ""
    return f"""# PyTorch on a testbed, over gloo and over mlt

Made by `{command()}` on {date}, on a machine
with 2 shared cores that workers, services and switch share. Steps per second ({samples}, the
kinds in turns), and in brackets the multiple of gloo's in the same row. gloo's TCP uses cubic. "Hook":
`bounded_loss_hook`, and `LossyReduceScatter`, with a bound of 10 %. "vgg" has few convolutions and wide linear layers,
so that a step is mostly communication; "resnet" has residual blocks and as many parameters, so that it computes as long
as it communicates; "small" is a perceptron (`tools/torch_models.py`). One service has a host of its own. With one
host of half the rate, the second half of three times as many steps counts.
{figure}
{tables(results)}
"""


def tables(results: list[Result]) -> str:
    sections = dict.fromkeys(result.case.section for result in results)
    return "\n\n".join(f"## {SECTIONS[section].title}\n\n{table(results, section)}" for section in sections)


def chosen_cases(chosen: argparse.Namespace) -> list[Case]:
    """Those of each section, or what the options say instead."""

    def values(option: str | None, default: tuple[str, ...]) -> list[str]:
        return list(default) if option is None else option.split(",")

    return [
        Case(name, rate, loss, int(workers), model)
        for name in chosen.sections.split(",")
        for model in values(chosen.models, SECTIONS[name].models)
        for rate in values(chosen.rates, SECTIONS[name].rates)
        for workers in values(chosen.workers, SECTIONS[name].workers)
        for loss in values(chosen.losses, SECTIONS[name].losses)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default=",".join(SECTIONS), help="(default: %(default)s)")
    for option in ("rates", "losses", "workers", "models"):
        parser.add_argument(f"--{option}", help="of every section, instead of its own")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    chosen = parser.parse_args()
    results = measure(chosen_cases(chosen), chosen.turns, chosen.steps)
    print(tables(results))
    if not chosen.no_page:
        by_loss = [result for result in results if result.case.section == "ddp"]
        if by_loss:
            write_figure(FIGURE, draw([(str_of(one), one.case.loss, one.speeds()) for one in by_loss]), dpi=110)
        PAGE.write_text(page(results, chosen.turns, chosen.steps))


def str_of(result: Result) -> str:
    """The panel of the figure in which it is drawn."""
    return f"{result.case.model}, {result.case.rate}"


if __name__ == "__main__":
    main()
