"""The references for clustering: balanced clusters, and the exact optimum.

Balanced clustering is what ALEPH's introduction holds against earlier work (equal sizes, whatever the bandwidth); it
may exceed an aggregator's capacity, which then slows everyone. The optimum respects capacities.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from mlt.planners.aleph.clustering import Clustering
from mlt.planners.aleph.worker_graph import Ints, WorkerGraph

EXACT_LIMIT = 60  # workers; beyond, a proof may take hours


def balanced_clustering(*, graph: WorkerGraph, clusters: int | None = None, seed: int = 0) -> Clustering:
    """Clusters of equal size (within one) with a random aggregator each, ignoring bandwidth.

    Workers are dealt in order of nearness, so that a cluster is as local as equal sizes allow; in a grouped graph no
    cluster crosses groups. ``clusters`` defaults to the square root of the number of workers, which balances the load
    of an aggregator and of the server.

    Raises:
        ValueError: ``clusters`` is below 1.
    """
    count = clusters if clusters is not None else max(1, round(math.sqrt(graph.size)))
    if count < 1:
        raise ValueError(f"{count} clusters; expected at least 1")
    rng = np.random.default_rng(seed)
    order = np.lexsort([np.arange(graph.size), *graph.nearness, graph.group])
    head = np.empty(graph.size, dtype=np.int64)
    for part in np.array_split(order, min(count, graph.size)):
        for group in np.unique(graph.group[part]):
            members = part[graph.group[part] == group]
            head[members] = rng.choice(members)
    return Clustering(head=head, method="balanced")


def exact_clustering(*, graph: WorkerGraph, capacity: Ints, time_limit: float = 60.0) -> tuple[Clustering, bool]:
    """Fewest streams, by mixed-integer programming (HiGHS through scipy), and whether that is proven.

    Binary x_w: w sends to the server; y_(w', w) in [0, 1]: w' sends to w (whole at the optimum for fixed x, since what
    is left is a transport problem). Each worker is one or the other, members fit the capacity, and y <= x tightens it.

    Raises:
        ValueError: more than ``EXACT_LIMIT`` workers.
        ArithmeticError: no clustering was found within ``time_limit`` seconds.
    """
    capacity = np.asarray(capacity, dtype=np.int64)
    n = graph.size
    if n > EXACT_LIMIT:
        raise ValueError(f"{n} workers; the exact clustering takes at most {EXACT_LIMIT}")
    arcs = [(int(m), w) for w in range(n) if capacity[w] > 0 for m in graph.neighbours(w)]
    member = np.array([m for m, _ in arcs], dtype=np.int64)
    head = np.array([w for _, w in arcs], dtype=np.int64)
    count, ids = len(arcs), np.arange(len(arcs))
    each = sparse.csr_matrix((np.ones(count), (member, ids)), shape=(n, count))
    served = sparse.hstack([sparse.eye(n), each], format="csr")
    load = sparse.csr_matrix((np.ones(count), (head, ids)), shape=(n, count))
    fits = sparse.hstack([-sparse.diags(capacity.astype(float)), load], format="csr")
    needs = sparse.csr_matrix((-np.ones(count), (ids, head)), shape=(count, n))
    opened = sparse.hstack([needs, sparse.eye(count)], format="csr")
    constraints = [LinearConstraint(served, 1, 1), LinearConstraint(fits, -np.inf, 0)]
    if count:
        constraints.append(LinearConstraint(opened, -np.inf, 0))
    objective = np.concatenate([np.ones(n), np.zeros(count)])
    result = milp(
        objective,
        constraints=constraints,
        bounds=Bounds(0, 1),
        integrality=np.ones(n + count, dtype=np.int64),
        options={"time_limit": time_limit, "mip_rel_gap": 0.0},
    )
    if result.x is None:
        raise ArithmeticError(f"no clustering within {time_limit} s: {result.message}")
    heads = np.arange(n, dtype=np.int64)
    taken = result.x[n:] > 0.5
    heads[member[taken]] = head[taken]
    return Clustering(head=heads, method="exact"), bool(result.status == 0)


def violations(clustering: Clustering, *, graph: WorkerGraph, capacity: Ints) -> list[str]:
    """Violated constraints of equation 1, as text; empty if the clustering is feasible."""
    head, counts = clustering.head, clustering.member_counts
    out = []
    if len(head) != graph.size or head.min(initial=0) < 0 or head.max(initial=0) >= graph.size:
        return [f"heads do not cover the {graph.size} workers"]
    for worker in np.flatnonzero(head[head] != head):
        out.append(f"worker {worker} sends to {head[worker]}, which is not an aggregator")
    for worker in np.flatnonzero(counts > capacity):
        out.append(f"aggregator {worker} has {counts[worker]} members; its capacity is {capacity[worker]}")
    for aggregator in clustering.aggregators:
        reach = set(graph.neighbours(aggregator).tolist())
        unreachable = [member for member in clustering.members(aggregator) if member not in reach]
        out += [f"worker {member} cannot reach its aggregator {aggregator}" for member in unreachable]
    return out
