"""Push-pull: workers push tensors to the summation services and pull the averages back (paper appendix A; BytePS)."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlt._callbacks import Callbacks
from mlt._shared.argument_types import explains_types
from mlt._shared.loss_bounds import loss_bound_of
from mlt.context import Context
from mlt.errors import ConfigError, PeerFailedError, UnknownOperationError, WaitTimeoutError, from_status
from mlt.job.epochs.settings import VARIABLE, is_elastic
from mlt.operation import Operation
from mlt.options import serving, times

if TYPE_CHECKING:
    from mlt import _core

MAX_KEY = 2**40
# Max wait until another thread, which took a completion by ``poll_cq``, passes it to the handle.
SETTLE_SECONDS = 5.0

# Between two looks at what a service has to report.
NOTICE_SECONDS = 0.5

logger = logging.getLogger("mlt")
_services_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class PushPullResult:
    """Result of a push-pull. ``missing_bytes`` of this worker's push did not arrive; the pulled tensor is complete.

    ``repairs`` counts segments sent again in both directions; ``elapsed_ns`` runs from the call to the completion.

    >>> PushPullResult(key=1, name="conv1", bytes=400, missing_bytes=4, repairs=0, elapsed_ns=2_000_000).loss_fraction
    0.01
    """

    key: int
    name: str | None
    bytes: int
    missing_bytes: int
    repairs: int
    elapsed_ns: int

    @property
    def loss_fraction(self) -> float:
        """Missing bytes over all bytes of this worker's push; 0 for an empty tensor."""
        return self.missing_bytes / self.bytes if self.bytes else 0.0


class PushPullHandle(Operation):
    """Handle of a push-pull: an operation whose ``wait`` returns a ``PushPullResult``, any number of times.

    It counts towards the context's ``max_operations`` until its completion is taken: call ``wait`` or
    ``Context.poll_cq``, or add a callback.

    >>> handles = [PushPull(rank).push_pull(np.zeros(2, np.float32), key=9) for rank in (rank_0, rank_1)]
    >>> [handle.wait(timeout=10).missing_bytes for handle in handles]
    [0, 0]
    """

    __slots__ = ("_native", "_waiting", "name")

    def __init__(self, context: Context, key: int, name: str | None) -> None:
        super().__init__(0, "push_pull", -1, key, context)
        self.name = name
        # Held by the thread that waits in the native library; other threads wait for it.
        self._waiting = threading.Lock()
        self._native: _core.Completion | None = None

    @property
    def key(self) -> int:
        """Key of the tensor."""
        return self._tag

    def done(self) -> bool:
        """Whether it completed or failed."""
        return self._native is not None or super().done()

    def wait(self, timeout: float | None = None) -> PushPullResult:  # type: ignore[override]
        """Block until it completes; other Python threads run meanwhile.

        Raises the TransferError of a failed push-pull, WaitTimeoutError after ``timeout`` seconds (the operation stays
        in progress).
        """
        native = self._native or self._take(timeout)
        _log_notices(self._context)
        if native is None:
            raise WaitTimeoutError(f"{self}: still in progress after {timeout:g} s (wait again or cancel it)")
        if native.failed:
            raise from_status(native.status, f"{self}: {native.error}", native.failed_peer)
        return PushPullResult(
            key=self._tag,
            name=self.name,
            bytes=native.total_bytes,
            missing_bytes=native.missing_bytes,
            repairs=native.repaired_segments,
            elapsed_ns=native.elapsed_ns,
        )

    def settle(self, native: _core.Completion) -> None:
        """Record the completion; called by the thread that took it."""
        self._native = native
        super().settle(native)

    @property
    def is_told(self) -> bool:
        """Whether every taken completion is passed to ``settle``, so that callbacks may be added at any time."""
        return True

    def taken(self) -> _core.Completion | None:
        """The completion that ``settle`` recorded, or None."""
        return self._native

    def _take(self, timeout: float | None) -> _core.Completion | None:
        if self._watch is not None:
            return self._watch.wait(self, timeout)
        Callbacks.refuse_to_wait(self)
        start = time.monotonic()
        if not self._waiting.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            return self._native
        try:
            if self._native is not None:
                return self._native
            left = None if timeout is None else max(timeout - (time.monotonic() - start), 0)
            try:
                native = self._context.engine.wait(self._id, -1 if left is None else round(left * 1e9), self.on_quiet)
            except UnknownOperationError:
                # Taken on another thread: ``poll_cq`` is about to settle it, or the callback thread has it.
                while self._native is None and self._watch is None and time.monotonic() - start < SETTLE_SECONDS:
                    time.sleep(0)
                if self._watch is not None:
                    return self._watch.wait(self, left)
                if self._native is None:
                    raise
                return self._native
            if native is not None:
                if self._context._recorder is not None:
                    self._context._recorder.add((native,))
                self.settle(native)
            return native
        finally:
            self._waiting.release()

    def __str__(self) -> str:
        return f"push-pull of key {self._tag}" + (f" ({self.name})" if self.name else "")

    def __repr__(self) -> str:
        return str(self)


class PushPull:
    """The worker side of push-pull over all summation services of the job.

    ``max_dead_services``: services that may die while the others take over, one of which must be left (None:
    MLT_MAX_DEAD_SERVICES, else 0). ``loads``: the part of all tensors that each service sums, in any unit, one number
    for each in the order of their ranks, 0 for none (None: of the plan that MLT_PLAN names, else by the ranks' hosts:
    see ``Context.service_loads``). Both the same on every worker. See docs/summation.md. Raises ConfigError in a job
    without services, on a service's rank, or for loads or a plan that do not fit the job. Several may share one
    context, with one max_dead_services and one set of loads. Thread-safe.

    >>> workers = PushPull(rank_0), PushPull(rank_1)
    >>> gradients = np.full(2, 4, np.float32), np.full(2, 8, np.float32)
    >>> pulls = [worker.push_pull(gradients[i], key=8) for i, worker in enumerate(workers)]
    >>> [pull.wait().bytes for pull in pulls], gradients[1].tolist()
    ([8, 8], [6.0, 6.0])
    """

    def __init__(
        self, context: Context, *, max_dead_services: int | None = None, loads: Sequence[float] | None = None
    ) -> None:
        may_die = serving.max_dead_services(max_dead_services)
        if context.services == 0:
            raise ConfigError(f"rank {context.rank}: the job has no summation service; {_how_to_serve()}")
        if context.rank >= context.world_size:
            raise ConfigError(f"rank {context.rank} is a summation service; only workers push and pull")
        own_loads = context.service_loads if loads is None else context._resolve_loads(loads)
        self._context = context
        with _services_lock:
            if not context._uses_services:
                services = list(range(context.world_size, context.size))
                context.engine.use_services(services, context.world_size, may_die, own_loads)
                context._max_dead_services = may_die
                context._service_loads = own_loads
                context._uses_services = True
            elif loads is not None and own_loads != context.service_loads:
                raise ConfigError(
                    f"loads are {list(own_loads)}, and those of the context's first PushPull are "
                    f"{list(context.service_loads)}: give them there"
                )
            elif max_dead_services is not None and may_die != context._max_dead_services:
                raise ConfigError(
                    f"max_dead_services is {may_die}, and that of the context's first PushPull is "
                    f"{context._max_dead_services}: give it there, or set MLT_MAX_DEAD_SERVICES"
                )

    @property
    def context(self) -> Context:
        """The context that it uses."""
        return self._context

    @explains_types
    def push_pull(
        self,
        tensor: Any,
        *,
        key: int,
        loss_bound: float | str = 0.0,
        lossy_results: bool = False,
        layer: int = 0,
        layers: int = 1,
        average: bool = True,
        out: Any | None = None,
        name: str | None = None,
        timeout: float | None = None,
    ) -> PushPullHandle:
        """Push ``tensor`` (float32, C-contiguous, in host memory) and pull its average over the workers into ``out``.

        ``out``: a tensor of as many float32; default: in place. Do not access either until the handle is done. ``key``
        in [0, 2**40) identifies the tensor. In every iteration, all workers use the same key, number of elements and
        ``loss_bound`` for it. ``loss_bound`` in [0, 1), or text such as "10%": fraction of this worker's push that may
        be missing. Each element is divided by the number of workers whose segment arrived (``average=False``: the plain
        sum). All workers receive the same bits, unless this one has ``lossy_results``: then up to ``loss_bound`` of the
        result may be lost as well, and this worker has its own values there. ``layer`` of ``layers``: 0 is the front
        layer, which is sent first.
        ``name`` appears in error texts. Raises InvalidBufferError, ConfigError, PeerFailedError, LimitError.

        >>> gradients = np.full(4, 1, np.float32), np.full(4, 3, np.float32)
        >>> pulls = [PushPull(rank).push_pull(gradients[i], key=1) for i, rank in enumerate((rank_0, rank_1))]
        >>> [pull.wait().loss_fraction for pull in pulls]
        [0.0, 0.0]
        >>> gradients[0].tolist()
        [2.0, 2.0, 2.0, 2.0]
        """
        if not 0 <= key < MAX_KEY:
            raise ConfigError(f"key is {key}; keys are integers in [0, 2**40)")
        if layers < 1 or not 0 <= layer < layers:
            raise ConfigError(f"layer {layer} of {layers}: give 0 <= layer < layers (push-pull of key {key})")
        _log_notices(self._context)
        timeout_ns = times.limit_ns(timeout, f"timeout (push-pull of key {key})")
        handle = PushPullHandle(self._context, key, name)
        handle._id = self._context.engine.push_pull(
            tensor,
            out,
            key,
            loss_bound_of(loss_bound) if isinstance(loss_bound, str) else loss_bound,
            lossy_results,
            average,
            layer,
            layers,
            timeout_ns,
            weakref.ref(handle),
        )
        return handle


class SummationService:
    """Makes this rank, which follows the workers, a summation service until the context is closed.

    ``run`` waits for the end of the job. ``max_dead_workers``: workers that may die or leave while the sums continue
    without their share (None: MLT_MAX_DEAD_WORKERS, else 0). ``max_wait``: seconds from the first complete push of a
    round to its end without those that are missing (None: MLT_MAX_WAIT, else no limit): as loss if the push-pull's
    ``loss_bound`` allows it, else as an OperationTimeoutError that names them. Give all services the same. See
    docs/summation.md. Raises ConfigError on a worker's rank.

    >>> with mlt.Context(rank=2, world_size=2, services=1) as context:  # doctest: +SKIP
    ...     SummationService(context).run()
    """

    def __init__(self, context: Context, *, max_dead_workers: int | None = None, max_wait: float | None = None) -> None:
        options = serving.resolve(max_dead_workers, max_wait)
        if context.rank < context.world_size:
            last = context.size - 1
            raise ConfigError(
                f"rank {context.rank} is a worker; summation services are the ranks after the workers"
                + (f" ({context.world_size} to {last})" if context.services else " (this job has none: services=0)")
            )
        self._context = context
        self._options = options
        context.engine.serve(context.world_size, options.max_dead_workers, options.max_wait_ns)

    @property
    def context(self) -> Context:
        """The context that it uses."""
        return self._context

    @property
    def options(self) -> serving.ServiceOptions:
        """The arguments, or what the environment gave in their place."""
        return self._options

    def run(self, timeout: float | None = None) -> bool:
        """Block until every worker left or failed; False if ``timeout`` seconds passed first.

        Meanwhile the log (logger "mlt") names the workers that sums were made without. Raises PeerFailedError if the
        others continue without this service, because connections with it broke (docs/summation.md).
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = NOTICE_SECONDS if deadline is None else min(deadline - time.monotonic(), NOTICE_SECONDS)
            are_gone = self._context.engine.wait_workers_gone(max(round(left * 1e9), 0))
            _log_notices(self._context)
            if not are_gone and (reason := self._context.engine.take_exclusion()):
                raise PeerFailedError(reason)
            if are_gone or (deadline is not None and time.monotonic() >= deadline):
                return are_gone


def _how_to_serve() -> str:
    if is_elastic():
        return f"start one with `mlt serve` and the same {VARIABLE}, or the job with `mlt launch -s 1`"
    return (
        "on one host start it with `mlt launch -s 1`; else start a service with `mlt serve` and give every rank "
        "services=1 (MLT_SERVICES=1)"
    )


def _log_notices(context: Context) -> None:
    for text in context.engine.take_notices():
        logger.warning(text)
