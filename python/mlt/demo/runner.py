"""Runs one training: starts workers and services, and passes their events to the display and the record."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from mlt.demo.events import Evaluated, Event, Finished, Ready, StepDone
from mlt.demo.machine_load import BusyElsewhere
from mlt.demo.network import Network, network_of
from mlt.demo.processes import ProcessGroup, ProcessSpec
from mlt.demo.settings import BATCH_PER_WORKER, SERVICES, DemoSettings, ProcessJob, RunSpec


@dataclass
class RunRecord:
    """All events of the processes of one run; ``seconds`` is the whole run, including the start of the processes.
    ``busy_elsewhere``: share of the machine's cores that other programs had meanwhile; None if it is unknown.
    ``packets_lost``: by the network, on purpose; None if the processes drop them and count.
    """

    spec: RunSpec
    parameters: int = 0
    seconds: float = 0.0
    steps: list[StepDone] = field(default_factory=list)
    evaluations: list[Evaluated] = field(default_factory=list)
    finished: dict[str, Finished] = field(default_factory=dict)
    packets_lost: int | None = None
    busy_elsewhere: float | None = None

    def add(self, event: Event, names: dict[int, str]) -> None:
        if isinstance(event, Ready):
            self.parameters = max(self.parameters, event.parameters)
        elif isinstance(event, StepDone):
            self.steps.append(event)
        elif isinstance(event, Evaluated):
            # Every worker reports the same total; rank 0's report suffices.
            if event.rank == 0:
                self.evaluations.append(event)
        else:
            self.finished[names[event.rank]] = event


def process_specs(settings: DemoSettings, run: RunSpec) -> list[ProcessSpec]:
    """The workers, then the summation services, in rank order."""

    def job(rank: int) -> Callable[[int], str]:
        def describe(events_fd: int) -> str:
            return ProcessJob(
                events_fd=events_fd,
                rank=rank,
                workers=settings.workers,
                services=SERVICES[settings.network],
                batch=BATCH_PER_WORKER[settings.network],
                network=settings.network,
                backend=run.backend,
                drop=run.drop,
                # Each sender drops different packets, and the same ones in every demo run with this seed.
                fault_seed=run.seed * 1000 + rank + 1,
                bound=run.bound,
                seed=run.seed,
                steps=settings.steps,
                evaluations=settings.evaluations,
                data=settings.data,
            ).model_dump_json()

        return describe

    workers = [ProcessSpec(f"worker-{rank}", rank, "mlt.demo.worker", job(rank)) for rank in range(settings.workers)]
    services = [
        ProcessSpec(f"service-{number}", rank, "mlt.demo.service", job(rank))
        for number, rank in enumerate(range(settings.workers, settings.workers + SERVICES[settings.network]))
    ]
    return workers + services


def execute(
    settings: DemoSettings,
    run: RunSpec,
    *,
    logs: Path,
    observe: Callable[[RunRecord, Event], None],
    started: Callable[[dict[str, int]], None] = lambda pids: None,
    make_network: Callable[[DemoSettings, RunSpec], AbstractContextManager[Network]] = network_of,
) -> RunRecord:
    """Run one training to its end and return its record.

    ``observe`` is called after each event, ``started`` once with the process ids by name. ``make_network`` makes the
    network of the run. Raises DemoError when a
    process fails; no process is left running either way.
    """
    specs = process_specs(settings, run)
    names = {spec.rank: spec.name for spec in specs}
    # One computing thread per worker; the remaining cores serve the transport.
    environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    record = RunRecord(run)
    began, load = time.monotonic(), BusyElsewhere()
    with make_network(settings, run) as network:
        with ProcessGroup(
            specs, environment=environment, logs=logs, stall_seconds=settings.stall_seconds, popen=network.popen
        ) as group:
            started(group.pids)
            for event in group.events():
                record.add(event, names)
                observe(record, event)
        record.packets_lost = network.packets_lost()
    record.seconds, record.busy_elsewhere = time.monotonic() - began, load.share()
    return record
