"""Faults of a job and their times, drawn from the seed before the job begins."""

from __future__ import annotations

import random
from dataclasses import dataclass

KINDS = {
    "kill": 0.6, "stop": 4.0, "long_stop": 0.5, "partition": 2.0, "one_way": 2.0, "long_partition": 0.5,
    "clock": 3.0, "slow_path": 2.5, "trickle": 2.0, "interface": 1.5, "unplug": 1.5, "burst": 3.0, "damage": 2.0,
}  # fmt: skip
QUIET = 0.3  # of all jobs, in which the network only delays
# These set the routes of all hosts again, which fails if an interface is down: one at a time.
ROUTES = ("interface", "unplug")
LATE = ("stop", "clock", "slow_path", "trickle")


@dataclass(frozen=True, slots=True)
class Event:
    """One fault. Times in seconds, from the start of the job's traffic; ``target`` is a rank, spine or link."""

    kind: str
    begin: float
    seconds: float
    target: str
    values: tuple[tuple[str, float], ...] = ()

    def text(self) -> str:
        values = "".join(f" {name}={value:g}" for name, value in self.values)
        return f"{self.begin:7.3f} s  {self.kind} {self.target}{values}, {self.seconds * 1e3:.0f} ms"


@dataclass(frozen=True, slots=True)
class Plan:
    """One job: duration of its traffic, timeout of silent peers, and its faults."""

    seconds: float
    peer_timeout: float
    paths: int
    events: tuple[Event, ...]


def _seconds(random_: random.Random, kind: str, peer_timeout: float) -> float:
    if kind in ("long_stop", "long_partition"):
        return random_.uniform(1.2, 1.8) * peer_timeout
    if kind == "stop":
        return random_.choice((0.01, 0.03, 0.1, 0.3)) * random_.uniform(1.0, 1.5)
    if kind in ("kill", "clock"):
        return 0.0
    if kind in ("slow_path", "burst", "damage"):
        return random_.uniform(0.2, 1.5)
    return random_.choice((0.03, 0.1, 0.4)) * random_.uniform(1.0, 1.5)


def _target(random_: random.Random, kind: str, ranks: int, spines: int) -> str:
    if kind in ("kill", "stop", "long_stop", "clock"):
        return str(random_.randrange(ranks))
    if kind in ("partition", "one_way", "long_partition", "interface"):
        return f"host{random_.randrange(ranks)}"
    if kind in ("slow_path", "burst", "damage"):
        return f"spine{random_.randrange(spines)}"
    uplink = f"leaf{random_.randrange(2)}-spine{random_.randrange(spines)}"
    return uplink if kind == "unplug" or random_.random() < 0.5 else f"host{random_.randrange(ranks)}"


def _values(random_: random.Random, kind: str) -> tuple[tuple[str, float], ...]:
    if kind == "clock":
        return (("hours", random_.choice((-1, 1)) * random_.uniform(0.5, 48)),)
    if kind == "one_way":
        return (("up", float(random_.random() < 0.5)),)
    if kind == "slow_path":
        return (("delay_us", 15_000.0),)
    if kind == "burst":
        return (("drop", random_.choice((0.001, 0.02, 0.2))), ("duplicate", random_.choice((0.0, 0.05))))
    if kind == "damage":
        return (("corrupt", random_.choice((0.0, 0.02))), ("reorder", 0.05), ("duplicate", 0.02))
    return ()


def draw(seed: int, job: int, *, ranks: int, spines: int, seconds: float, only: tuple[str, ...] = ()) -> Plan:
    """The plan of one job. ``only``: kinds of faults. Faults of a target never overlap; a kill is a rank's last."""
    random_ = random.Random(f"{seed}/{job}/schedule")
    peer_timeout = random_.choice((1.0, 1.5, 3.0))
    quiet = random_.random() < QUIET
    kinds = [kind for kind in KINDS if (not only or kind in only) and (not quiet or kind in LATE)]
    events: list[Event] = []
    busy: dict[str, float] = {}
    at = random_.uniform(0.5, 1.5)
    while kinds and at < seconds - 0.5:
        kind = random_.choices(kinds, [KINDS[one] for one in kinds])[0]
        target = _target(random_, kind, ranks, spines)
        lasts = _seconds(random_, kind, peer_timeout)
        shared = "routes" if kind in ROUTES else target
        if busy.get(target, 0.0) <= at and busy.get(shared, 0.0) <= at:
            events.append(Event(kind, at, lasts, target, _values(random_, kind)))
            busy[target] = busy[shared] = float("inf") if kind == "kill" else at + lasts + 0.5
        if kind == "kill":
            kinds.remove("kill")
        at += random_.choice((0.1, 0.5, 1.0)) * random_.uniform(0.5, 1.5)
    return Plan(seconds, peer_timeout, random_.choice((1, 4)), tuple(events))
