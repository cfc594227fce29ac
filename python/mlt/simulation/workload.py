"""Transfers of one iteration of a plan, with their dependencies.

Gradients are sent in parts, so that a service returns the first sums while later parts are in flight (BytePS section
6.1, ALEPH section 3.1); the parts of an iteration are pushed in order. The algorithms are those that the planners time:
ring all-reduce, push-pull through services (parameter server, BytePS), ALEPH's tree. ARO's routes and their aggregators
are in ``planned_routes``, PSNet's in ``planned_circuits``. Absent: the time of summing.

Sizes are bytes of 32-bit floats, so multiples of 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlt.planners.cluster import Cluster, Job
from mlt.planners.plan import Aggregation, JobPlan
from mlt.simulation.scenario import SEGMENT_BYTES, Aggregator, Transfer, Ways

_MAX_PARTS = 64
_MIN_PARTS = 4
_MAX_TRANSFERS = 20_000
_MIN_SEGMENTS = 32  # of a transfer: in smaller ones, costs other than the bytes would show


class NotSimulated(Exception):
    """This plan cannot be simulated; the message gives the reason."""


@dataclass(frozen=True)
class Workload:
    """Transfers, the aggregators in switches, and the planned routes and rates (bits per second on the wire to one
    peer). Routes and rates that are not planned are left to the network and the endpoints."""

    transfers: tuple[Transfer, ...]
    aggregators: tuple[Aggregator, ...] = ()
    ways: tuple[Ways, ...] = ()
    rates: tuple[tuple[str, float], ...] = ()


def hosts_of(job: Job) -> tuple[str, ...]:
    """All hosts that may take part in ``job``'s communication."""
    return (*job.workers, *job.servers)


def transfers_of(cluster: Cluster, job: Job, plan: JobPlan, *, size: float) -> list[Transfer]:
    """One iteration of ``plan`` with ``size`` bytes of gradients per worker, where switches only forward.

    Raises:
        NotSimulated: the plan does not name the hosts that sum.
    """
    strategy = plan.strategy
    if strategy == "all-reduce":
        return ring_all_reduce(job.workers, size=size)
    if strategy == "load-assignment" and plan.assignment is not None:
        total = sum(service.load_bytes for service in plan.assignment.services)
        return push_pull(job.workers, {s.host: s.load_bytes / total for s in plan.assignment.services}, size=size)
    if strategy == "tree" and plan.aggregation is not None:
        return aggregation_tree(plan.aggregation, size=size)
    if strategy in ("parameter-server", "circuits") and job.servers:
        return push_pull(job.workers, server_shares(cluster, job), size=size)
    raise NotSimulated(f"the plan has no method of aggregation (strategy {strategy})")


def server_shares(cluster: Cluster, job: Job) -> dict[str, float]:
    """The fraction of the gradients that each server of ``job`` sums: by its bandwidth."""
    total = sum(cluster.host_by_name[name].bandwidth for name in job.servers)
    return {name: cluster.host_by_name[name].bandwidth / total for name in job.servers}


def whole_floats(size: float) -> int:
    """Bytes of the nearest number of 32-bit floats, min one."""
    return max(4, round(size / 4) * 4)


def parts_of(size: float, *, transfers: int, smallest: float) -> int:
    """Number of parts of an iteration: up to 64, limited by the smallest transfer and the number of transfers.

    Args:
        transfers: number of transfers per part.
        smallest: fraction of a part that the smallest of these carries.
    """
    room = int(size * smallest // (_MIN_SEGMENTS * SEGMENT_BYTES))
    return max(_MIN_PARTS, min(_MAX_PARTS, _MAX_TRANSFERS // max(transfers, 1), room))


def push_pull(workers: Sequence[str], shares: Mapping[str, float], *, size: float) -> list[Transfer]:
    """Every worker pushes its share to every service and receives the sum; a worker's own share is not sent.

    Args:
        shares: host -> part of the gradients that it sums; the parts add up to 1.
    """
    held = {host: share for host, share in shares.items() if share > 0}
    parts = parts_of(size, transfers=2 * len(workers) * len(held), smallest=min(held.values()))
    out: list[Transfer] = []
    for _ in range(parts):
        pushed: dict[str, list[int]] = {}
        # Worker i starts with service i: sending to the same service at once would only queue.
        for turn in range(len(held)):
            for place, worker in enumerate(workers):
                service, share = list(held.items())[(place + turn) % len(held)]
                if worker != service:
                    pushed.setdefault(service, []).append(len(out))
                    out.append(Transfer(worker, service, whole_floats(size * share / parts)))
        for service, share in held.items():
            after = tuple(pushed.get(service, ()))
            answers = [worker for worker in workers if worker != service]
            out += [Transfer(service, worker, whole_floats(size * share / parts), after) for worker in answers]
    return out


def ring_all_reduce(workers: Sequence[str], *, size: float) -> list[Transfer]:
    """Reduce-scatter, then all-gather: each of n chunks takes 2 (n - 1) steps (ALEPH section 2, BytePS 2.2)."""
    n = len(workers)
    if n < 2:
        return []
    steps = 2 * (n - 1)
    parts = parts_of(size, transfers=steps * n, smallest=1 / n)
    chunk = whole_floats(size / n / parts)
    out: list[Transfer] = []
    for step in range(steps):
        for part in range(parts):
            for start in range(n):
                after = ((step - 1) * parts * n + part * n + start,) if step else ()
                source = (start + step) % n
                out.append(Transfer(workers[source], workers[(source + 1) % n], chunk, after))
    return out


def aggregation_tree(tree: Aggregation, *, size: float) -> list[Transfer]:
    """ALEPH's two levels: members to aggregators, these and direct workers to the servers, and sums back the same way.

    An aggregator forwards a part once it has all its members' parts; a server replies once it has all streams.
    """
    shares = {share.server: share.share for share in tree.shares if share.share > 0}
    heads = [*((c.aggregator, c.members) for c in tree.clusters), *((name, ()) for name in tree.direct)]
    members = sum(len(below) for _, below in heads)
    per_part = 2 * len(heads) * len(shares) + members * (1 + len(shares))
    parts = parts_of(size, transfers=per_part, smallest=min(shares.values()))
    out: list[Transfer] = []
    for _ in range(parts):
        pushed: dict[str, list[int]] = {server: [] for server in shares}
        arrived: dict[str, tuple[int, ...]] = {}
        for head, below in heads:
            arrived[head] = tuple(range(len(out), len(out) + len(below)))
            out += [Transfer(member, head, whole_floats(size / parts)) for member in below]
        for head, _ in heads:
            for server, share in shares.items():
                pushed[server].append(len(out))
                out.append(Transfer(head, server, whole_floats(size * share / parts), arrived[head]))
        for server, share in shares.items():
            part = whole_floats(size * share / parts)
            for head, below in heads:
                answer = len(out)
                out.append(Transfer(server, head, part, tuple(pushed[server])))
                out += [Transfer(head, member, part, (answer,)) for member in below]
    return out
