"""Settings of the demo: its trainings, and the job description of each process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from mlt._shared.units import format_loss
from mlt.demo.data import DataName
from mlt.demo.problem import BadSettingError

RunName = Literal["gloo-no-loss", "gloo-lossy", "no-loss", "reliable", "bounded"]
Backend = Literal["mlt", "gloo"]
Network = Literal["testbed", "loopback"]

# What the options are if they are not given.
WORKERS: Final[dict[Network, int]] = {"testbed": 4, "loopback": 2}
STEPS: Final[dict[Network, int]] = {"testbed": 240, "loopback": 360}
# Images of a worker's step. Fewer on a testbed, whose hosts share the cores of one machine: with as many, its steps
# would be almost all computation, which they are not on hosts of their own.
BATCH_PER_WORKER: Final[dict[Network, int]] = {"testbed": 16, "loopback": 64}
# Points of the accuracy curve.
EVALUATIONS: Final = 8
# Summation services. On loopback they are part of what is shown; on a testbed, the workers average among themselves.
SERVICES: Final[dict[Network, int]] = {"testbed": 0, "loopback": 1}
# The testbed: every link's rate, and a link between leaf and spine that loses more than the others.
RATE: Final = "200 Mbit/s"
SPINES: Final = 2
PATHS: Final = 8
GRAY_LINK: Final = "leaf0-spine1"
GRAY_LOSS: Final = 0.05
# Of gloo's connections: the most common one, whatever this host uses itself.
TCP_CONTROL: Final = "cubic"
# PROTOCOL 3.2.7: payload of a packet at the MTU of Ethernet.
ETHERNET_SEGMENT_BYTES: Final = 1_432
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
    network: Network = "loopback"
    stall_seconds: float = STALL_SECONDS
    evaluations: int = EVALUATIONS

    def __post_init__(self) -> None:
        for option, value, minimum in (
            ("--steps", self.steps, 2),
            ("--seeds", self.seeds, 1),
            ("--workers", self.workers, 1),
            ("--seed", self.seed, 0),
        ):
            if value < minimum:
                raise BadSettingError(f"{option} is {value}; it must be at least {minimum}")
        for option, fraction in (("--loss", self.loss), ("--loss-bound", self.bound)):
            if not 0.0 <= fraction < 1.0:
                raise BadSettingError(
                    f"{option} is {format_loss(fraction)}; it is at least 0% and below 100%, such as 1% or 0.01"
                )
        if self.stall_seconds <= 0:
            raise BadSettingError(f"--timeout is {self.stall_seconds:g}; it must be more than 0 s")
        # os.path, for pathlib's raises on a name that is too long.
        if os.path.exists(self.output) and not os.path.isdir(self.output):
            raise BadSettingError(f"--output {self.output} exists and is not a folder; choose another")


@dataclass(frozen=True)
class RunSpec:
    """One training: ``drop`` is the injected packet loss, ``bound`` the loss bound of the gradients, both fractions."""

    name: RunName
    title: str
    drop: float
    bound: float
    seed: int
    backend: Backend = "mlt"


def run_specs(settings: DemoSettings) -> list[RunSpec]:
    """The trainings in the order of the tables: for each seed without loss, fully reliable, and with a bound. On a
    testbed over gloo first, without loss and with it."""
    loss, bound, lossy = settings.loss, settings.bound, f"{100 * settings.loss:.3g} % loss"
    on_testbed = settings.network == "testbed"
    mlt = "mlt, " if on_testbed else ""
    specs: list[RunSpec] = []
    for seed in range(settings.seed, settings.seed + settings.seeds):
        if on_testbed:
            specs += [
                RunSpec("gloo-no-loss", "gloo, no loss", 0.0, 0.0, seed, "gloo"),
                RunSpec("gloo-lossy", f"gloo, {lossy}", loss, 0.0, seed, "gloo"),
            ]
        specs += [
            RunSpec("no-loss", f"{mlt}no loss", 0.0, 0.0, seed),
            RunSpec("reliable", f"{mlt}{lossy}, bound 0", loss, 0.0, seed),
            RunSpec("bounded", f"{mlt}{lossy}, bound {100 * bound:.3g} %", loss, bound, seed),
        ]
    return specs


# What is compared runs side by side, once one first and once the other: a machine's load changes within minutes.
_TURNS: Final[tuple[RunName, ...]] = ("gloo-no-loss", "no-loss", "reliable", "gloo-lossy", "bounded")


def in_turns(specs: Sequence[RunSpec]) -> list[RunSpec]:
    """The trainings in the order they run: of every second seed in reverse."""
    ordered: list[RunSpec] = []
    for number, seed in enumerate(sorted({spec.seed for spec in specs})):
        own = sorted((spec for spec in specs if spec.seed == seed), key=lambda spec: _TURNS.index(spec.name))
        ordered += reversed(own) if number % 2 else own
    return ordered


class ProcessJob(BaseModel):
    """Job description of one process of a run, on its command line as JSON. The rendezvous is in the environment.

    ``events_fd``: file descriptor of the socket on which the process reports to its parent.
    """

    model_config = ConfigDict(frozen=True)

    events_fd: int
    rank: int
    workers: int
    services: int
    network: Network
    backend: Backend
    drop: float
    fault_seed: int
    bound: float
    seed: int
    steps: int
    evaluations: int
    batch: int
    data: DataName
