"""The part of all tensors that each summation service sums: as given, as planned (MLT_PLAN), or by the ranks' hosts.

Paper: BytePS, OSDI 2020, section 4.1, equations 1 and 2. Loads have one number for each service, in the order of their
ranks, and add up to 1. A service of load 0 gets nothing.

    mlt.PushPull(context, loads=[1, 1, 4])  # or MLT_PLAN=plan.json
"""

from __future__ import annotations

import functools
import logging
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mlt._shared import variables
from mlt._shared.counts import count_of
from mlt.errors import ConfigError

if TYPE_CHECKING:
    from mlt.planners.plan import JobPlan, ServiceLoad

_ROUNDING = 1e-9

logger = logging.getLogger("mlt")


def resolve(
    given: Sequence[float] | None,
    hosts: Sequence[int],
    workers: int,
    *,
    job: str = "",
    environ: Mapping[str, str] | None = None,
) -> tuple[float, ...]:
    """Take ``given``, else the plan that MLT_PLAN names, else ``by_default``.

    ``hosts``: the number of each rank's host; the first ``workers`` ranks are workers, the others services. ``job``
    chooses among several jobs of a plan. Raises ConfigError that names the argument or the file.

    >>> resolve([1, 3], [0, 1, 2, 3], workers=2, environ={})
    (0.25, 0.75)
    """
    services = len(hosts) - workers
    if given is not None:
        return _checked(given, services)
    path = variables.text(os.environ if environ is None else environ, "MLT_PLAN")
    return by_default(hosts, workers) if path is None else planned(path, hosts, workers, job=job)


def by_default(hosts: Sequence[int], workers: int) -> tuple[float, ...]:
    """Equal loads, unless ``by_hosts`` leaves out those beside workers: then its loads.

    In between, senders share a link equally among the services, not by their loads, so that the larger parts arrive
    late: equal loads are then as fast or faster but for large tensors and many spare hosts (docs/summation.md).

    >>> by_default([0, 1, 0, 1, 2, 3], workers=2)  # as many spare hosts as workers
    (0.0, 0.0, 0.5, 0.5)
    >>> by_default([0, 1, 2, 0, 1, 2, 3], workers=3)
    (0.25, 0.25, 0.25, 0.25)
    """
    services = len(hosts) - workers
    loads = by_hosts(hosts, workers)
    with_workers = set(hosts[:workers])
    beside = [load for host, load in zip(hosts[workers:], loads, strict=True) if host in with_workers]
    return loads if beside and max(beside) == 0 else (1 / services,) * services


def by_hosts(hosts: Sequence[int], workers: int) -> tuple[float, ...]:
    """The loads with which the busiest link carries least, if all links are as fast.

    Equal, unless some services are beside workers and others on hosts without one. For ``n`` workers on hosts of their
    own, a service beside each, and ``k`` services on hosts without workers they are BytePS's equations 1 and 2.

    >>> [round(load, 3) for load in by_hosts([0, 1, 2, 0, 1, 2, 3], workers=3)]  # n = 3, k = 1
    [0.2, 0.2, 0.2, 0.4]
    >>> by_hosts([0, 1, 0, 1], workers=2)
    (0.5, 0.5)
    """
    of_workers, of_services = Counter(hosts[:workers]), Counter(hosts[workers:])
    services = len(hosts) - workers
    # What a host sends and receives, in tensors: a part of 1 there adds so much to what its workers push at least.
    cost = {host: workers - 2 * of_workers[host] for host in of_services}
    are_mixed = 0 < sum(host in of_workers for host in of_services) < len(of_services)
    if not are_mixed or min(cost.values()) < 0:
        return (1 / services,) * services
    parts = _parts(of_workers, cost)
    return tuple(parts[host] / of_services[host] for host in hosts[workers:])


def _parts(of_workers: Mapping[int, int], cost: Mapping[int, int]) -> dict[int, float]:
    """The part of each host with services, so that the busiest link carries least."""
    most = max(of_workers.values())  # on some link in any case
    parts = {host: (most - of_workers.get(host, 0)) / each for host, each in cost.items() if each}
    free = [host for host, each in cost.items() if not each]  # whose links carry the same with any part
    left = 1 - sum(parts.values())
    if left <= _ROUNDING:
        return {host: parts.get(host, 0) / (1 - left) for host in cost}
    if free:
        return {host: parts.get(host, left / len(free)) for host in cost}
    slope = sum(1 / each for each in cost.values())
    return {host: parts[host] + left / slope / each for host, each in cost.items()}


def check_plan(
    *, rank: int, world_size: int, services: int, job: str, environ: Mapping[str, str] | None = None
) -> None:
    """Check the plan that MLT_PLAN names, if it is set, as far as that needs no other rank; services do not read it.

    Raises ConfigError as ``planned``, except that a service may turn out to be on another host than the plan's. Logs
    once that it has no effect in a job without services.

    >>> check_plan(rank=0, world_size=2, services=1, job="default", environ={})
    """
    path = variables.text(os.environ if environ is None else environ, "MLT_PLAN")
    if path is None or rank >= world_size:
        return
    if services == 0:
        _warn_of_no_services()
        return
    _assignment(path, world_size, services, job)


@functools.cache
def _warn_of_no_services() -> None:
    logger.warning("MLT_PLAN has no effect: the job has no summation services (MLT_SERVICES, mlt launch -s)")


def planned(path: str, hosts: Sequence[int], workers: int, *, job: str = "") -> tuple[float, ...]:
    """The loads in the assignment of a plan file, as ``mlt plan assign`` writes it.

    The plan's workers are the job's in the order of ranks. A service that it has beside a worker is one on that
    worker's host; the others follow in the order of ranks. Services without a load need not run.
    Raises ConfigError if the file is none, has no assignment, or is for another number of workers or services.
    """
    return _by_rank(*_assignment(path, workers, len(hosts) - workers, job), hosts, workers)


def _assignment(path: str, workers: int, running: int, job: str) -> tuple[Sequence[ServiceLoad], str]:
    """The plan's services for so many workers and running services, and the plan in words."""
    from mlt.planners._shared.documents import InputError
    from mlt.planners.plan import read_plan

    try:
        plan = read_plan(path)
    except InputError as error:
        raise ConfigError(f"MLT_PLAN: {error}") from None
    chosen = _chosen([one for one in plan.jobs if one.assignment], path, job)
    assert chosen.assignment is not None
    services, what = chosen.assignment.services, f"MLT_PLAN={path}: the plan of job {chosen.job!r}"
    beside = sum(one.colocated for one in services)
    if beside != workers:
        raise ConfigError(f"{what} is for {count_of(beside, 'worker')}, and this job has {workers}: plan it again")
    with_load = sum(one.load_bytes > 0 for one in services)
    if running not in (len(services), with_load):
        some = f", {with_load} with a load" if with_load < len(services) else ""
        raise ConfigError(
            f"{what} has {count_of(len(services), 'summation service')}{some}, and this job has {running}: start as "
            "many, in the plan's order, or plan it again"
        )
    return services, what


def _chosen(jobs: Sequence[JobPlan], path: str, job: str) -> JobPlan:
    if not jobs:
        raise ConfigError(f"MLT_PLAN={path} assigns no loads to summation services: make it with `mlt plan assign`")
    named = [one for one in jobs if one.job == job]
    if len(jobs) == 1 or named:
        return (named or jobs)[0]
    names = ", ".join(repr(one.job) for one in jobs)
    raise ConfigError(f"MLT_PLAN={path} assigns loads to the jobs {names}, and this one is {job!r}: set MLT_JOB to one")


def _by_rank(services: Sequence[ServiceLoad], what: str, hosts: Sequence[int], workers: int) -> tuple[float, ...]:
    running = len(hosts) - workers
    total = math.fsum(one.load_bytes for one in services)
    free = list(range(workers, len(hosts)))
    loads = dict.fromkeys(free, 0.0)
    numbered = [(i, one) for i, one in enumerate(services) if one.load_bytes > 0 or running == len(services)]
    for worker, one in sorted(numbered, key=lambda pair: not pair[1].colocated):
        rank = next((rank for rank in free if not one.colocated or hosts[rank] == hosts[worker]), None)
        if rank is None:
            raise ConfigError(
                f"{what} has a service beside rank {worker} (on {one.host!r}), and no service of this job is on the "
                "host of that rank: start one there, or plan it again"
            )
        free.remove(rank)
        loads[rank] = one.load_bytes / total
    return tuple(loads.values())


def _checked(given: Sequence[float], services: int) -> tuple[float, ...]:
    try:
        loads = [float(one) for one in given]
    except (TypeError, ValueError):
        raise ConfigError(f"loads is {given!r}; it is a number for each summation service") from None
    if len(loads) != services:
        raise ConfigError(
            f"loads has {count_of(len(loads), 'number')}, and this job has {count_of(services, 'summation service')}: "
            "give one for each"
        )
    total = math.fsum(loads)
    if not all(one >= 0 for one in loads) or not 0 < total < math.inf:
        raise ConfigError(f"loads is {given!r}; numbers of 0 or more are expected, one of them above 0")
    return tuple(one / total for one in loads)
