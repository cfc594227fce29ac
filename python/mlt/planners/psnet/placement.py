"""Placement of several jobs over modules.

Source: PSNet, section 3.1 (a task is placed in one module if possible, else on adjacent modules) and section 6 (placing
several tasks at once is left open there). Two steps:

1. Whole jobs into modules: an integer programme keeps as many pushed bytes (W S, summed over jobs) as possible inside
   modules. First-fit decreasing is computed too; the better one is used.
2. Each remaining job is split, heaviest first, over a connected set of modules: as few as possible, and among those the
   split with the smallest load on a module's inter-module links, max(w_m (P - p_m), (W - w_m) p_m) (equation 6), over
   all splits for two modules and greedily for more.

Bandwidths have no influence here: equation 5 is the same in every module, and all splits between modules share the same
R B_s. So a faster network never gets a worse placement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

from mlt.planners.psnet.checks import TopologyError
from mlt.planners.psnet.jobs import JobRequest, PlacedJob, check_jobs
from mlt.planners.psnet.psnet import PSNet

#: Branch-and-bound nodes of step 1; a count, not a time, so that results repeat.
_NODE_LIMIT = 2000

#: (workers, servers) of a job in each module it is split over.
Split = dict[int, tuple[int, int]]


@dataclass(frozen=True)
class PlacementResult:
    """Jobs in request order. ``whole``: names of those inside one module. ``proven``: step 1 is optimal."""

    jobs: tuple[PlacedJob, ...]
    whole: tuple[str, ...]
    kept_bytes: float
    proven: bool


@dataclass
class _Free:
    """Free hosts per module, lowest number first."""

    workers: dict[int, list[int]]
    servers: dict[int, list[int]]

    def room(self, mid: int) -> tuple[int, int]:
        return len(self.workers[mid]), len(self.servers[mid])

    def take(self, request: JobRequest, split: Split) -> PlacedJob:
        workers = {mid: tuple(self.workers[mid][:w]) for mid, (w, _) in split.items()}
        servers = {mid: tuple(self.servers[mid][:p]) for mid, (_, p) in split.items()}
        for mid, (w, p) in split.items():
            del self.workers[mid][:w]
            del self.servers[mid][:p]
        return PlacedJob(name=request.name, size_bytes=request.size_bytes, workers=workers, servers=servers)


def place_jobs(network: PSNet, requests: Sequence[JobRequest], *, placed: Iterable[PlacedJob] = ()) -> PlacementResult:
    """Place every request, leaving ``placed`` jobs unchanged.

    Raises:
        TopologyError: too few workers or servers; the message gives the kind and the missing number.
    """
    placed = tuple(placed)
    check_jobs(network, placed)
    names = [job.name for job in placed] + [request.name for request in requests]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TopologyError(f"two jobs are named {twice!r}")
    free = _free_machines(network, placed)
    _check_totals(requests, free)

    homes, proven = _whole_jobs(requests, {mid: free.room(mid) for mid in network.mids})
    done = {n: free.take(requests[n], {mid: (requests[n].workers, requests[n].servers)}) for n, mid in homes.items()}
    left = sorted(set(range(len(requests))) - homes.keys(), key=lambda n: (-_weight(requests[n]), requests[n].name))
    graph = network.wiring.graph()
    for n in left:
        done[n] = free.take(requests[n], best_split(graph, requests[n], {mid: free.room(mid) for mid in network.mids}))
    return PlacementResult(
        jobs=tuple(done[n] for n in range(len(requests))),
        whole=tuple(requests[n].name for n in sorted(homes)),
        kept_bytes=sum(_weight(requests[n]) for n in homes),
        proven=proven,
    )


def inter_load(request: JobRequest, split: Split) -> int:
    """Worker-server flows on the more loaded side of the busiest module's inter-module links (times S/P: bytes)."""
    return max(
        max(w * (request.servers - p), (request.workers - w) * p) for w, p in (split[mid] for mid in sorted(split))
    )


def best_split(graph: nx.Graph[int], request: JobRequest, room: dict[int, tuple[int, int]]) -> Split:
    """Step 2 for one job: see the head of this file. ``room``: free (workers, servers) of each module."""
    pairs = [(a, b) for a, b in sorted((min(e), max(e)) for e in graph.edges())]
    candidates = [split for a, b in pairs if (split := _pair_split(request, a, room[a], b, room[b])) is not None]
    if not candidates:
        sets = {_grow_set(graph, request, start, room) for start in sorted(graph)}
        candidates = [_greedy_split(request, members, room) for members in sorted(sets, key=lambda s: (len(s), s))]
    return min(candidates, key=lambda split: (len(split), inter_load(request, split), sorted(split)))


def _weight(request: JobRequest) -> float:
    return request.workers * request.size_bytes


def _free_machines(network: PSNet, placed: Iterable[PlacedJob]) -> _Free:
    used_workers = {(mid, w) for job in placed for mid, members in job.workers.items() for w in members}
    used_servers = {(mid, s) for job in placed for mid, members in job.servers.items() for s in members}
    return _Free(
        {m: [w for w in range(network.module(m).worker_count) if (m, w) not in used_workers] for m in network.mids},
        {m: [s for s in range(network.module(m).server_count) if (m, s) not in used_servers] for m in network.mids},
    )


def _check_totals(requests: Sequence[JobRequest], free: _Free) -> None:
    for role, hosts in (("workers", free.workers), ("servers", free.servers)):
        wanted = sum(getattr(request, role) for request in requests)
        have = sum(len(members) for members in hosts.values())
        if wanted > have:
            raise TopologyError(
                f"the jobs want {wanted} {role}, {have} are free; add modules or drop {wanted - have} {role}"
            )


def _whole_jobs(requests: Sequence[JobRequest], room: dict[int, tuple[int, int]]) -> tuple[dict[int, int], bool]:
    """(request -> module) that keeps the most bytes inside modules, and whether that is proven."""
    greedy = _first_fit(requests, room)
    mids = sorted(room)
    choices = [
        (n, mid)
        for n, request in enumerate(requests)
        for mid in mids
        if request.workers <= room[mid][0] and request.servers <= room[mid][1]
    ]
    wanting = {n for n, _ in choices}
    if len(greedy) == len(wanting):
        return greedy, True
    scale = max(_weight(request) for request in requests)
    gain = np.array([-_weight(requests[n]) / scale for n, _ in choices])
    once = lil_array((len(requests), len(choices)))
    fill = lil_array((2 * len(mids), len(choices)))
    for column, (n, mid) in enumerate(choices):
        once[n, column] = 1
        fill[2 * mids.index(mid), column] = requests[n].workers
        fill[2 * mids.index(mid) + 1, column] = requests[n].servers
    limits = np.array([amount for mid in mids for amount in room[mid]])
    result = milp(
        gain,
        integrality=np.ones(len(choices), dtype=np.int64),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(once.tocsr(), -np.inf, 1),
            LinearConstraint(fill.tocsr(), -np.inf, limits),
        ],
        options={"node_limit": _NODE_LIMIT, "mip_rel_gap": 1e-9},
    )
    if result.x is None:
        return greedy, False
    exact = {n: mid for (n, mid), chosen in zip(choices, result.x, strict=True) if chosen > 0.5}
    kept = [sum(_weight(requests[n]) for n in homes) for homes in (exact, greedy)]
    return (exact if kept[0] >= kept[1] else greedy), bool(result.status == 0)


def _first_fit(requests: Sequence[JobRequest], room: dict[int, tuple[int, int]]) -> dict[int, int]:
    """First-fit decreasing by bytes, into the module where the fewest workers remain free."""
    left = dict(room)
    homes = {}
    for n in sorted(range(len(requests)), key=lambda n: (-_weight(requests[n]), requests[n].name)):
        w, p = requests[n].workers, requests[n].servers
        fits = [mid for mid in sorted(left) if w <= left[mid][0] and p <= left[mid][1]]
        if fits:
            homes[n] = min(fits, key=lambda mid: (left[mid][0], left[mid][1], mid))
            left[homes[n]] = (left[homes[n]][0] - w, left[homes[n]][1] - p)
    return homes


def _pair_split(request: JobRequest, a: int, room_a: tuple[int, int], b: int, room_b: tuple[int, int]) -> Split | None:
    """The best of all splits over two modules, or None when the job does not fit them."""
    low_w, high_w = max(0, request.workers - room_b[0]), min(request.workers, room_a[0])
    low_p, high_p = max(0, request.servers - room_b[1]), min(request.servers, room_a[1])
    if low_w > high_w or low_p > high_p:
        return None
    w = np.arange(low_w, high_w + 1)[:, None]
    p = np.arange(low_p, high_p + 1)[None, :]
    load = np.maximum(w * (request.servers - p), (request.workers - w) * p)
    row, column = np.unravel_index(int(load.argmin()), load.shape)
    first = (int(w[row, 0]), int(p[0, column]))
    return {a: first, b: (request.workers - first[0], request.servers - first[1])}


def _grow_set(
    graph: nx.Graph[int], request: JobRequest, start: int, room: dict[int, tuple[int, int]]
) -> tuple[int, ...]:
    """A connected set of modules around ``start`` with enough capacity; adds the neighbour with the most each time."""
    members = [start]
    while True:
        missing = [
            request.workers - sum(room[mid][0] for mid in members),
            request.servers - sum(room[mid][1] for mid in members),
        ]
        if max(missing) <= 0:
            return tuple(sorted(members))
        edge = sorted({n for mid in members for n in graph.neighbors(mid)} - set(members))
        members.append(
            max(edge, key=lambda m: (min(room[m][0], missing[0]) + min(room[m][1], missing[1]), room[m], -m))
        )


def _greedy_split(request: JobRequest, members: tuple[int, ...], room: dict[int, tuple[int, int]]) -> Split:
    """Workers into the modules with the most free ones, then each server where the max module load stays lowest."""
    split: Split = {}
    left = request.workers
    for mid in sorted(members, key=lambda m: (-room[m][0], m)):
        split[mid] = (min(left, room[mid][0]), 0)
        left -= split[mid][0]
    for _ in range(request.servers):
        options = [mid for mid in members if split[mid][1] < room[mid][1]]

        def after(mid: int) -> tuple[int, int]:
            trial = {**split, mid: (split[mid][0], split[mid][1] + 1)}
            return inter_load(request, trial), mid

        best = min(options, key=after)
        split[best] = (split[best][0], split[best][1] + 1)
    return {mid: part for mid, part in split.items() if part != (0, 0)}
