"""The loss that a program allows: ``lossy`` around collectives, and schedules for ``BoundedLossState``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from mlt._shared.loss_bounds import loss_bound_of

if TYPE_CHECKING:
    from mlt import Completion

LossSchedule = Callable[[int, int], float]
"""The loss bound of a gradient bucket by its step and layer, both from 0; layer 0 is the front layer."""


@dataclass(frozen=True)
class Allowance:
    """The loss that a reduction may have: ``bound``, as of layer ``layer`` of ``layers``. ``observe`` gets its
    completion. ``lossy_results``: those of an all-reduce may lose as much."""

    bound: float = 0.0
    layer: int = 0
    layers: int = 1
    observe: Callable[[Completion], None] | None = None
    lossy_results: bool = False


EXACT: Final = Allowance()
_allowance: Final[ContextVar[Allowance | None]] = ContextVar("mlt_loss", default=None)


def checked(loss_bound: float | str | LossSchedule) -> float | LossSchedule:
    """An argument ``loss_bound``: a schedule as it is, anything else as a fraction. Raises ValueError."""
    return loss_bound if callable(loss_bound) else loss_bound_of(loss_bound)


def bound_at(loss_bound: float | LossSchedule, step: int, layer: int) -> float:
    """The bound that ``checked`` returned, at this step and layer. Raises ValueError for what a schedule returns."""
    return loss_bound_of(loss_bound(step, layer)) if callable(loss_bound) else loss_bound


def current_bound() -> float:
    """The bound of the innermost ``lossy`` of this thread; 0 outside."""
    return current_allowance().bound


def current_allowance(outside: Allowance = EXACT) -> Allowance:
    """The innermost ``allowing`` or ``lossy`` of this thread; without one ``outside``, by which nothing may be lost."""
    innermost = _allowance.get()
    return outside if innermost is None else innermost


@contextmanager
def allowing(allowance: Allowance) -> Iterator[None]:
    """Let the floating-point sums and means called inside lose what ``allowance`` says."""
    token = _allowance.set(allowance)
    try:
        yield
    finally:
        _allowance.reset(token)


@contextmanager
def lossy(bound: float | str, *, lossy_results: bool = False) -> Iterator[None]:
    """Let the floating-point sums and means called inside lose up to ``bound`` on each hop of the sum.

    That is ``all_reduce``, ``reduce`` and ``reduce_scatter``, in all their forms. Everything else remains exact: other
    element types and operations, other collectives, the distribution of results. All ranks of an all-reduce end with
    the same bits. Every rank must use the same bound: in [0, 1), or text such as "10%"; else ValueError is raised.

    ``lossy_results``: the results of an ``all_reduce`` may lose as much, and **ranks end with different bits**: a rank
    keeps the sum, or mean, of the terms that it has of what it misses. Then make equal now and then what the program
    computes from them. Every rank must say the same.

    >>> with lossy(0.1):
    ...     dist.all_reduce(gradient)  # doctest: +SKIP
    """
    with allowing(Allowance(loss_bound_of(bound), lossy_results=lossy_results)):
        yield


def _is_step(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def warm_up(bound: float | str, steps: int) -> LossSchedule:
    """No loss in the first ``steps`` steps, then ``bound``: early gradients are large, and their loss costs most.

    Raises ValueError unless ``steps`` is 0 or more.

    >>> schedule = warm_up(0.1, steps=100)
    >>> schedule(99, 0), schedule(100, 0)
    (0.0, 0.1)
    """
    later = loss_bound_of(bound)
    if not _is_step(steps):
        raise ValueError(f"steps is {steps!r}; give the number of steps without loss, 0 or more")
    return lambda step, _layer: 0.0 if step < steps else later


def phases(*starts: tuple[int, float | str]) -> LossSchedule:
    """A bound from each of these steps on: ``phases((0, 0.0), (100, 0.2), (900, 0.05))``.

    The first step is 0; raises ValueError unless the steps increase from there.

    >>> schedule = phases((0, 0.0), (100, 0.2), (900, 0.05))
    >>> [schedule(step, 0) for step in (0, 100, 899, 900)]
    [0.0, 0.2, 0.2, 0.05]
    """
    steps = [start for start, _ in starts]
    if (
        not steps
        or not all(map(_is_step, steps))
        or steps[0] != 0
        or any(later <= earlier for earlier, later in pairwise(steps))
    ):
        raise ValueError(f"the phases start at the steps {steps}; give increasing steps, the first of them 0")
    bounds = [(start, loss_bound_of(bound)) for start, bound in reversed(starts)]
    return lambda step, _layer: next(bound for start, bound in bounds if start <= step)
