"""Cost of the gradient synchronisation per training step, as the communication hook measured it."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mlt._shared.counts import count_of
from mlt._shared.units import format_loss, format_size, format_time

if TYPE_CHECKING:
    from mlt import Completion

DEFAULT_HISTORY: Final = 100_000


@dataclass(frozen=True)
class StepStatistics:
    """One step's gradient synchronisation on this worker.

    ``bytes`` were pushed by this worker; ``missing_bytes`` of them are missing, within the loss bound; with lossy
    results also of the results, so that there may be twice as many. ``repairs`` counts segments sent again in both
    directions. ``sync_seconds`` runs from the first bucket's push to the last bucket's result, so it overlaps with the
    backward pass. ``exposed_seconds`` runs from the last push to the last result: no computation can hide it.
    ``drift``: the largest difference between the replicas' parameters that the re-synchronisation before this step
    found; None if there was none.
    """

    step: int
    buckets: int
    bytes: int
    missing_bytes: int
    repairs: int
    sync_seconds: float
    exposed_seconds: float
    drift: float | None = None

    @property
    def loss_fraction(self) -> float:
        """Share of this worker's gradient bytes that did not arrive, in [0, 1)."""
        return self.missing_bytes / self.bytes if self.bytes else 0.0

    def scalars(self) -> dict[str, float]:
        """The step's figures by the names under which loggers (TensorBoard, MLflow and others) keep them.

        >>> StepStatistics(7, 2, 4_000, 40, 3, 0.012, 0.002).scalars()  # doctest: +NORMALIZE_WHITESPACE
        {'mlt/gradient_loss': 0.01, 'mlt/exchange_ms': 12.0, 'mlt/exposed_ms': 2.0, 'mlt/bytes': 4000.0,
         'mlt/repairs': 3.0}

        ``mlt/drift`` is there if the replicas were re-synchronised before this step.
        """
        drift = {} if self.drift is None else {"mlt/drift": self.drift}
        return {
            "mlt/gradient_loss": self.loss_fraction,
            "mlt/exchange_ms": self.sync_seconds * 1e3,
            "mlt/exposed_ms": self.exposed_seconds * 1e3,
            "mlt/bytes": float(self.bytes),
            "mlt/repairs": float(self.repairs),
            **drift,
        }

    def __str__(self) -> str:
        """One line for a log.

        >>> print(StepStatistics(7, 2, 4_000_000, 40_000, 3, 0.012, 0.002))
        step 7: 4 MB in 2 buckets, 12 ms, 2 ms of them exposed; 1% lost, 3 segments repaired
        """
        repaired = count_of(self.repairs, "segment")
        drift = "" if self.drift is None else f"; replicas had drifted by up to {self.drift:.3g}"
        return (
            f"step {self.step}: {format_size(self.bytes)} in {count_of(self.buckets, 'bucket')}, "
            f"{format_time(self.sync_seconds)}, {format_time(self.exposed_seconds)} of them exposed; "
            f"{format_loss(self.loss_fraction)} lost, {repaired} repaired{drift}"
        )


@dataclass(frozen=True)
class Losses:
    """The cost on this rank so far of reductions that may lose.

    ``reductions`` ended, of tensors of ``bytes`` in all; ``missing_bytes`` of what other ranks sent for them did not
    arrive, within the loss bound; ``repairs`` segments were sent again.
    """

    reductions: int = 0
    bytes: int = 0
    missing_bytes: int = 0
    repairs: int = 0

    @property
    def loss_fraction(self) -> float:
        """``missing_bytes`` over ``bytes``. Of many ranks it may exceed the bound, which holds for each hop."""
        return self.missing_bytes / self.bytes if self.bytes else 0.0


class LossCount:
    """Counts the losses of reductions. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = Losses()

    def add(self, done: Completion) -> None:
        """Count a reduction that ended."""
        with self._lock:
            total = self._total
            self._total = Losses(
                total.reductions + 1,
                total.bytes + done.bytes,
                total.missing_bytes + done.missing_bytes,
                total.repairs + done.repairs,
            )

    def total(self) -> Losses:
        """All so far."""
        with self._lock:
            return self._total


class OpenStep:
    """A step with buckets still to be pushed or in progress; guarded by the log's lock."""

    def __init__(self, step: int, drift: float | None = None) -> None:
        self.step = step
        self.drift = drift
        self.first_push_ns = time.monotonic_ns()
        self.last_push_ns = self.first_push_ns
        self.last_result_ns = self.first_push_ns
        self.buckets = 0
        self.outstanding = 0
        self.all_pushed = False
        self.bytes = 0
        self.missing_bytes = 0
        self.repairs = 0


class StepLog:
    """Collects steps from the backward pass (pushes) and the library's completion thread (results).

    Keeps the last ``history`` finished steps. Any thread may call any method.
    """

    def __init__(self, history: int) -> None:
        if isinstance(history, bool) or not isinstance(history, int) or history < 1:
            raise ValueError(f"history is {history!r}; keep at least one step")
        self._lock = threading.Lock()
        self._open: OpenStep | None = None
        self._started = 0
        self._drift: float | None = None  # of the next step
        self._finished: deque[StepStatistics] = deque(maxlen=history)

    def push(self, *, first: bool, last: bool) -> OpenStep:
        """Record that a bucket is about to be pushed; ``first`` opens a new step, ``last`` completes its bucket
        list."""
        with self._lock:
            step = self._open
            if step is None or first:
                step = self._open = OpenStep(self._started, self._drift)
                self._started += 1
                self._drift = None
            step.last_push_ns = time.monotonic_ns()
            step.buckets += 1
            step.outstanding += 1
            step.all_pushed = last
            return step

    def result(self, step: OpenStep, *, pushed_bytes: int, missing_bytes: int, repairs: int) -> StepStatistics | None:
        """Record the averaged result of one bucket of ``step``; the last one closes the step, and returns it."""
        with self._lock:
            step.last_result_ns = time.monotonic_ns()
            step.outstanding -= 1
            step.bytes += pushed_bytes
            step.missing_bytes += missing_bytes
            step.repairs += repairs
            return self._close_if_done(step)

    @property
    def started(self) -> int:
        """Number of steps that have begun."""
        with self._lock:
            return self._started

    def drifted(self, drift: float) -> None:
        """Record that the replicas are equal again, and how far they had drifted apart: of the next step."""
        with self._lock:
            self._drift = drift

    def end(self, step: OpenStep) -> None:
        """Record that ``step`` has no more buckets, if no ``push`` was known to be its last."""
        with self._lock:
            step.all_pushed = True
            self._close_if_done(step)

    def _close_if_done(self, step: OpenStep) -> StepStatistics | None:
        if not step.all_pushed or step.outstanding > 0:
            return None
        closed = StepStatistics(
            step=step.step,
            buckets=step.buckets,
            bytes=step.bytes,
            missing_bytes=step.missing_bytes,
            repairs=step.repairs,
            sync_seconds=(step.last_result_ns - step.first_push_ns) / 1e9,
            exposed_seconds=(step.last_result_ns - step.last_push_ns) / 1e9,
            drift=step.drift,
        )
        self._finished.append(closed)
        return closed

    def finished(self) -> tuple[StepStatistics, ...]:
        """The finished steps in the history, oldest first."""
        with self._lock:
            return tuple(self._finished)

    def latest(self) -> StepStatistics | None:
        """The last finished step; None before the first."""
        with self._lock:
            return self._finished[-1] if self._finished else None


class StepRecorder:
    """Whatever keeps the statistics of its last ``history`` steps."""

    def __init__(self, history: int) -> None:
        self._log = StepLog(history)

    @property
    def steps(self) -> tuple[StepStatistics, ...]:
        """Statistics of the finished steps, oldest first."""
        return self._log.finished()

    @property
    def latest(self) -> StepStatistics | None:
        """Statistics of the last finished step; None before the first."""
        return self._log.latest()
