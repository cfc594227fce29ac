"""Steps per second of DDP and FSDP2 on a testbed, over gloo and over mlt, in turns; writes docs/results/pytorch.md.

    python tools/torch_speed                                   # every section; needs root; about 25 minutes
    python tools/torch_speed --sections ddp --rates 200mbit --losses 1% --models vgg --turns 1 --steps 20 --no-page

docs/results/pytorch.json has the figures; a case that is measured again replaces its own. One worker per host.
Kinds: gloo; the backend "mlt"; the backend with a loss bound of 10 % (DDP: the hook; FSDP2: LossyReduceScatter).
Sections: ``ddp`` (four workers by rate, loss and model), ``two`` (two workers), ``gray`` (one of two links between a
pair of switches loses 5 %), ``slow`` (one host's link has half the rate; also shares by rate), ``services`` (the hook
with summation services), ``fsdp2``. gloo's connections use cubic, as nearly everywhere.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from plot import draw

from mlt._shared.counts import count_of
from mlt._shared.output_files import write_figure
from mlt.testbed import Testbed

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from rank_outputs import PIPES, outputs_of  # noqa: E402

PAGE = HERE.parent.parent / "docs" / "results" / "pytorch.md"
FIGURES = PAGE.with_suffix(".json")
OPTIONS = ("rates", "losses", "workers", "models")
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
    """The cases of one table. ``trainer``: of train.py; ``length`` and ``repeats``: multiples of the usual
    steps and turns."""

    title: str
    kinds: Mapping[str, Kind] = field(default_factory=lambda: BY_BACKEND)
    trainer: str = "ddp"
    rates: tuple[str, ...] = ("200mbit",)
    losses: tuple[str, ...] = ("0%", "1%")
    workers: tuple[str, ...] = ("4",)
    models: tuple[str, ...] = ("vgg",)
    length: int = 1
    repeats: int = 1


SECTIONS = {
    "ddp": Section(
        "DDP, four workers",
        rates=("200mbit", "1gbit"),
        losses=("0%", "0.01%", "0.1%", "1%"),
        models=("vgg", "resnet"),
    ),
    "two": Section("DDP, two workers", workers=("2",)),
    "gray": Section(
        f"DDP, two spines, {GRAY_LINK} loses {GRAY_LOSS} both ways",
        {name: Kind(kind.backend, kind.bound, env={"MLT_PATHS": str(PATHS)}) for name, kind in BY_BACKEND.items()},
        losses=("0%",),
        models=("vgg", "resnet"),
        repeats=3,
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
    """``medians``: by kind, the median step of each turn in seconds; ``size``: bytes of the gradients.

    ``lost``: by kind, the packets that the links lost in each turn. ``made``: the command; ``date``: its day.
    """

    case: Case
    size: int
    medians: Mapping[str, list[float]]
    lost: Mapping[str, list[int]]
    made: str
    date: str

    def speeds(self) -> dict[str, float]:
        """Steps per second by kind."""
        return {kind: 1 / statistics.median(times) for kind, times in self.medians.items()}


def topology(case: Case, hosts: int) -> dict[str, Any]:
    """The fields of the case's testbed."""
    more: dict[str, Any] = {"spines": 2, "links": {GRAY_LINK: {"loss": GRAY_LOSS}}} if case.section == "gray" else {}
    return {"hosts": hosts, "rate": case.rate, "loss": case.loss, **more}


def run(case: Case, kind: str, steps: int) -> tuple[list[float], int, int]:
    """The times of rank 0's steps in seconds, the bytes of the gradients, and the packets that links lost."""
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
        lost = sum(link.lost for link in bed.link_counters())
    told = json.loads(outputs[0].splitlines()[-1])
    # The ranks learn the rates in 32 calls.
    seconds = told["seconds"][steps // 2 :] if case.section == "slow" else told["seconds"]
    return seconds, told["bytes"], lost


def measure(cases: list[Case], chosen: argparse.Namespace) -> list[Result]:
    """For each case the median step of every turn and kind. The kinds take turns, each turn begins with another."""
    results = []
    for number, case in enumerate(cases, 1):
        kinds = list(SECTIONS[case.section].kinds)
        medians: dict[str, list[float]] = {kind: [] for kind in kinds}
        lost: dict[str, list[int]] = {kind: [] for kind in kinds}
        size = 0
        # Where a flow's addresses choose between a good link and a bad one, chance decides each turn.
        for turn in range(chosen.turns * SECTIONS[case.section].repeats):
            first = turn % len(kinds)
            for kind in kinds[first:] + kinds[:first]:
                seconds, size, packets = run(case, kind, chosen.steps)
                medians[kind].append(statistics.median(seconds))
                lost[kind].append(packets)
                speed = 1 / medians[kind][-1]
                print(f"[{number}/{len(cases)}] {case}, turn {turn + 1}: {kind} {speed:.1f} steps/s", flush=True)
        today = str(datetime.now(timezone.utc).date())
        results.append(Result(case, size, medians, lost, command(case.section, chosen), today))
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


def command(section: str, chosen: argparse.Namespace) -> str:
    """The command that measures this section again."""
    given = [f"--{name} {value}" for name in OPTIONS if (value := getattr(chosen, name)) is not None]
    turns = f"--turns {chosen.turns} --steps {chosen.steps}"
    return f'make torch-speed SPEED_ARGS="{" ".join(["--sections", section, *given, turns])}"'


def of_record(record: Mapping[str, Any]) -> Result:
    return Result(**{**record, "case": Case(**record["case"])})


def update(results: list[Result]) -> list[Result]:
    """Put the cases that were measured into the file of all; returns all, in the order of the sections."""
    known = {} if not FIGURES.exists() else {one.case: one for one in map(of_record, json.loads(FIGURES.read_text()))}
    known.update((result.case, result) for result in results)
    order = list(SECTIONS)
    ordered = sorted(known.values(), key=lambda result: order.index(result.case.section))
    FIGURES.write_text(json.dumps([asdict(result) for result in ordered], indent=1) + "\n")
    return ordered


def page(known: list[Result]) -> str:
    """The page of all sections, each with its commands."""
    parts = [
        """# PyTorch on a testbed, over gloo and over mlt

Steps per second, on a machine with 2 shared cores that workers, services and switch share, and in brackets the multiple
of gloo's in the same row. The kinds take turns; a figure is the median of the turns' medians. gloo's TCP uses cubic.
"Hook": `bounded_loss_hook`, and `LossyReduceScatter`, with a bound of 10 %. "vgg" has few convolutions and wide linear
layers, so that a step is mostly communication; "resnet" has residual blocks and as many parameters, so that it computes
as long as it communicates; "small" is a perceptron (`tools/torch_models.py`). One service has a host of its own. With
one host of half the rate, the second half of three times as many steps counts.

![steps per second by loss](pytorch.png)
"""
    ]
    for section in dict.fromkeys(result.case.section for result in known):
        results = [result for result in known if result.case.section == section]
        made = dict.fromkeys(f"`{one.made}`, {one.date}: {count_of(turns(one), 'turn')}." for one in results)
        parts.append(f"## {SECTIONS[section].title}\n\n{' '.join(made)}\n\n{table(results, section)}\n")
        if section == "gray":
            parts.append(f"Packets that the link lost, turn by turn: {'; '.join(map(losses, results))}.\n")
    return "\n".join(parts)


def turns(result: Result) -> int:
    return max(len(times) for times in result.medians.values())


def losses(result: Result) -> str:
    """A kind whose flows miss the bad link loses none."""
    each = ", ".join(f"{kind} {' '.join(map(str, counts))}" for kind, counts in result.lost.items())
    return f"{result.case.model}: {each}"


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
    for option in OPTIONS:
        parser.add_argument(f"--{option}", help="of every section, instead of its own")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    chosen = parser.parse_args()
    results = measure(chosen_cases(chosen), chosen)
    print(tables(results))
    if not chosen.no_page:
        known = update(results)
        by_loss = [one for one in known if one.case.section == "ddp"]
        if by_loss:
            panels = [(f"{one.case.model}, {one.case.rate}", one.case.loss, one.speeds()) for one in by_loss]
            write_figure(PAGE.with_suffix(".png"), draw(panels), dpi=110)
        PAGE.write_text(page(known))


if __name__ == "__main__":
    main()
