"""Time to an accuracy of DDP on a testbed, by loss bound and by what the transport does; writes a page and pictures.

    python tools/torch_accuracy                                # both studies, seeds 1 to 5; needs root; an hour
    python tools/torch_accuracy --studies parts --seeds 3,4

The training is that of ``mlt demo``: four workers, a small ResNet, real images. Studies, after MLT (NSDI 2024, section
6.1):

``bounds``: the loss bounds of figure 18, where every host's link loses 20 %; gloo, exact and 10 % where it loses 1 %.
``parts``: figures 16 and 17. A: the loss bound. B: classes of gradients in the switches, whose code points mlt sets. C:
packets of a tensor on both spines. Two leaves, two spines, workers' links that lose 1 %, and TCP of another job both
ways between the leaves, whose own links lose nothing: it fills the buffers.

docs/results/torch-accuracy.md has the tables, torch-accuracy.json the figures, the pictures the curves. Each run is
saved when it ends and replaces the one of the same seed, so an interrupted study can be continued. gloo's TCP and that
of the other job use cubic.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from page import Run, page, run_of, runs_in, write_pictures

from mlt.demo.report import summarise_run
from mlt.demo.runner import execute
from mlt.demo.settings import RATE, TCP_CONTROL, Backend, DemoSettings, RunSpec
from mlt.testbed import Testbed

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "docs" / "results"
FIGURES = RESULTS / "torch-accuracy.json"
POLICY = HERE.parents[1] / "examples" / "testbed" / "qos.yaml"
WORKERS = 4
EVALUATIONS = 24
PATHS = 8
# The last host of each leaf has the other job, in the study of parts. At twice the rate the machine, which moves all
# packets of all switches, would be what limits.
PARTS_RATE = "100 Mbit/s"
PARTS_HOSTS = 6
OTHER_HOSTS = ("host2", "host5")
OTHER_PORT = 7_000
# That of the policy, so that the switches with it and without have the same.
PARTS_BUFFER = "512KiB"


@dataclass(frozen=True)
class Kind:
    """``parts``: of A, B and C, those that are on."""

    backend: Backend = "mlt"
    bound: float = 0.0
    parts: str = ""


@dataclass(frozen=True)
class Study:
    """``losses``: of every host's link, each with its own runs."""

    title: str
    kinds: Mapping[str, Kind]
    losses: Sequence[str]


BOUND = 0.1
STUDIES = {
    "bounds": Study(
        "Loss bounds",
        {
            "gloo": Kind("gloo"),
            "mlt, exact": Kind(),
            **{f"mlt, bound {percent} %": Kind(bound=percent / 100) for percent in (1, 10, 20, 30)},
        },
        ("1%", "20%"),
    ),
    "parts": Study(
        "What each part of the transport gives beside TCP",
        {
            "gloo": Kind("gloo"),
            "mlt, none": Kind(),
            "A": Kind(bound=BOUND, parts="A"),
            "A, B": Kind(bound=BOUND, parts="AB"),
            "A, B, C": Kind(bound=BOUND, parts="ABC"),
            "C": Kind(parts="C"),
            "C, B": Kind(parts="BC"),
        },
        ("1%",),
    ),
}
# TCP over a link that loses 20 % stands still for seconds; at 1 % every bound is more than the loss.
SKIPPED = {("bounds", "20%", "gloo"), *(("bounds", "1%", f"mlt, bound {percent} %") for percent in (1, 20, 30))}


@dataclass
class Place:
    """The workers' hosts of a testbed, as ``mlt.demo.network.Network``."""

    bed: Testbed
    workers: Sequence[str]
    environment: Mapping[str, str]

    def popen(self, rank: int, command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> Any:
        own = {"RANK": str(rank), "WORLD_SIZE": str(len(self.workers)), **self.environment}
        return self.bed.popen(self.workers[rank], command, env={**own, **env}, **options)

    def packets_lost(self) -> int:
        return sum(link.lost for link in self.bed.link_counters())


@contextmanager
def one_switch(loss: str, seed: int) -> Iterator[Place]:
    """Four hosts at one switch."""
    with Testbed(hosts=WORKERS, rate=RATE, loss=loss, seed=seed) as bed:
        bed.set_tcp_control(TCP_CONTROL)
        yield Place(bed, bed.hosts, {})


@contextmanager
def two_spines(loss: str, seed: int, parts: str) -> Iterator[Place]:
    """Two workers at each of two leaves, and another job's TCP connection each way between the leaves."""
    policy = str(POLICY) if "B" in parts else None
    fields: dict[str, Any] = {"spines": 2, "rate": PARTS_RATE, "loss": loss, "buffer": PARTS_BUFFER, "seed": seed}
    links = {host: {"loss": 0} for host in OTHER_HOSTS}
    with Testbed(hosts=PARTS_HOSTS, policy=policy, links=links, **fields) as bed, ExitStack() as started:
        bed.set_tcp_control(TCP_CONTROL)

        def start(host: str, *words: str) -> None:
            process = bed.popen(host, [sys.executable, str(HERE / "bulk.py"), *words])
            started.callback(process.wait)
            started.callback(process.kill)

        for sender, receiver in (OTHER_HOSTS, reversed(OTHER_HOSTS)):
            start(receiver, "receive", str(OTHER_PORT))
            start(sender, "send", bed.address(receiver), str(OTHER_PORT))
        workers = [host for host in bed.hosts if host not in OTHER_HOSTS]
        yield Place(bed, workers, {"MLT_PATHS": str(PATHS)} if "C" in parts else {})


def place_of(study: str, loss: str, kind: Kind) -> Callable[[DemoSettings, RunSpec], Any]:
    """Returns a function that makes the network of a run."""
    if study == "bounds":
        return lambda _, run: one_switch(loss, run.seed)
    return lambda _, run: two_spines(loss, run.seed, kind.parts)


def train(study: str, loss: str, name: str, settings: DemoSettings) -> Run:
    """One training; ``settings.seed`` is of its weights and images, and of the losses."""
    kind = STUDIES[study].kinds[name]
    # Its name in the demo decides only the demo's own tables.
    spec = RunSpec("bounded", name, settings.loss, kind.bound, settings.seed, kind.backend)
    with tempfile.TemporaryDirectory() as logs:
        record = execute(
            settings,
            spec,
            logs=Path(logs),
            observe=lambda *_: None,
            make_network=place_of(study, loss, kind),
        )
    return run_of(study, loss, name, str(datetime.now(timezone.utc).date()), summarise_run(record))


def measure(studies: Sequence[str], seeds: Sequence[int], settings: DemoSettings) -> None:
    """All runs, seed by seed: what is compared runs within minutes of each other. Each is kept at once."""
    todo = [
        (study, loss, name, seed)
        for seed in seeds
        for study in studies
        for loss in STUDIES[study].losses
        for name in STUDIES[study].kinds
        if (study, loss, name) not in SKIPPED
    ]
    for number, (study, loss, name, seed) in enumerate(todo, 1):
        run = train(study, loss, name, replace(settings, seed=seed, loss=float(loss.rstrip("%")) / 100))
        keep(run)
        print(
            f"[{number}/{len(todo)}] {study}, {loss} loss, seed {seed}: {name}: {run.steps_per_second:.1f} steps/s, "
            f"accuracy {100 * run.accuracy:.2f} %, {100 * run.missing:.2f} % of the gradients missing",
            flush=True,
        )


def keep(run: Run) -> None:
    """Put the run into the file of all, in the order of the tables."""
    known = {(one.study, one.loss, one.kind, one.seed): one for one in kept()}
    known[run.study, run.loss, run.kind, run.seed] = run
    places = [(study, loss, kind) for study, one in STUDIES.items() for loss in one.losses for kind in one.kinds]
    ordered = sorted(known.values(), key=lambda one: (places.index((one.study, one.loss, one.kind)), one.seed))
    FIGURES.write_text(json.dumps([asdict(one) for one in ordered]) + "\n")


def kept() -> list[Run]:
    return runs_in(json.loads(FIGURES.read_text())) if FIGURES.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", default=",".join(STUDIES), help="(default: %(default)s)")
    parser.add_argument("--seeds", default="1,2,3,4,5", help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=160)
    chosen = parser.parse_args()
    seeds = [int(seed) for seed in chosen.seeds.split(",")]
    settings = DemoSettings(
        steps=chosen.steps,
        evaluations=EVALUATIONS,
        loss=0.0,
        bound=BOUND,
        seed=seeds[0],
        seeds=1,
        workers=WORKERS,
        data="auto",
        output=Path(),
        live=False,
        network="testbed",
    )
    measure(chosen.studies.split(","), seeds, settings)
    runs = kept()
    write_pictures(runs, RESULTS)
    (RESULTS / "torch-accuracy.md").write_text(page(runs, {name: one.title for name, one in STUDIES.items()}))


if __name__ == "__main__":
    main()
