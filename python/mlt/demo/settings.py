"""Settings of the demo: its three trainings, and the job description of each process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from mlt.demo.data import DataName
from mlt.demo.problem import BadSettingError

RunName = Literal["no-loss", "bounded", "reliable"]

SERVICES: Final = 1
# PROTOCOL 3.2.7: payload of a packet at the MTU of Ethernet.
ETHERNET_SEGMENT_BYTES: Final = 1_432
BATCH_PER_WORKER: Final = 64
# Enough for torch to load on a busy host; a step takes well under a second.
STALL_SECONDS: Final = 120.0


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """The options of ``mlt demo``. ``loss`` and ``bound`` are fractions in [0, 1).

    Raises BadSettingError for an invalid value, before anything is started.
    """

    steps: int
    loss: float
    bound: float
    seed: int
    seeds: int
    workers: int
    data: DataName
    output: Path
    live: bool
    stall_seconds: float = STALL_SECONDS

    def __post_init__(self) -> None:
        for option, value, least in (
            ("--steps", self.steps, 2),
            ("--seeds", self.seeds, 1),
            ("--workers", self.workers, 1),
            ("--seed", self.seed, 0),
        ):
            if value < least:
                raise BadSettingError(f"{option} is {value}; it must be at least {least}")
        for option, fraction in (("--loss", self.loss), ("--bound", self.bound)):
            if not 0.0 <= fraction < 1.0:
                raise BadSettingError(
                    f"{option} is {fraction}; it is a fraction and must lie in [0, 1), such as 0.01 for 1 %"
                )
        if self.stall_seconds <= 0:
            raise BadSettingError(f"--timeout is {self.stall_seconds}; it must be more than 0 seconds")
        if self.output.exists() and not self.output.is_dir():
            raise BadSettingError(f"--output {self.output} exists and is not a folder; choose another")


@dataclass(frozen=True)
class RunSpec:
    """One training: ``drop`` is the injected packet loss, ``bound`` the loss bound of the gradients, both fractions."""

    name: RunName
    title: str
    drop: float
    bound: float
    seed: int


def run_specs(settings: DemoSettings) -> list[RunSpec]:
    """The trainings in the order they run: for each seed without loss, with a bound, and fully reliable."""
    lossy = f"{100 * settings.loss:.3g} % loss"
    specs: list[RunSpec] = []
    for seed in range(settings.seed, settings.seed + settings.seeds):
        specs += [
            RunSpec("no-loss", "no loss", 0.0, 0.0, seed),
            RunSpec("bounded", f"{lossy}, bound {100 * settings.bound:.3g} %", settings.loss, settings.bound, seed),
            RunSpec("reliable", f"{lossy}, bound 0", settings.loss, 0.0, seed),
        ]
    return specs


class ProcessJob(BaseModel):
    """Job description of one process of a run, on its command line as JSON. The rendezvous is in the environment.

    ``events_fd``: file descriptor of the socket on which the process reports to its parent.
    """

    model_config = ConfigDict(frozen=True)

    events_fd: int
    rank: int
    workers: int
    services: int = SERVICES
    drop: float
    fault_seed: int
    bound: float
    seed: int
    steps: int
    batch: int = BATCH_PER_WORKER
    data: DataName
