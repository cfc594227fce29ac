"""Data of figures 6(a), 6(b) and 7 of the PSNet paper (section 4.2), from equations 5, 6 and 7.

The paper states latency = 20 us, R = 3, S = 200 MB, K in {1, 2, 4}, fat-tree jobs in two pods; r in {1, 2, 5} is taken
from figure 13. It does not state W, P, the x axis or figure 6(b)'s split. What the text implies decides:

* "K = 2 overlaps with K = 4, the worker's bandwidth has become the bottleneck" needs R*2/W >= 1/P and R/W < 1/P, so
  3P < W <= 6P. W = 6P is used, at the size of the paper's own example of R = 3: a 192 x 192 ECS with 64 downlinks per
  ToR, W = 192 and P = 32.
* "as network changes": the x axis is the worker's bandwidth, as figure 9 says of itself.
* Figure 6(b) shows several splits over two adjacent modules.
* Figure 7's text finds that more oversubscription is slower. That depends on where the fat-tree's servers are: it is so
  when they share racks (as on the testbed, worker(0,2,2,2)) and hardly when they are spread, so both are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from mlt.planners.psnet.checks import TopologyError
from mlt.planners.psnet.clos import fat_tree
from studies.graph import graph_of
from studies.psnet.bct import JobProfile, fat_tree_time, one_module_time, two_module_time
from studies.psnet.flows import fluid_loads, max_concurrent, max_hops, push_demands

TORS = 3
JOB = JobProfile(workers=192, servers=32, size_bytes=200e6)
RATIOS = (1, 2, 4)
OVERSUBSCRIPTIONS = (1, 2, 5)
GBITS: tuple[float, ...] = tuple(float(g) for g in range(1, 11))
Where = Literal["packed", "spread"]


@dataclass(frozen=True)
class Series:
    """One line of a figure: ``seconds`` over ``x``. ``note`` says what limits it, where one thing does."""

    label: str
    x: tuple[float, ...]
    seconds: tuple[float, ...]
    note: str = ""


def figure_6a(gbits: Sequence[float] = GBITS) -> list[Series]:
    """Communication time in one module over the worker's bandwidth (Gbit/s), for each K."""
    out = []
    for ratio in RATIOS:
        times = [one_module_time(JOB, tors=TORS, worker_bits_per_second=g * 1e9, server_ratio=ratio) for g in gbits]
        seconds = tuple(time.communication_seconds for time in times)
        out.append(Series(f"K = {ratio}", tuple(gbits), seconds, f"limited by {times[0].bottleneck}"))
    return out


def figure_6b(gbits: Sequence[float] = GBITS) -> list[Series]:
    """Communication time (K = 1) in one module and for splits of the job over two adjacent modules."""
    single = [one_module_time(JOB, tors=TORS, worker_bits_per_second=g * 1e9, server_ratio=1.0) for g in gbits]
    out = [Series("one module", tuple(gbits), tuple(time.communication_seconds for time in single))]
    for part, servers in (((15, 16), (15, 16)), ((3, 4), (3, 4)), ((1, 2), (1, 2)), ((1, 1), (0, 1))):
        first_workers = JOB.workers * part[0] // part[1]
        first_servers = JOB.servers * servers[0] // servers[1]
        times = [
            two_module_time(
                JOB,
                first_workers=first_workers,
                first_servers=first_servers,
                tors=TORS,
                worker_bits_per_second=g * 1e9,
                server_ratio=1.0,
            )
            for g in gbits
        ]
        label = f"two modules: W1 = {first_workers}, P1 = {first_servers}"
        seconds = tuple(time.communication_seconds for time in times)
        out.append(Series(label, tuple(gbits), seconds, f"limited by {times[0].bottleneck}"))
    return out


@cache
def fat_tree_concurrency(workers: int, servers: int, *, where: Where, pods: int = 2) -> tuple[float, int, int]:
    """(C, hops, k) for a job in ``pods`` pods of the smallest fat-tree that holds it, flows balanced over paths.

    where: ``packed`` fills the first racks with servers; ``spread`` deals servers over the racks in turn.
    """
    k = 2
    while pods * (k // 2) ** 2 < workers + servers or k < pods:
        k += 2
    half = k // 2
    tree = graph_of(fat_tree(k))
    racks = [[f"host-{p}-{e}-{h}" for h in range(half)] for p in range(pods) for e in range(half)]
    in_order = [host for rack in racks for host in rack]
    across = [rack[h] for h in range(half) for rack in racks]
    chosen = (in_order if where == "packed" else across)[:servers]
    taken = set(chosen)
    members = [host for host in in_order if host not in taken][:workers]
    if len(members) < workers:
        raise TopologyError(f"{workers} workers and {servers} servers do not fit {pods} pods of a k = {k} fat-tree")
    flows = dict.fromkeys(push_demands(members, chosen, 1.0), 1.0)
    return max_concurrent(tree, fluid_loads(tree, flows)), max_hops(tree, flows), k


def figure_7(gbits: Sequence[float] = GBITS, *, job: JobProfile = JOB) -> list[Series]:
    """Communication time on PSNet (one module, K = 1) and on oversubscribed fat-trees."""
    times = [one_module_time(job, tors=TORS, worker_bits_per_second=g * 1e9, server_ratio=1.0) for g in gbits]
    out = [Series("PSNet", tuple(gbits), tuple(time.communication_seconds for time in times), times[0].bottleneck)]
    placements: tuple[Where, ...] = ("packed", "spread")
    for where in placements:
        concurrency, hops, k = fat_tree_concurrency(job.workers, job.servers, where=where)
        for r in OVERSUBSCRIPTIONS:
            times = [
                fat_tree_time(job, host_bits_per_second=g * 1e9, oversubscription=r, concurrency=concurrency, hops=hops)
                for g in gbits
            ]
            seconds = tuple(time.communication_seconds for time in times)
            note = f"limited by {times[0].bottleneck}; k = {k}, C = {concurrency:g}"
            out.append(Series(f"fat-tree r = {r}, servers {where}", tuple(gbits), seconds, note))
    return out
