"""Circuit assignment around failures: the ToR to which a module's circuit switch connects each worker.

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
from mlt.planners.psnet.circuits import (
    CircuitPlan,
    CircuitPort,
    Circuits,
    choose_ports,
    choose_tors,
    default_circuits,
)
from mlt.planners.psnet.psnet import Module

_IDLE = -1


@dataclass(frozen=True, kw_only=True)
class ModuleJob:
    """A job's part in one module.

    tors: the ToRs it may use, all when None. counts: exact number of workers on each ToR; as even as possible
        when None.
    """

    name: str
    workers: tuple[int, ...]
    tors: frozenset[int] | None = None
    counts: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Repair(CircuitPlan):
    """New circuits. stranded: workers of a job without a free port. spread: workers of each job per ToR."""

    stranded: tuple[int, ...] = ()
    spread: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def repair_circuits(
    module: Module,
    jobs: Sequence[ModuleJob],
    *,
    current: Circuits | None = None,
    dead_ports: Iterable[CircuitPort] = (),
    dead_tors: Iterable[int] = (),
    dead_workers: Iterable[int] = (),
) -> Repair:
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

    chosen = {w: t for group, members in groups.items() for w, t in choose_tors(members, want[group], live).items()}
    circuits = choose_ports(live, chosen, ports)
    moved = tuple(
        w for w in range(module.worker_count) if circuits.of[w] is not None and circuits.of[w] != current.of[w]
    )
    stranded = tuple(w for j in range(len(jobs)) for w in groups[j] if circuits.of[w] is None)
    spread = {job.name: _spread(circuits, job.workers, tors=module.tors) for job in jobs}
    return Repair(circuits, moved, stranded, spread)


def _spread(circuits: Circuits, workers: Iterable[int], *, tors: int) -> tuple[int, ...]:
    counts = Counter(circuits.tor(worker) for worker in workers)
    return tuple(counts[t] for t in range(tors))


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
