"""Parts of every framework's gradient exchange: the loss that is allowed, the layers, and texts for errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mlt._gradients.loss import LossSchedule, bound_at, checked
from mlt._gradients.statistics import DEFAULT_HISTORY, StepRecorder
from mlt._named import job
from mlt._named.controller import Handle, RejectedError
from mlt._named.process_sets import ProcessSet, set_id
from mlt._named.requests import Request, Spec

DEFAULT_BUCKET_BYTES: Final = 4 << 20
_SHOWN: Final = 12
"""Gradients that an error lists."""


class BoundedLossState(StepRecorder):
    """The fraction of the gradients that may be lost, and the statistics of the last steps.

    ``loss_bound`` in [0, 1), or text such as "10%": max fraction of a bucket's elements that may be lost in each hop of
    the sum; 0 is exact. Or a function of step and layer (``warm_up``, ``phases``), the same on every rank; its step
    counts the exchanges of this state, its layer 0 is the front layer. ``bucket_bytes``: size from which a bucket ends.
    ``history``: number of steps whose statistics are kept. Of one optimizer, or of the tapes of one training loop.
    Raises ValueError for a bound outside [0, 1) or no bucket size.

    >>> state = BoundedLossState(loss_bound=0.1)
    >>> state.latest is None  # before the first step; later state.latest.loss_fraction
    True
    """

    def __init__(
        self,
        loss_bound: float | str | LossSchedule = 0.1,
        *,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        history: int = DEFAULT_HISTORY,
    ) -> None:
        bound = checked(loss_bound)
        if bucket_bytes < 1:
            raise ValueError(f"bucket_bytes is {bucket_bytes}; give the size of a bucket in bytes, 1 or more")
        super().__init__(history)
        self.loss_bound = bound
        self.bucket_bytes = bucket_bytes
        self.step = 0

    @property
    def is_exact(self) -> bool:
        """Whether nothing may ever be lost."""
        return self.loss_bound == 0

    def bound(self, layer: int) -> float:
        """The bound of a layer in the current step."""
        return bound_at(self.loss_bound, self.step, layer)

    def exchange(self, handles: Sequence[Handle]) -> None:
        """Wait for the layers' operations of a step, and record them. Raises HorovodInternalError."""
        self.step += 1
        step = None
        for number, _ in enumerate(handles):
            step = self._log.push(first=number == 0, last=number == len(handles) - 1)
        for handle in handles:
            handle.wait()
            done = handle.completions
            assert step is not None
            self._log.result(
                step,
                pushed_bytes=sum(one.bytes for one in done),
                missing_bytes=sum(one.missing_bytes for one in done),
                repairs=sum(one.repairs for one in done),
            )


def loss_state(loss_bound: float | str | LossSchedule | BoundedLossState | None) -> BoundedLossState:
    """The state of an argument ``loss_bound``; None: exact."""
    if isinstance(loss_bound, BoundedLossState):
        return loss_bound
    return BoundedLossState(0.0 if loss_bound is None else loss_bound)


def layers_of(
    sizes: Sequence[int], bucket_bytes: int | None, groups: Sequence[Sequence[int]] = ()
) -> list[Sequence[int]]:
    """The positions of the gradients of each operation, from the front: the program's groups, and the others by size.

    ``sizes``: bytes of each gradient, the front layer's first. ``bucket_bytes``: size from which a bucket of
    consecutive gradients ends; None: all are one. ``groups``: positions of gradients that the program wants in one
    operation.

    >>> layers_of([3, 3, 3, 3], 6), layers_of([3, 3, 3], None), layers_of([3, 3, 3], 1, [[0, 2]])
    ([[0, 1], [2, 3]], [[0, 1, 2]], [[0, 2], [1]])
    """
    grouped = {position for group in groups for position in group}
    layers: list[Sequence[int]] = list(groups)
    bucket: list[int] = []
    size = 0
    for position in (one for one in range(len(sizes)) if one not in grouped):
        if not bucket or (bucket_bytes is not None and size >= bucket_bytes):
            bucket, size = [], 0
            layers.append(bucket)
        bucket.append(position)
        size += sizes[position]
    return sorted(layers, key=min)


def small_layers_of(sizes: Sequence[int], layer_bytes: int) -> list[Sequence[int]]:
    """The positions of the gradients of each layer, from the front: consecutive ones of up to ``layer_bytes`` together,
    and each larger one alone, so that no small gradient has the urgency of a large one.

    >>> small_layers_of([1, 2, 3, 9, 1, 1], 4)
    [[0, 1], [2], [3], [4, 5]]
    """
    layers: list[list[int]] = []
    size = layer_bytes
    for position, of in enumerate(sizes):
        if not layers or size + of > layer_bytes:
            layers.append([])
            size = 0
        layers[-1].append(position)
        size += of
    return list(layers)


def agree_on(
    name: str, specs: Sequence[Spec], process_set: ProcessSet, *, layers: int, sparse: Sequence[int] = ()
) -> None:
    """Compare the gradients of an exchange of several operations with those of the other ranks, before its first step.

    A rank that started another number of operations would wait for the others. ``name``: of the exchange, and of its
    operation on a rank that has only one. ``layers``: number of operations with dense gradients. ``sparse``: positions
    of the sparse gradients. Raises RejectedError.
    """
    exchange = Request("barrier", name, tuple(specs), set_id=set_id(process_set), layers=layers, sparse=tuple(sparse))
    own = job.controller()
    if exchange not in own.agreed:
        own.submit(exchange).wait()
        own.agreed.add(exchange)


def settle(handles: Sequence[Handle]) -> None:
    """Wait until these operations have ended, rejected or not."""
    for handle in handles:
        try:
            handle.wait()
        except RejectedError:
            continue


def listed(specs: Sequence[Spec], labels: Sequence[str]) -> str:
    """This rank's gradients, for an error about a difference between ranks."""
    texts = [
        f"{label} {dtype} {'x'.join(map(str, shape)) or 'scalar'}"
        for label, (dtype, shape) in zip(labels, specs, strict=True)
    ]
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return f"the gradients of rank {job.controller().rank} are {', '.join(texts[:_SHOWN])}{more}"
