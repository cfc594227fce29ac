"""Circuits of a module: the ToR to which the electrical circuit switch connects each worker.

Source: PSNet, section 3.3 (the Topology Controller spreads a job's workers over the ToRs). ``routing`` decides how many
workers of each job go to each ToR. Of all circuits with these numbers, this module takes those with the fewest changes
from the cabling (section 3.2); workers without a job keep their port where one is left. ``studies/psnet/repair.py``
assigns circuits around failures.

Numbers count from 0 here; a circuit is (ToR, downlink port of that ToR).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mlt.planners.psnet.psnet import Module, PSNet, supernode_name, tor_name

CircuitPort = tuple[int, int]


@dataclass(frozen=True)
class Circuits:
    """State of one module's circuit switch: for every worker, its (ToR, port) or None."""

    of: tuple[CircuitPort | None, ...]

    def tor(self, worker: int) -> int | None:
        """The ToR of a worker's circuit."""
        circuit = self.of[worker]
        return None if circuit is None else circuit[0]


@dataclass(frozen=True)
class CircuitPlan:
    """A new state of the circuit switch, and the workers whose circuit changed."""

    circuits: Circuits
    moved: tuple[int, ...]


def default_circuits(module: Module) -> Circuits:
    """Every worker on its home ToR (section 3.2)."""
    homes = (module.home_of(worker) for worker in range(module.worker_count))
    return Circuits(tuple((swid - 1, wid - 1) for swid, wid in homes))


def assign_circuits(module: Module, jobs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> CircuitPlan:
    """Circuits for (workers, their number on each ToR) of every job; the jobs share no worker and fit the ports."""
    home = default_circuits(module)
    ports = [set(range(module.tor_downlinks)) for _ in range(module.tors)]
    left = Counter({tor: len(free) for tor, free in enumerate(ports)})
    chosen: dict[int, int] = {}
    for workers, counts in jobs:
        wanted = Counter(dict(enumerate(counts)))
        chosen |= choose_tors(workers, wanted, home.of)
        left -= wanted
    idle = [worker for worker in range(module.worker_count) if worker not in chosen]
    chosen |= choose_tors(idle, left, home.of)
    circuits = choose_ports(home.of, chosen, ports)
    return CircuitPlan(circuits, tuple(w for w, end in enumerate(circuits.of) if end != home.of[w]))


def choose_tors(
    workers: Iterable[int], wanted: Mapping[int, int], current: Sequence[CircuitPort | None]
) -> dict[int, int]:
    """The ToR of every connected worker, ``wanted`` of them on each; as many as possible keep theirs."""
    chosen: dict[int, int] = {}
    left = Counter(wanted)
    waiting = []
    for worker in workers:
        circuit = current[worker]
        if circuit is not None and left[circuit[0]] > 0:
            chosen[worker] = circuit[0]
            left[circuit[0]] -= 1
        else:
            waiting.append(worker)
    slots = [tor for tor in sorted(left) for _ in range(left[tor])]
    chosen.update(zip(waiting, slots, strict=False))
    return chosen


def choose_ports(
    current: Sequence[CircuitPort | None], chosen: Mapping[int, int], ports: Sequence[set[int]]
) -> Circuits:
    """A port on the chosen ToR for every worker: its own where it stays, the lowest free one elsewhere."""
    free = [set(working) for working in ports]
    of: list[CircuitPort | None] = [None] * len(current)
    for worker, tor in chosen.items():
        circuit = current[worker]
        if circuit is not None and circuit[0] == tor:
            of[worker] = circuit
            free[tor].discard(circuit[1])
    for worker, tor in sorted(chosen.items()):
        if of[worker] is None:
            port = min(free[tor])
            free[tor].discard(port)
            of[worker] = (tor, port)
    return Circuits(tuple(of))


def link_rates(network: PSNet, circuits: Mapping[int, Circuits] | None = None) -> dict[tuple[str, str], float]:
    """Bits per second of every link that packets use, in both directions; parallel links add up.

    circuits: per module number; modules not named have their default circuits.
    """
    rates: dict[tuple[str, str], float] = {}
    for mid in network.mids:
        module = network.module(mid)
        state = (circuits or {}).get(mid) or default_circuits(module)
        for tor in (tor_name(mid, t) for t in range(network.tors)):
            for end in (supernode_name(mid), *network.servers(mid)):
                rates[tor, end] = module.server_bits_per_second
        for worker, name in enumerate(network.workers(mid)):
            if (t := state.tor(worker)) is not None:
                rates[name, tor_name(mid, t)] = module.worker_bits_per_second
    for (a, b), links in network.wiring.trunks().items():
        rates[supernode_name(a), supernode_name(b)] = links * network.inter_rate
    return rates | {(b, a): rate for (a, b), rate in rates.items()}
