"""Paths of a rank from the SRv6 segment lists of ``mlt plan``; maps the plan file's host names to ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from mlt._shared.counts import count_of
from mlt.errors import ConfigError

FIELDS = ("plan", "hosts", "job")


def segments_by_path(source: Mapping[str, Any], rank: int | None) -> list[dict[int, tuple[str, ...]]]:
    """For each path, this rank's segment list by destination rank.

    ``source``: ``plan`` (the file's name), ``hosts`` (the plan's host names, in rank order) and ``job``, if the plan
    has several. If several tasks route between the same two hosts, each of their distinct routes is a path. The pair
    with the most routes gives the number of paths of all ranks; other pairs repeat theirs. Raises ConfigError.
    """
    from mlt.planners._shared.documents import InputError
    from mlt.planners.plan import read_plan

    unknown = [str(name) for name in source if name not in FIELDS]
    name, hosts = source.get("plan"), source.get("hosts")
    if unknown or not isinstance(name, str | os.PathLike):
        raise ConfigError(f"a plan is given as a mapping with plan, hosts and job, not {', '.join(map(str, source))}")
    if isinstance(hosts, str) or not isinstance(hosts, Sequence) or len(set(map(str, hosts))) != len(hosts):
        raise ConfigError(
            f"hosts is {hosts!r}; it is the list of the plan's host names in the order of ranks, each once"
        )
    if rank is None or rank >= len(hosts):
        raise ConfigError(f"hosts names {count_of(len(hosts), 'host')}; rank {rank} has none")
    try:
        plan = read_plan(os.fspath(name))
    except InputError as error:
        raise ConfigError(f"plan {os.fspath(name)}: {error}") from None
    jobs = [job for job in plan.jobs if job.routing is not None and source.get("job") in (None, job.job)]
    if len(jobs) != 1 or jobs[0].routing is None:
        raise ConfigError(f"plan {os.fspath(name)} has routes of {len(jobs)} such jobs; name one with job:")
    merged = [route for task in jobs[0].routing.tasks for route in task.routes if route.aggregated_at]
    if merged:
        one = merged[0]
        raise ConfigError(
            f"plan {os.fspath(name)} merges {len(merged)} of its routes in switches, the first ({one.source} to "
            f"{one.destination}) in {one.aggregated_at[0].switch}. A running job has no such aggregator: its flows "
            "would stay apart, and load each link behind it several times as much as planned. Set `aggregates: false` "
            "for the switches in the cluster file and plan again"
        )
    if not any(route.segments for task in jobs[0].routing.tasks for route in task.routes):
        raise ConfigError(
            f"plan {os.fspath(name)} has no SRv6 segment list, the only part of a plan that paths can follow: hosts "
            "with IPv4 addresses get none, and neither do routes without a choice. Leave MLT_PATHS (paths=) out"
        )
    ranks = {str(host): number for number, host in enumerate(hosts)}
    routes: dict[tuple[int, int], list[tuple[str, ...]]] = {}
    for route in (route for task in jobs[0].routing.tasks for route in task.routes):
        missing = [end for end in (route.source, route.destination) if end not in ranks]
        if missing:
            raise ConfigError(f"plan {os.fspath(name)} routes from or to {missing[0]!r}, which is not among hosts")
        lists = routes.setdefault((ranks[route.source], ranks[route.destination]), [])
        if route.segments not in lists:
            lists.append(route.segments)
    own = {destination: lists for (start, destination), lists in routes.items() if start == rank}
    return [
        {destination: lists[path % len(lists)] for destination, lists in own.items()}
        for path in range(max(map(len, routes.values()), default=1))
    ]
