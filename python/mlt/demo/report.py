"""The demo's record: all figures in one JSON file, and the values of the comparison table."""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import BaseModel, ConfigDict

from mlt._shared.output_files import write_text
from mlt.demo.data import Images
from mlt.demo.events import Evaluated, Finished, StepDone
from mlt.demo.runner import RunRecord
from mlt.demo.settings import (
    BATCH_PER_WORKER,
    GRAY_LINK,
    GRAY_LOSS,
    PATHS,
    RATE,
    SERVICES,
    TCP_CONTROL,
    Backend,
    DemoSettings,
    Network,
    RunName,
)

FORMAT_VERSION: Final = 2
REPORT_FILE: Final = "report.json"
# The time to an accuracy is that to the highest multiple of this that every run reached, a fraction.
ACCURACY_STEP: Final = 0.05

# Counters of the transport, summed over the processes of a run. (The first exists only with injected faults.)
PACKETS_DROPPED: Final = "fault_dropped"
SEGMENTS_LOST: Final = "segments_lost_within_bound"
SEGMENTS_REPAIRED: Final = "segments_repaired"
BYTES_SENT: Final = "udp_bytes_sent"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DataReport(_Model):
    name: str
    origin: str
    licence: str
    train_images: int
    test_images: int


class MachineReport(_Model):
    system: str
    processor_cores: int
    python: str


class TestbedReport(_Model):
    """The network of the runs: a host per worker, two leaves, two spines, every link of the same rate.

    ``gray_link`` loses ``gray_loss``, a fraction, in the runs with loss. ``paths``: of each pair of mlt's ranks.
    ``tcp_control``: TCP's congestion control, for gloo.
    """

    __test__ = False  # keeps pytest from collecting it

    rate: str = RATE
    gray_link: str = GRAY_LINK
    gray_loss: float = GRAY_LOSS
    paths: int = PATHS
    tcp_control: str = TCP_CONTROL


class SettingsReport(_Model):
    steps: int
    loss: float
    bound: float
    seed: int
    seeds: int
    workers: int
    services: int
    batch_per_worker: int
    network: Network
    testbed: TestbedReport | None


class RunReport(_Model):
    """One training. Times in seconds, sizes in bytes; ``drop``, ``bound`` and the loss are fractions.

    ``train_seconds``: sum of the steps, each as long as that of its slowest worker.

    ``sync_*`` and ``exposed_*`` are quantiles over all workers' steps except the first (it includes the start-up skew).
    ``gradient_loss``: fraction of all pushed gradient bytes that is missing. ``packets_dropped``: by the injected
    faults; their segments were declared lost within the loss bound (``segments_lost``) or sent again
    (``segments_repaired``). ``busy_elsewhere``: share of the cores that other programs had. ``counters``: the
    transport's own, by process. What only mlt counts is None over gloo.
    """

    name: RunName
    backend: Backend
    title: str
    seed: int
    drop: float
    bound: float
    seconds: float
    busy_elsewhere: float | None = None
    parameters: int
    buckets: int
    test_accuracy: float
    steps_per_second: float
    train_seconds: float
    sync_p50: float
    sync_p99: float
    exposed_p50: float
    exposed_p99: float
    gradient_loss: float
    gradient_bytes: int
    gradient_bytes_missing: int
    packets_dropped: int
    segments_lost: int | None
    segments_repaired: int | None
    bytes_sent: int | None
    replicas_identical: bool
    parameters_sha256: str
    counters: dict[str, dict[str, int]]
    evaluations: list[Evaluated]
    steps: list[StepDone]


class AccuracySummary(_Model):
    """Test accuracy over the seeds for one kind of run; ``deviation``: sample standard deviation, None for one seed."""

    name: RunName
    title: str
    mean: float
    minimum: float
    maximum: float
    deviation: float | None


class DemoReport(_Model):
    """The whole report. ``equals_no_loss``: by kind of run and seed, whether the final parameters equal those of the
    run of the same backend without loss, bit by bit. ``common_accuracy``: highest multiple of 0.05 that the curve of
    every run reached, a fraction; None if there is none.
    """

    format_version: int = FORMAT_VERSION
    created: str
    seconds: float
    machine: MachineReport
    data: DataReport
    settings: SettingsReport
    runs: list[RunReport]
    accuracy: list[AccuracySummary]
    equals_no_loss: dict[RunName, list[bool]]
    common_accuracy: float | None


def summarise_run(record: RunRecord) -> RunReport:
    """Reduce one run's events to a report, which also contains the events."""
    workers = [done for done in record.finished.values() if done.parameters_sha256 is not None]
    digests = {str(done.parameters_sha256) for done in workers}
    settled = [step for step in record.steps if step.step > 0]
    slowest = _slowest_per_step(record.steps)
    pushed = sum(step.bytes for step in record.steps)
    missing = sum(step.missing_bytes for step in record.steps)
    sync = np.array([step.sync_seconds for step in settled])
    exposed = np.array([step.exposed_seconds for step in settled])
    is_mlt = record.spec.backend == "mlt"
    return RunReport(
        name=record.spec.name,
        backend=record.spec.backend,
        title=record.spec.title,
        seed=record.spec.seed,
        drop=record.spec.drop,
        bound=record.spec.bound,
        seconds=record.seconds,
        busy_elsewhere=record.busy_elsewhere,
        parameters=record.parameters,
        buckets=max(step.buckets for step in record.steps),
        test_accuracy=next(done.test_accuracy for done in workers if done.test_accuracy is not None),
        steps_per_second=len(slowest) / sum(slowest),
        train_seconds=sum(slowest),
        sync_p50=float(np.quantile(sync, 0.5)),
        sync_p99=float(np.quantile(sync, 0.99)),
        exposed_p50=float(np.quantile(exposed, 0.5)),
        exposed_p99=float(np.quantile(exposed, 0.99)),
        gradient_loss=missing / pushed,
        gradient_bytes=pushed,
        gradient_bytes_missing=missing,
        packets_dropped=_packets_dropped(record),
        segments_lost=_total(record.finished, SEGMENTS_LOST) if is_mlt else None,
        segments_repaired=_total(record.finished, SEGMENTS_REPAIRED) if is_mlt else None,
        bytes_sent=_total(record.finished, BYTES_SENT) if is_mlt else None,
        replicas_identical=len(digests) == 1,
        parameters_sha256=sorted(digests)[0],
        counters={name: done.counters for name, done in record.finished.items()},
        evaluations=record.evaluations,
        steps=record.steps,
    )


def build(settings: DemoSettings, images: Images, records: Sequence[RunRecord], *, seconds: float) -> DemoReport:
    """Combine the runs into the report."""
    runs = [summarise_run(record) for record in records]
    names = list(dict.fromkeys(run.name for run in runs))
    return DemoReport(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds=seconds,
        machine=MachineReport(
            system=platform.platform(),
            processor_cores=len(os.sched_getaffinity(0)),
            python=platform.python_version(),
        ),
        data=DataReport(
            name=images.name,
            origin=images.origin,
            licence=images.licence,
            train_images=len(images.train_labels),
            test_images=len(images.test_labels),
        ),
        settings=SettingsReport(
            steps=settings.steps,
            loss=settings.loss,
            bound=settings.bound,
            seed=settings.seed,
            seeds=settings.seeds,
            workers=settings.workers,
            services=SERVICES[settings.network],
            batch_per_worker=BATCH_PER_WORKER[settings.network],
            network=settings.network,
            testbed=TestbedReport() if settings.network == "testbed" else None,
        ),
        runs=runs,
        accuracy=[_accuracy([run for run in runs if run.name == name]) for name in names],
        equals_no_loss=_same_parameters(runs),
        common_accuracy=common_accuracy([point.accuracy for point in run.evaluations] for run in runs),
    )


def step_ends(run: RunReport) -> list[float]:
    """Seconds of training after each step, of the worker that was slowest in each."""
    return list(itertools.accumulate(_slowest_per_step(run.steps)))


def seconds_to(run: RunReport, accuracy: float) -> float:
    """Seconds of training until the test accuracy first was this one. Raises ValueError if it never was."""
    ends = step_ends(run)
    reached = [point.step for point in run.evaluations if point.accuracy >= accuracy]
    if not reached:
        raise ValueError(f"{run.title}, seed {run.seed}: the test accuracy never was {accuracy}")
    return ends[min(reached) - 1]


def common_accuracy(curves: Iterable[Sequence[float]]) -> float | None:
    """The highest multiple of ``ACCURACY_STEP`` that each of these curves of test accuracy reached, or None.

    >>> common_accuracy([[0.2, 0.62], [0.4, 0.58, 0.51]])
    0.55
    """
    lowest = min(max(curve, default=0.0) for curve in curves)
    steps = int(lowest / ACCURACY_STEP + 1e-9)
    return steps * ACCURACY_STEP if steps > 0 else None


def write_json(report: DemoReport, folder: Path) -> Path:
    """Write the report into ``folder`` and return the file's path."""
    path = folder / REPORT_FILE
    write_text(path, report.model_dump_json(indent=1))
    return path


def _slowest_per_step(steps: Sequence[StepDone]) -> list[float]:
    """Duration of each step of the slowest worker, which ends the step."""
    slowest: dict[int, float] = {}
    for step in steps:
        slowest[step.step] = max(slowest.get(step.step, 0.0), step.seconds)
    return [slowest[step] for step in sorted(slowest)]


def _packets_dropped(record: RunRecord) -> int:
    if record.spec.drop == 0:
        return 0
    return _total(record.finished, PACKETS_DROPPED) if record.packets_lost is None else record.packets_lost


def _total(finished: dict[str, Finished], counter: str) -> int:
    return sum(done.counters[counter] for done in finished.values())


def _accuracy(runs: Sequence[RunReport]) -> AccuracySummary:
    values = np.array([run.test_accuracy for run in runs])
    return AccuracySummary(
        name=runs[0].name,
        title=runs[0].title,
        mean=float(values.mean()),
        minimum=float(values.min()),
        maximum=float(values.max()),
        deviation=float(values.std(ddof=1)) if len(values) > 1 else None,
    )


def _same_parameters(runs: Sequence[RunReport]) -> dict[RunName, list[bool]]:
    reference = {(run.backend, run.seed): run.parameters_sha256 for run in runs if run.name.endswith("no-loss")}
    same: dict[RunName, list[bool]] = {}
    for run in runs:
        same.setdefault(run.name, []).append(run.parameters_sha256 == reference.get((run.backend, run.seed)))
    return same
