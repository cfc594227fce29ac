"""Traffic patterns: the transfers of a round, what must have arrived, and the bytes that cross a port.

p2p: rank 1 to rank 0. incast: every rank but 0 to rank 0. alltoall: every rank distributes its tensor to all.
allreduce: every rank ends with the sum of all tensors; reduce: rank 0 does. broadcast: every rank ends with the last
rank's tensor. allgather: every rank ends with a share of every rank's tensor; reducescatter: with its share of the sum
of all tensors. In the first two rank 0 sends a short request and its clock runs from there to the last byte's arrival;
in the others each rank's clock runs around its call, and rank 0's is reported. That of a broadcast runs around a
barrier too, because rank 0 may be done before the last one.
Elements are float32; values are small integers, so that sums are exact in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlt._shared.json_lines import quoted
from mlt.perf.options import AUTOMATIC, Options
from mlt.perf.problem import BadOptionError, PerfError

Floats = npt.NDArray[np.float32]

# Sums grow by the number of ranks with each in-place round; after this many they still fit float32 for 64 ranks.
MAX_SUMS_IN_PLACE = 16
SMALL_BYTES = 1 << 20
_PERIOD = 251


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pattern at one size, as one transport runs it. ``loss_bound`` and ``algorithm`` are mlt's only."""

    pattern: str
    bytes: int
    ranks: int
    loss_bound: float = 0.0
    stop: str = "patient"
    priority: str = "magnitude"
    algorithm: str = AUTOMATIC

    @property
    def elements(self) -> int:
        return self.bytes // 4

    @property
    def port_bytes(self) -> float:
        """Payload that must cross the busiest port in one direction in one round: goodput is this over the time.

        For all-reduce it is that of a ring, like the bus bandwidth of nccl-tests.
        """
        n = self.ranks
        share = (n - 1) / n
        factor = {
            "p2p": 1.0, "incast": n - 1.0, "alltoall": share, "allreduce": 2 * share,
            "broadcast": 1.0, "reduce": 1.0, "allgather": share, "reducescatter": share,
        }  # fmt: skip
        return self.bytes * factor[self.pattern]

    @property
    def network_bytes(self) -> float:
        """The same, summed over all receivers."""
        return self.port_bytes * (1 if self.pattern in ("p2p", "incast") else self.ranks)


def values(rank: int, elements: int) -> Floats:
    """Contribution of ``rank``: no element is 0, the value of a lost element."""
    found: Floats = (np.arange(elements, dtype=np.uint32) % _PERIOD + (rank % 61) + 1).astype(np.float32)
    return found


class Buffers:
    """The tensors of one rank in one case. ``outgoing`` is never written; ``incoming`` has one array per sender."""

    def __init__(self, case: Case, rank: int) -> None:
        self.case = case
        self.rank = rank
        self.outgoing = values(rank, case.elements)
        self.incoming: dict[int, Floats] = {}
        self.work: Floats = np.empty(0, np.float32)
        if case.pattern in ("p2p", "incast"):
            if rank == 0:
                self.incoming = {peer: np.empty(case.elements, np.float32) for peer in range(1, case.ranks)}
        else:
            self.work = np.empty(case.elements, np.float32)
        self.spoil()

    def spoil(self) -> None:
        """Overwrite the receive buffers, so that later contents must come from the network; this also touches their
        pages."""
        for array in self.incoming.values():
            array.fill(-1)
        self.work.fill(-1)
        self.before_round(0)

    def before_round(self, number: int) -> None:
        """Outside the timed part: an in-place all-reduce needs its input again, but only occasionally."""
        if self.case.pattern == "allreduce" and (self.case.bytes <= SMALL_BYTES or number % MAX_SUMS_IN_PLACE == 0):
            np.copyto(self.work, self.outgoing)

    def missing(self) -> float:
        """The fraction of elements that did not arrive in the round since ``spoil``.

        Raises PerfError if an element is neither what was sent nor the value of a lost one.
        """
        case = self.case
        if case.pattern in ("p2p", "incast"):
            pairs = [(array, values(peer, case.elements)) for peer, array in self.incoming.items()]
        elif case.pattern == "alltoall":
            share = case.elements // case.ranks
            pairs = [
                (self.work[peer * share : (peer + 1) * share], values(peer, case.elements)[self._share(share)])
                for peer in range(case.ranks)
            ]
        else:
            pairs = self._collective_pairs()
        wrong = 0
        for array, expected in pairs:
            different = array != expected
            wrong += int(np.count_nonzero(different))
            self._check(array[different], expected[different])
        total = sum(array.size for array, _ in pairs)
        return wrong / total if total else 0.0

    def _collective_pairs(self) -> list[tuple[Floats, Floats]]:
        """This rank's arrays after a round of allreduce or a later pattern, and the right contents."""
        case = self.case
        if case.pattern == "broadcast":
            return [(self.work, values(case.ranks - 1, case.elements))]
        share = case.elements // case.ranks
        if case.pattern == "allgather":
            return [
                (self.work[peer * share : (peer + 1) * share], values(peer, case.elements)[:share])
                for peer in range(case.ranks)
            ]
        if case.pattern == "reduce" and self.rank != 0:
            return []
        sums = np.zeros(case.elements, np.float32)
        for rank in range(case.ranks):
            sums += values(rank, case.elements)
        if case.pattern == "reducescatter":
            return [(self.work[:share], sums[self._share(share)])]
        return [(self.work, sums)]

    def _share(self, share: int) -> slice:
        return slice(self.rank * share, (self.rank + 1) * share)

    def _check(self, found: Floats, expected: Floats) -> None:
        if not found.size:
            return
        case = self.case
        # A lost contribution leaves a smaller sum, and any other tensor's element at zero.
        is_sum = case.pattern in ("allreduce", "reduce", "reducescatter")
        allowed = (found >= 0) & (found < expected) if is_sum else found == 0
        if case.loss_bound == 0 or not bool(np.all(allowed)):
            raise PerfError(
                f"rank {self.rank}: {found.size:,} elements of {case.pattern} of {case.bytes} bytes are not what was "
                f"sent (the first is {found[0]:g}, not {expected[0]:g}); ignore this transport's results"
            )


def cases_of(options: Options, size: int, *, is_bounded: bool) -> list[Case]:
    """The cases of ``options`` at one size: mlt's loss bounds, each with every algorithm; one of other transports."""
    variants = [(bound, algorithm) for bound in options.loss_bounds for algorithm in options.algorithms]
    return [
        Case(
            pattern=options.pattern, bytes=size, ranks=options.ranks, loss_bound=bound,
            stop=options.stop, priority=options.priority, algorithm=algorithm,
        )
        for bound, algorithm in (variants if is_bounded else [(0.0, AUTOMATIC)])
    ]  # fmt: skip


def as_message(case: Case) -> dict[str, Any]:
    """A case as sent to an agent: the rest is in its options."""
    return {"bytes": case.bytes, "loss_bound": case.loss_bound, "algorithm": case.algorithm}


def read_case(message: Mapping[str, Any], options: Options, *, is_bounded: bool) -> Case:
    """The case that ``as_message`` described. Raises BadOptionError unless it is one of ``options``, on which the ranks
    have agreed: another host must not make this one use more memory or send more."""
    size = message["bytes"]
    cases = cases_of(options, size, is_bounded=is_bounded) if type(size) is int and size in options.sizes else []
    for case in cases:
        if as_message(case) == {key: message.get(key) for key in as_message(case)}:
            return case
    bound, algorithm = message["loss_bound"], message.get("algorithm")
    raise BadOptionError(
        f"a case of {quoted(size)} bytes, loss bound {quoted(bound)}, algorithm {quoted(algorithm)}: not one of the "
        "run's options"
    )
