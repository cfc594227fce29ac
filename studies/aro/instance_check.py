"""Checks of an instance that does not come from a cluster file, whose reader would have made them."""

from __future__ import annotations

from mlt.planners.aro.instance import Instance, InstanceError


def check(instance: Instance) -> Instance:
    """Return ``instance``.

    Raises:
        InstanceError: names are not unique, ports and links disagree, or a job contradicts itself or the network.
    """
    _check_names(instance)
    _check_ports(instance)
    _check_jobs(instance)
    return instance


def _check_names(instance: Instance) -> None:
    seen: set[str] = set()
    for name in [*(switch.name for switch in instance.switches), *instance.hosts]:
        if name in seen:
            raise InstanceError(f"{name!r} names two nodes; every switch and host needs a unique name")
        seen.add(name)


def _check_ports(instance: Instance) -> None:
    peers: dict[str, set[str]] = {switch.name: set() for switch in instance.switches}
    for link in instance.links:
        for end, other in ((link.a, link.b), (link.b, link.a)):
            if end in peers:
                peers[end].add(other)
    for switch in instance.switches:
        listed = [port.peer for port in switch.ports]
        if len(set(listed)) != len(listed) or set(listed) != peers[switch.name]:
            odd = sorted(set(listed) ^ peers[switch.name]) or [name for name in listed if listed.count(name) > 1]
            raise InstanceError(f"switch {switch.name!r}: ports and links disagree about {', '.join(odd[:5])}")
        numbers = [port.number for port in switch.ports]
        if len(set(numbers)) != len(numbers):
            raise InstanceError(f"switch {switch.name!r}: two of its ports have the same number")
        if switch.pipelines < 1:
            raise InstanceError(f"switch {switch.name!r}: {switch.pipelines} pipelines; at least one is needed")
        for port in switch.ports:
            if not 0 <= port.pipeline < switch.pipelines:
                raise InstanceError(
                    f"switch {switch.name!r}: port to {port.peer!r} is on pipeline {port.pipeline}, "
                    f"but the switch has pipelines 0 to {switch.pipelines - 1}"
                )


def _check_jobs(instance: Instance) -> None:
    hosts = set(instance.hosts)
    names: set[str] = set()
    if not instance.jobs:
        raise InstanceError("no jobs: at least one job with workers and a task is needed")
    for job in instance.jobs:
        if not job.workers or not job.tasks:
            raise InstanceError(f"job {job.name!r}: needs at least one worker and one task")
        if not job.weight > 0:
            raise InstanceError(f"job {job.name!r}: weight {job.weight} must be positive")
        if len(set(job.workers)) != len(job.workers):
            raise InstanceError(f"job {job.name!r}: a worker is listed twice")
        for name in (job.name, *(f"{job.name}/{task.name}" for task in job.tasks)):
            if name in names:
                raise InstanceError(f"{name!r} names two jobs or two tasks of a job")
            names.add(name)
        for host in (*job.workers, *(task.ps for task in job.tasks)):
            if host not in hosts:
                raise InstanceError(f"job {job.name!r}: {host!r} is not a host of the cluster")
        for task in job.tasks:
            if task.ps in job.workers:
                raise InstanceError(
                    f"job {job.name!r}, task {task.name!r}: host {task.ps!r} is also one of the workers"
                )
