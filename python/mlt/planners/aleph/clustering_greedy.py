"""A greedy dominating set of the worker graph: fewest streams where workers of a group all reach each other."""

from __future__ import annotations

import heapq

import numpy as np

from mlt.planners.aleph.clustering import Clustering, admission_order
from mlt.planners.aleph.worker_graph import Ints, WorkerGraph


def greedy_clustering(*, graph: WorkerGraph, capacity: Ints) -> Clustering:
    """Repeatedly take the free worker with the most free neighbours in its capacity, until none has any.

    On groups this is optimal: the strongest aggregators take as many members as possible, weakest members first.
    """
    capacity = np.asarray(capacity, dtype=np.int64)
    head = np.full(graph.size, -1, dtype=np.int64)
    free_neighbours = graph.neighbour_count(head < 0)
    queue = [(-int(min(capacity[w], free_neighbours[w])), w) for w in range(graph.size)]
    heapq.heapify(queue)
    tie = np.arange(graph.size, dtype=float)
    while queue:
        claimed, worker = heapq.heappop(queue)
        if head[worker] >= 0:
            continue
        near = graph.neighbours(worker)
        free = near[head[near] < 0]
        takes = int(min(capacity[worker], len(free)))
        if takes == 0:
            continue
        if takes < -claimed:  # neighbours were taken since it was queued: its turn comes later
            heapq.heappush(queue, (-takes, worker))
            continue
        order = admission_order(free, aggregator=worker, graph=graph, capacity=capacity, weakest_first=True, tie=tie)
        head[worker] = worker
        head[order[:takes]] = worker
    alone = np.flatnonzero(head < 0)
    head[alone] = alone
    return Clustering(head=head, method="greedy")
