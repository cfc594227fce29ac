"""The demo's record: all figures in one JSON file, and the values of the comparison table."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import BaseModel, ConfigDict

from mlt.demo.data import Images
from mlt.demo.events import Evaluated, Finished, StepDone
from mlt.demo.runner import RunRecord
from mlt.demo.settings import BATCH_PER_WORKER, SERVICES, DemoSettings, RunName

FORMAT_VERSION: Final = 1
REPORT_FILE: Final = "report.json"

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


class SettingsReport(_Model):
    steps: int
    loss: float
    bound: float
    seed: int
    seeds: int
    workers: int
    services: int
    batch_per_worker: int


class RunReport(_Model):
    """One training. Times in seconds, sizes in bytes; ``drop``, ``bound`` and the loss are fractions.

    ``sync_*`` and ``exposed_*`` are quantiles over all workers' steps except the first (it includes the start-up skew).
    ``gradient_loss``: fraction of all pushed gradient bytes that is missing. ``packets_dropped``: by the injected
    faults; their segments were declared lost within the loss bound (``segments_lost``) or sent again
    (``segments_repaired``). ``counters``: the transport's own, by process.
    """

    name: RunName
    title: str
    seed: int
    drop: float
    bound: float
    seconds: float
    parameters: int
    buckets: int
    test_accuracy: float
    steps_per_second: float
    sync_p50: float
    sync_p99: float
    exposed_p50: float
    exposed_p99: float
    gradient_loss: float
    gradient_bytes: int
    gradient_bytes_missing: int
    packets_dropped: int
    segments_lost: int
    segments_repaired: int
    bytes_sent: int
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
    least: float
    greatest: float
    deviation: float | None


class DemoReport(_Model):
    """The whole report. ``equals_no_loss``: by kind of run and seed, whether the final parameters equal those of the
    run without loss, bit by bit.
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
    return RunReport(
        name=record.spec.name,
        title=record.spec.title,
        seed=record.spec.seed,
        drop=record.spec.drop,
        bound=record.spec.bound,
        seconds=record.seconds,
        parameters=record.parameters,
        buckets=max(step.buckets for step in record.steps),
        test_accuracy=next(done.test_accuracy for done in workers if done.test_accuracy is not None),
        steps_per_second=len(slowest) / sum(slowest),
        sync_p50=float(np.quantile(sync, 0.5)),
        sync_p99=float(np.quantile(sync, 0.99)),
        exposed_p50=float(np.quantile(exposed, 0.5)),
        exposed_p99=float(np.quantile(exposed, 0.99)),
        gradient_loss=missing / pushed,
        gradient_bytes=pushed,
        gradient_bytes_missing=missing,
        packets_dropped=_total(record.finished, PACKETS_DROPPED) if record.spec.drop > 0 else 0,
        segments_lost=_total(record.finished, SEGMENTS_LOST),
        segments_repaired=_total(record.finished, SEGMENTS_REPAIRED),
        bytes_sent=_total(record.finished, BYTES_SENT),
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
            services=SERVICES,
            batch_per_worker=BATCH_PER_WORKER,
        ),
        runs=runs,
        accuracy=[_accuracy([run for run in runs if run.name == name]) for name in names],
        equals_no_loss=_same_parameters(runs),
    )


def write_json(report: DemoReport, folder: Path) -> Path:
    """Write the report into ``folder`` and return the file's path."""
    path = folder / REPORT_FILE
    path.write_text(report.model_dump_json(indent=1), encoding="utf-8")
    return path


def _slowest_per_step(steps: Sequence[StepDone]) -> list[float]:
    """Duration of each step of the slowest worker, which ends the step."""
    slowest: dict[int, float] = {}
    for step in steps:
        slowest[step.step] = max(slowest.get(step.step, 0.0), step.seconds)
    return list(slowest.values())


def _total(finished: dict[str, Finished], counter: str) -> int:
    return sum(done.counters[counter] for done in finished.values())


def _accuracy(runs: Sequence[RunReport]) -> AccuracySummary:
    values = np.array([run.test_accuracy for run in runs])
    return AccuracySummary(
        name=runs[0].name,
        title=runs[0].title,
        mean=float(values.mean()),
        least=float(values.min()),
        greatest=float(values.max()),
        deviation=float(values.std(ddof=1)) if len(values) > 1 else None,
    )


def _same_parameters(runs: Sequence[RunReport]) -> dict[RunName, list[bool]]:
    reference = {run.seed: run.parameters_sha256 for run in runs if run.name == "no-loss"}
    same: dict[RunName, list[bool]] = {}
    for run in runs:
        same.setdefault(run.name, []).append(run.parameters_sha256 == reference.get(run.seed))
    return same
