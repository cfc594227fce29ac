"""Interface of a measured transport: open, run rounds of its patterns, close.

An instance is one rank of one transport, in a separate process and used by one thread.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mlt.perf.options import MAX_RANKS, Options
from mlt.perf.patterns import Buffers


@dataclass(frozen=True)
class Place:
    """Place of a rank: its address and interface."""

    rank: int
    ranks: int
    address: str
    interface: str
    mtu: int
    job: str


@dataclass(frozen=True)
class Address:
    """The address at which a rank's transport may listen; ``port`` was free a moment ago."""

    host: str
    port: int


@dataclass(frozen=True)
class Outcome:
    """One round as one rank measured it. ``seconds`` counts on rank 0 only.

    ``missing_bytes`` are missing within the loss bound. ``arrived_bytes`` is for a transport without delivery
    guarantees: None means all.
    """

    seconds: float
    missing_bytes: int = 0
    arrived_bytes: int | None = None


class Transport(ABC):
    """One rank of a transport. ``open`` may block until all ranks are connected."""

    patterns: ClassVar[frozenset[str]] = frozenset({"p2p", "incast", "alltoall", "allreduce"})
    max_ranks: ClassVar[int] = MAX_RANKS
    # Whether loss bounds, stop policies and segment priorities apply to it.
    is_bounded: ClassVar[bool] = False
    # Whether everything it sends must arrive unchanged; a bare datagram loop does not guarantee it.
    is_reliable: ClassVar[bool] = True

    def __init__(self, place: Place, options: Options) -> None:
        self.place = place
        self.options = options

    @classmethod
    def missing(cls) -> str | None:
        """Why it cannot run on this host, and the command that fixes it; None if it can."""
        return None

    @abstractmethod
    def open(self, table: Sequence[Address]) -> None:
        """Connect to all ranks; ``table`` is in rank order."""

    @abstractmethod
    def incast(self, buffers: Buffers) -> Outcome:
        """p2p and incast: rank 0 sends a request, all others send their tensors."""

    @abstractmethod
    def alltoall(self, buffers: Buffers) -> Outcome:
        """``work`` receives a share of every rank's ``outgoing``."""

    @abstractmethod
    def allreduce(self, buffers: Buffers) -> Outcome:
        """``work`` becomes the sum over all ranks."""

    def other(self, buffers: Buffers) -> Outcome:
        """broadcast, reduce, allgather and reducescatter, as far as ``patterns`` has them."""
        raise NotImplementedError(buffers.case.pattern)

    @abstractmethod
    def close(self) -> None:
        """Release everything; safe if ``open`` failed."""

    def counters(self) -> dict[str, int]:
        """The transport's own counters, which only increase."""
        return {}

    def round(self, buffers: Buffers) -> Outcome:
        """One round of the case's pattern."""
        pattern = buffers.case.pattern
        if pattern in ("p2p", "incast"):
            return self.incast(buffers)
        calls = {"alltoall": self.alltoall, "allreduce": self.allreduce}
        return calls.get(pattern, self.other)(buffers)


def not_installed(module: str, remedy: str) -> str | None:
    """The text of ``Transport.missing`` for a Python module."""
    return None if importlib.util.find_spec(module) is not None else f"{module} is not installed: {remedy}"
