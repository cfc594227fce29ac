"""``Context.stats()``: one rank's counters, operations by kind with their times, and the state of its peers."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from mlt.operation import Kind, Status
from mlt.options.paths import PathStatus

if TYPE_CHECKING:
    from mlt import _core

_FAILED = frozenset(("size_mismatch", "type_mismatch", "peer_failed", "timed_out", "cancelled"))
# Attributes of a native completion, read without Python's own frames.
_kind = attrgetter("kind")
_fields = attrgetter("status", "total_bytes", "missing_bytes", "repaired_segments", "elapsed_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationStats:
    """The operations of one kind whose completions were taken: by a wait, ``poll_cq`` or a callback.

    ``count``: all, by ``statuses`` (see ``mlt.operation.Status``). The rest is of those that did not fail: ``bytes`` of
    their tensors, ``missing_bytes`` of them, ``repaired_segments`` sent again or received by repair, ``seconds`` from
    post to completion, summed, and their ``histogram``: (upper bound in seconds, operations below it and not below the
    next lower one), ascending. The bounds are powers of two of a nanosecond; buckets without operations are left out.

    >>> one = OperationStats(count=3, statuses={"complete": 2, "timed_out": 1}, bytes=800, missing_bytes=0,
    ...                      repaired_segments=1, seconds=2.5e-6, histogram=((1.024e-6, 1), (2.048e-6, 1)))
    >>> one.failed, one.late, one.quantile(0.99)
    (1, 0, 2.048e-06)
    """

    count: int
    statuses: Mapping[Status, int]
    bytes: int
    missing_bytes: int
    repaired_segments: int
    seconds: float
    histogram: tuple[tuple[float, int], ...]

    @property
    def failed(self) -> int:
        """Operations that failed."""
        return sum(count for status, count in self.statuses.items() if status in _FAILED)

    @property
    def late(self) -> int:
        """Receives that their ``deadline`` completed, with what had arrived."""
        return self.statuses.get("deadline", 0)

    def quantile(self, fraction: float) -> float:
        """Upper bound of the time in seconds of the fastest ``fraction`` of the operations, in [0, 1]; at most twice
        that time. 0 without operations."""
        left = fraction * sum(count for _, count in self.histogram)
        for bound, count in self.histogram:
            left -= count
            if left <= 0:
                return bound
        return self.histogram[-1][0] if self.histogram else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStats:
    """State of one peer. ``failure``: why it failed, or None. ``rate_gbps``: the rate that the rate controller allows
    towards it, in Gbit/s, 0 where it is not connected. ``paths``: see ``Context.paths``.

    >>> PeerStats(rank=1, is_up=False, has_left=True, failure=None, rate_gbps=0.0, paths=()).has_left
    True
    """

    rank: int
    is_up: bool
    has_left: bool
    failure: str | None
    rate_gbps: float
    paths: tuple[PathStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextStats:
    """``Context.stats()``. ``recorded_seconds``: the time since when ``operations`` are recorded.

    >>> ContextStats(rank=0, world_size=2, services=0, job="training", recorded_seconds=60.0,
    ...              counters={"segments_repaired": 7}, operations={}, peers=()).as_dict()["counters"]
    {'segments_repaired': 7}
    """

    rank: int
    world_size: int
    services: int
    job: str
    recorded_seconds: float
    counters: Mapping[str, int]
    operations: Mapping[Kind, OperationStats]
    peers: tuple[PeerStats, ...]

    def as_dict(self) -> dict[str, Any]:
        """The same as dictionaries, lists and numbers, which ``json.dumps`` takes."""
        return dataclasses.asdict(self)


class _Sums:
    """Sums over the operations of one kind."""

    __slots__ = ("buckets", "bytes", "missing", "nanoseconds", "repairs", "statuses")

    def __init__(self) -> None:
        self.statuses: Counter[Status] = Counter()
        self.buckets: Counter[int] = Counter()  # number of bits of the nanoseconds -> operations
        self.bytes = self.missing = self.repairs = self.nanoseconds = 0

    def stats(self) -> OperationStats:
        return OperationStats(
            count=self.statuses.total(),
            statuses=dict(self.statuses),
            bytes=self.bytes,
            missing_bytes=self.missing,
            repaired_segments=self.repairs,
            seconds=self.nanoseconds / 1e9,
            histogram=tuple((2**bits / 1e9, self.buckets[bits]) for bits in sorted(self.buckets)),
        )


class Recorder:
    """Adds up completions; thread-safe. For the modules of this package only, which add each one that they take."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[Kind, _Sums] = {}
        self._start = time.monotonic()

    def add(self, natives: Sequence[_core.Completion]) -> None:
        """Add completions, each of which was just taken."""
        with self._lock:
            for native in natives:
                kind = _kind(native)
                sums = self._sums.get(kind)
                if sums is None:
                    sums = self._sums[kind] = _Sums()
                status, size, missing, repairs, nanoseconds = _fields(native)
                sums.statuses[status] += 1
                if status in _FAILED:
                    continue
                sums.bytes += size
                sums.missing += missing
                sums.repairs += repairs
                sums.nanoseconds += nanoseconds
                sums.buckets[nanoseconds.bit_length()] += 1

    @property
    def seconds(self) -> float:
        """The time since its creation."""
        return time.monotonic() - self._start

    def operations(self) -> dict[Kind, OperationStats]:
        """The sums, by kind."""
        with self._lock:
            return {kind: sums.stats() for kind, sums in self._sums.items()}
