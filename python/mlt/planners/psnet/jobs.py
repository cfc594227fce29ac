"""Jobs of PSNet's planners: requests and placements.

One job at a time uses a worker or server host. Numbers count from 0 inside a module, modules from 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mlt.planners.psnet.checks import TopologyError, require_count, require_positive
from mlt.planners.psnet.psnet import PSNet


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A job to be placed. ``size_bytes``: gradient bytes per worker and iteration (S)."""

    name: str
    workers: int
    servers: int
    size_bytes: float

    def __post_init__(self) -> None:
        require_count(f"job {self.name!r}: workers", self.workers)
        require_count(f"job {self.name!r}: servers", self.servers)
        require_positive(f"job {self.name!r}: size_bytes", self.size_bytes)


@dataclass(frozen=True, kw_only=True)
class PlacedJob:
    """A placed job: module -> its workers there, module -> its servers there (empty modules omitted)."""

    name: str
    size_bytes: float
    workers: Mapping[int, tuple[int, ...]]
    servers: Mapping[int, tuple[int, ...]]

    def __post_init__(self) -> None:
        require_positive(f"job {self.name!r}: size_bytes", self.size_bytes)
        for role in ("workers", "servers"):
            kept = {mid: tuple(members) for mid, members in sorted(getattr(self, role).items()) if members}
            if not kept:
                raise TopologyError(f"job {self.name!r} has no {role}")
            object.__setattr__(self, role, MappingProxyType(kept))

    @property
    def worker_count(self) -> int:
        """W."""
        return sum(len(members) for members in self.workers.values())

    @property
    def server_count(self) -> int:
        """P."""
        return sum(len(members) for members in self.servers.values())

    @property
    def share_bytes(self) -> float:
        """S/P, the bytes that one worker pushes to one server."""
        return self.size_bytes / self.server_count

    @property
    def modules(self) -> tuple[int, ...]:
        """The modules with its workers or servers, sorted."""
        return tuple(sorted({*self.workers, *self.servers}))

    def workers_in(self, mid: int) -> int:
        """Number of its workers in a module."""
        return len(self.workers.get(mid, ()))

    def servers_in(self, mid: int) -> int:
        """Number of its servers in a module."""
        return len(self.servers.get(mid, ()))

    def sent_bytes(self, source: int, target: int) -> float:
        """Bytes its workers in one module push to its servers in another."""
        return self.workers_in(source) * self.servers_in(target) * self.share_bytes


def check_jobs(network: PSNet, jobs: Iterable[PlacedJob]) -> None:
    """Reject hosts that do not exist or have two jobs, and two jobs of one name."""
    owner: dict[tuple[str, int, int], str] = {}
    names: set[str] = set()
    for job in jobs:
        if job.name in names:
            raise TopologyError(f"two jobs are named {job.name!r}")
        names.add(job.name)
        for role, members_of in (("worker", job.workers), ("server", job.servers)):
            for mid, members in members_of.items():
                module = network.module(mid)
                maximum = module.worker_count if role == "worker" else module.server_count
                for member in members:
                    if not 0 <= member < maximum:
                        raise TopologyError(
                            f"job {job.name!r}: module {mid} has {maximum} {role}s, there is no {member}"
                        )
                    taken = owner.setdefault((role, mid, member), job.name)
                    if taken != job.name or members.count(member) > 1:
                        raise TopologyError(f"{role} {member} of module {mid} is given to {taken!r} and {job.name!r}")
