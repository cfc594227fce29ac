"""Circuit assignment: the ToR to which the electrical circuit switch connects each worker of a module.

Source: PSNet, section 3.3 (the Topology Controller spreads a job's workers equally over the ToRs) and section 6
(several jobs at once, left open there). All jobs of a module are assigned together, exactly, as a minimum-cost flow
job -> ToR -> port, in this order of importance:

1. as few workers of a job as possible have no port (none, while enough ports work);
2. each job is spread evenly: the sum over jobs and ToRs of (workers)^2 is minimal. Without failures every job then has
   floor or ceil of workers / R on every ToR, since that is feasible for all jobs together;
3. workers without a job keep a port if one is left;
4. as few circuits as possible change.

Failures are modelled as missing ports, and as ToRs that a job must not use (one of its servers' links there is down).
Numbers count from 0 here; a circuit is (ToR, downlink port of that ToR).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import networkx as nx

from mlt.planners.psnet.checks import TopologyError
from mlt.planners.psnet.psnet import Module

CircuitPort = tuple[int, int]
_IDLE = -1


@dataclass(frozen=True)
class Circuits:
    """State of one module's circuit switch: for every worker, its (ToR, port) or None."""

    of: tuple[CircuitPort | None, ...]

    def tor(self, worker: int) -> int | None:
        """The ToR of a worker's circuit."""
        circuit = self.of[worker]
        return None if circuit is None else circuit[0]

    def spread(self, workers: Iterable[int], *, tors: int) -> tuple[int, ...]:
        """Number of ``workers`` on each ToR."""
        counts = Counter(self.tor(worker) for worker in workers)
        return tuple(counts[t] for t in range(tors))


@dataclass(frozen=True, kw_only=True)
class ModuleJob:
    """A job's part in one module.

    tors: the ToRs it may use, all when None. counts: exact number of workers on each ToR (set by ``routing`` for jobs
        that cross modules); as even as possible when None.
    """

    name: str
    workers: tuple[int, ...]
    tors: frozenset[int] | None = None
    counts: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class CircuitPlan:
    """A new state of the circuit switch.

    moved: workers whose circuit changed; stranded: workers of a job without a free port. spread: workers of each job
        per ToR.
    """

    circuits: Circuits
    moved: tuple[int, ...]
    stranded: tuple[int, ...]
    spread: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def default_circuits(module: Module) -> Circuits:
    """Every worker on its home ToR (section 3.2)."""
    homes = (module.home_of(worker) for worker in range(module.worker_count))
    return Circuits(tuple((swid - 1, wid - 1) for swid, wid in homes))


def assign_circuits(
    module: Module,
    jobs: Sequence[ModuleJob],
    *,
    current: Circuits | None = None,
    dead_ports: Iterable[CircuitPort] = (),
    dead_tors: Iterable[int] = (),
    dead_workers: Iterable[int] = (),
) -> CircuitPlan:
    """Spread every job's workers evenly over the ToRs, changing as few circuits as possible.

    Raises:
        TopologyError: a worker does not exist or belongs to two jobs, or a failure names an unknown port.
    """
    current = default_circuits(module) if current is None else current
    _check(module, jobs, current)
    gone = frozenset(dead_workers)
    ports = _live_ports(module, dead_ports, dead_tors)
    live = [c if c is not None and w not in gone and c[1] in ports[c[0]] else None for w, c in enumerate(current.of)]

    groups: dict[int, list[int]] = {j: [w for w in job.workers if w not in gone] for j, job in enumerate(jobs)}
    in_job = {worker for job in jobs for worker in job.workers}
    groups[_IDLE] = [w for w in range(module.worker_count) if w not in in_job and w not in gone]
    allowed = {j: _tors(job, module.tors) for j, job in enumerate(jobs)}
    allowed[_IDLE] = frozenset(range(module.tors))
    have = {g: Counter(live[w][0] for w in members if live[w] is not None) for g, members in groups.items()}  # type: ignore[index]
    counts = {j: job.counts for j, job in enumerate(jobs)}
    want = _solve(groups, allowed, counts, have, [len(p) for p in ports])

    chosen = _choose_workers(groups, live, want)
    circuits = _choose_ports(module, live, chosen, ports)
    moved = tuple(
        w for w in range(module.worker_count) if circuits.of[w] is not None and circuits.of[w] != current.of[w]
    )
    stranded = tuple(w for j in range(len(jobs)) for w in groups[j] if circuits.of[w] is None)
    spread = {job.name: circuits.spread(job.workers, tors=module.tors) for job in jobs}
    return CircuitPlan(circuits=circuits, moved=moved, stranded=stranded, spread=spread)


def _check(module: Module, jobs: Sequence[ModuleJob], current: Circuits) -> None:
    if len(current.of) != module.worker_count:
        raise TopologyError(f"circuits for {len(current.of)} workers, but the module has {module.worker_count}")
    ends = Counter(c for c in current.of if c is not None)
    for (tor, port), uses in ends.items():
        if not (0 <= tor < module.tors and 0 <= port < module.tor_downlinks):
            raise TopologyError(f"a circuit leads to port {port} of ToR {tor}, which does not exist")
        if uses > 1:
            raise TopologyError(f"{uses} circuits lead to port {port} of ToR {tor}; a port takes one")
    owner: dict[int, str] = {}
    for job in jobs:
        if job.tors is not None and not job.tors <= set(range(module.tors)):
            raise TopologyError(
                f"job {job.name!r} may use ToRs {sorted(job.tors)}; the module has 0..{module.tors - 1}"
            )
        if job.counts is not None:
            outside = [t for t, n in enumerate(job.counts) if n and t not in _tors(job, module.tors)]
            if len(job.counts) != module.tors or sum(job.counts) != len(job.workers) or min(job.counts) < 0 or outside:
                raise TopologyError(
                    f"job {job.name!r}: counts {job.counts} do not place {len(job.workers)} workers on ToRs "
                    f"{sorted(_tors(job, module.tors))}"
                )
        for worker in job.workers:
            if not 0 <= worker < module.worker_count:
                raise TopologyError(f"job {job.name!r}: no worker {worker} in a module of {module.worker_count}")
            if worker in owner:
                raise TopologyError(f"worker {worker} is in job {owner[worker]!r} and in job {job.name!r}")
            owner[worker] = job.name
    if len({job.name for job in jobs}) != len(jobs):
        raise TopologyError("two jobs of the module have the same name")


def _live_ports(module: Module, dead_ports: Iterable[CircuitPort], dead_tors: Iterable[int]) -> list[set[int]]:
    ports = [set(range(module.tor_downlinks)) for _ in range(module.tors)]
    for tor in dead_tors:
        if not 0 <= tor < module.tors:
            raise TopologyError(f"no ToR {tor}; the module has 0..{module.tors - 1}")
        ports[tor].clear()
    for tor, port in dead_ports:
        if not (0 <= tor < module.tors and 0 <= port < module.tor_downlinks):
            raise TopologyError(f"no port {port} on ToR {tor}; there are {module.tors} ToRs of {module.tor_downlinks}")
        ports[tor].discard(port)
    return ports


def _tors(job: ModuleJob, tors: int) -> frozenset[int]:
    return frozenset(range(tors)) if job.tors is None else job.tors


def _solve(
    groups: Mapping[int, Sequence[int]],
    allowed: Mapping[int, frozenset[int]],
    counts: Mapping[int, tuple[int, ...] | None],
    have: Mapping[int, Counter[int]],
    room: Sequence[int],
) -> dict[int, Counter[int]]:
    """Workers of each group per ToR, by network simplex. Costs are integers, so the order of importance is exact."""
    total = sum(len(members) for members in groups.values())
    if total == 0:
        return {group: Counter() for group in groups}
    uneven = 4 * total + 1  # one step of unevenness outweighs every move and every idle worker left out (2 each)
    stranded = uneven * (2 * total + 1) * (total + 1)
    flow: nx.MultiDiGraph[object] = nx.MultiDiGraph()
    flow.add_node("out", demand=total)
    for group, members in groups.items():
        flow.add_node(("group", group), demand=-len(members))
        flow.add_edge(("group", group), "out", weight=2 if group == _IDLE else stranded, capacity=len(members))
        for tor in sorted(allowed[group]):
            stay = min(have[group][tor], room[tor])
            if group == _IDLE:
                flow.add_edge(("group", group), ("tor", tor), weight=0, capacity=stay)
                flow.add_edge(("group", group), ("tor", tor), weight=1, capacity=room[tor])
                continue
            given = counts[group]
            if given is not None:
                flow.add_edge(("group", group), ("tor", tor), weight=0, capacity=min(stay, given[tor]))
                flow.add_edge(("group", group), ("tor", tor), weight=1, capacity=given[tor] - min(stay, given[tor]))
                continue
            for nth in range(1, min(len(members), room[tor]) + 1):
                cost = (2 * nth - 1) * uneven + (nth > stay)
                flow.add_edge(("group", group), ("tor", tor), weight=cost, capacity=1)
    for tor, ports in enumerate(room):
        flow.add_edge(("tor", tor), "out", weight=0, capacity=ports)
    _, flows = nx.network_simplex(flow)
    return {
        group: Counter(
            {tor: sum(flows[("group", group)].get(("tor", tor), {}).values()) for tor in sorted(allowed[group])}
        )
        for group in groups
    }


def _choose_workers(
    groups: Mapping[int, Sequence[int]], live: Sequence[CircuitPort | None], want: Mapping[int, Counter[int]]
) -> dict[int, int]:
    """The ToR of every connected worker; as many as possible keep theirs."""
    chosen: dict[int, int] = {}
    for group, members in groups.items():
        left = Counter(want[group])
        waiting = []
        for worker in members:
            circuit = live[worker]
            if circuit is not None and left[circuit[0]] > 0:
                chosen[worker] = circuit[0]
                left[circuit[0]] -= 1
            else:
                waiting.append(worker)
        places = [tor for tor in sorted(left) for _ in range(left[tor])]
        chosen.update(zip(waiting, places, strict=False))
    return chosen


def _choose_ports(
    module: Module, live: Sequence[CircuitPort | None], chosen: Mapping[int, int], ports: Sequence[set[int]]
) -> Circuits:
    free = [set(p) for p in ports]
    of: list[CircuitPort | None] = [None] * module.worker_count
    for worker, tor in chosen.items():
        circuit = live[worker]
        if circuit is not None and circuit[0] == tor:
            of[worker] = circuit
            free[tor].discard(circuit[1])
    for worker, tor in sorted(chosen.items()):
        if of[worker] is None:
            port = min(free[tor])
            free[tor].discard(port)
            of[worker] = (tor, port)
    return Circuits(tuple(of))
