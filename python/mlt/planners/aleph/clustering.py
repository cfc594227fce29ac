"""ALEPH worker clustering: M-WCHA, the choice of aggregators by dominating set.

Paper: ALEPH, section 4.1, algorithm 1 and appendix A. Given the aggregation capacity of each worker, choose aggregators
D and their members so that as few streams as possible reach the parameter server. Absent on purpose: bandwidths and
times (``aggregation_model``), other algorithms (``clustering_greedy``).

Ambiguities of the print, and the repairs used here (``Reading`` turns each repair off, to measure it):

1. Equation 1 asks for ``V_i union V_j`` to be empty; the text below it, and theorem 3, mean the intersection.
2. Line 11 leaves the whole selection at the first worker that is not a local maximum, so the result would depend on
   the order of workers. The text wants every local maximum, so only that worker is skipped.
3. Line 23 admits each neighbour with probability alpha, so capacity holds in expectation only (theorem 2 claims
   more), and a candidate may admit no worker and waste its capacity. ``fill``: exactly ``min(g, free neighbours)``
   are admitted, the mean of the random choice. With the random choice, admission stops at the capacity.
4. The random choice decides which neighbours are admitted. ``weakest_first``: those with the smallest capacity, then
   the nearest, so that strong workers stay available. The result of the paper's testbed (each 20 Gbit/s worker leads
   one 10 Gbit/s worker) is only certain this way.
5. Equation 3 rounds a capacity of 0 up to 1, so a worker that cannot aggregate at all becomes a candidate. Here the
   rounded capacity of 0 is 0, and such a worker is never a candidate.
6. ``1/m`` exceeds 1 whenever the median is below 1; it is limited to 1.
7. "If no aggregator is selected in a round" the print stops, even if that was only bad luck. ``redraw``: it stops
   when no candidate is left, and draws again otherwise.
8. Within a round, another candidate may admit a candidate before its own turn. It is then a member and is skipped.
   Later admissions of the round see earlier ones (lines 18 to 23 are a loop).
9. ``N(w)`` counts w itself, in equations 2 and 5 too, where w would aggregate for itself; only others count here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mlt.planners.aleph.worker_graph import Bools, Floats, Ints, WorkerGraph


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The active repairs of algorithm 1; ``AS_PRINTED`` has only those without which it has no result."""

    fill: bool = True
    weakest_first: bool = True
    redraw: bool = True


REPAIRED = Reading()
AS_PRINTED = Reading(fill=False, weakest_first=False, redraw=False)
_SEEDS = 8


@dataclass(frozen=True, eq=False, kw_only=True)
class Clustering:
    """Each worker's aggregator: ``head[w] == w`` for an aggregator or a worker that sends straight to the server."""

    head: Ints
    method: str

    @property
    def streams(self) -> int:
        """Streams that reach the server: aggregators and direct workers, |D| of equation 1."""
        return int(np.count_nonzero(self.head == np.arange(len(self.head))))

    @property
    def member_counts(self) -> Ints:
        """Members of each worker's cluster, the worker itself not counted; 0 for members and direct workers."""
        counts: Ints = np.bincount(self.head, minlength=len(self.head)) - (self.head == np.arange(len(self.head)))
        return counts

    def members(self, worker: int) -> list[int]:
        """Workers that send to ``worker``, ascending."""
        return [int(w) for w in np.flatnonzero(self.head == worker) if w != worker]

    @property
    def aggregators(self) -> list[int]:
        """Workers with at least one member, ascending."""
        return [int(w) for w in np.flatnonzero(self.member_counts)]

    @property
    def direct(self) -> list[int]:
        """Workers with neither aggregator nor members, ascending."""
        alone = (self.head == np.arange(len(self.head))) & (self.member_counts == 0)
        return [int(w) for w in np.flatnonzero(alone)]


def round_up(capacity: Ints) -> Ints:
    """Equation 3: the smallest power of two not below each capacity; 0 stays 0 (repair 5)."""
    safe = np.maximum(capacity, 1)
    rounded = np.left_shift(1, np.ceil(np.log2(safe)).astype(np.int64))
    return np.where(capacity > 0, rounded, 0)


def admission_order(
    free: Ints, *, aggregator: int, graph: WorkerGraph, capacity: Ints, weakest_first: bool, tie: Floats
) -> Ints:
    """Free neighbours in the order an aggregator takes them: weakest, then nearest, then by the random ``tie``."""
    keys = [tie[free]]
    if weakest_first:
        far = np.zeros(len(free), dtype=np.int64)
        for level in graph.nearness:
            far += level[free] != level[aggregator]
        keys += [far.astype(float), capacity[free].astype(float)]
    return free[np.lexsort(keys)]


class _State:
    """Heads decided so far; -1 is unclustered."""

    def __init__(self, graph: WorkerGraph, capacity: Ints) -> None:
        self.graph = graph
        self.capacity = capacity
        self.head = np.full(graph.size, -1, dtype=np.int64)

    @property
    def unclustered(self) -> Bools:
        return self.head < 0

    def free_neighbours(self, worker: int) -> Ints:
        near = self.graph.neighbours(worker)
        return near[self.head[near] < 0]


def _candidates(state: _State) -> tuple[Bools, Ints, Ints]:
    """Steps 1 and 2: candidate aggregators, actual capacity (equation 2) and number of free neighbours."""
    free = state.unclustered
    free_neighbours = state.graph.neighbour_count(free)
    actual = np.where(free, np.minimum(state.capacity, free_neighbours), 0)
    rounded = round_up(actual)
    # Two hops in G; clustered workers have rounded capacity 0 and never hide a candidate.
    best = state.graph.neighbour_max(state.graph.neighbour_max(rounded))
    return free & (rounded > 0) & (rounded >= best), actual, free_neighbours


def _admit(state: _State, worker: int, chance: float, reading: Reading, tie: Floats, rng: np.random.Generator) -> bool:
    """Lines 21 to 23 for one drawn aggregator; returns whether its cluster has members."""
    state.head[worker] = worker
    free = state.free_neighbours(worker)
    order = admission_order(
        free,
        aggregator=worker,
        graph=state.graph,
        capacity=state.capacity,
        weakest_first=reading.weakest_first,
        tie=tie,
    )
    if not reading.fill:
        order = order[rng.random(len(order)) < chance]
    taken = order[: state.capacity[worker]]
    state.head[taken] = worker
    return len(taken) > 0


def _round(state: _State, reading: Reading, rng: np.random.Generator) -> tuple[bool, bool]:
    """One pass of the while loop; returns whether there were candidates, and whether one was drawn."""
    candidates, actual, free_neighbours = _candidates(state)
    chosen = np.flatnonzero(candidates)
    if not len(chosen):
        return False, False
    alpha = np.divide(actual, free_neighbours, out=np.zeros(len(actual)), where=free_neighbours > 0)  # equation 5
    beta = state.graph.neighbour_sum(np.where(candidates, alpha, 0.0))  # equation 6
    tie = rng.random(state.graph.size)
    draws = rng.random(len(chosen))
    medians: dict[int, float] = {}
    # In a group all free workers but candidates have the same beta, so one median per group serves all its candidates.
    for worker in chosen:
        key = int(state.graph.group[worker])
        if key not in medians:
            medians[key] = float(np.median(beta[state.free_neighbours(int(worker))]))
    drawn = False
    # The print does not fix the loop's order: the strongest come first, so that weaker ones become their members.
    for worker, draw in sorted(zip(chosen.tolist(), draws, strict=True), key=lambda item: -actual[item[0]]):
        key = int(state.graph.group[worker])
        if state.head[worker] >= 0 or draw * medians[key] >= 1:
            continue
        drawn = True
        _admit(state, worker, float(alpha[worker]), reading, tie, rng)
    return True, drawn


def cluster_workers(*, graph: WorkerGraph, capacity: Ints, seed: int = 0, reading: Reading = REPAIRED) -> Clustering:
    """M-WCHA (algorithm 1).

    Args:
        graph: Pairs of workers that may aggregate for each other, n workers.
        capacity: g of equation 1, n integers >= 0: number of other workers for which each worker can aggregate.
        seed: The same seed gives the same clustering.
        reading: The active repairs.

    Returns:
        A feasible clustering.

    Raises:
        ValueError: ``capacity`` does not have one entry >= 0 per worker.
    """
    capacity = np.asarray(capacity, dtype=np.int64)
    if capacity.shape != (graph.size,) or (graph.size and capacity.min() < 0):
        raise ValueError(f"expected {graph.size} capacities of 0 or more, one per worker")
    rng = np.random.default_rng(seed)
    state = _State(graph, capacity)
    while state.unclustered.any():
        found, drawn = _round(state, reading, rng)
        if not found or (not drawn and not reading.redraw):
            break
    alone = np.flatnonzero(state.unclustered)
    state.head[alone] = alone
    return Clustering(head=state.head, method="m-wcha" if reading == REPAIRED else "m-wcha-printed")


def best_of_seeds(*, graph: WorkerGraph, capacity: Ints, seed: int = 0) -> Clustering:
    """The clustering with fewest streams among eight seeds (the first one of these on a tie)."""
    runs = (cluster_workers(graph=graph, capacity=capacity, seed=seed + i) for i in range(_SEEDS))
    return replace(min(runs, key=lambda run: run.streams))
