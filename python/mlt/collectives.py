"""Push-pull: workers push tensors to the summation services and pull the averages back (paper appendix A; BytePS)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlt.context import Context
from mlt.errors import ClosedError, ConfigError, MltError, WaitTimeoutError, from_status

if TYPE_CHECKING:
    from mlt import _core

logger = logging.getLogger("mlt")

# How long the dispatcher stays in the native library before it looks whether it should stop.
SLICE_NS = 500_000_000
MAX_KEY = 2**40


@dataclass(frozen=True, slots=True)
class PushPullResult:
    """How a push-pull ended. ``missing_bytes`` of this worker's push did not arrive; the result itself is complete.

    ``repairs`` counts segments sent again, both ways; ``elapsed_ns`` runs from the call to the completion.
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


class PushPullHandle:
    """A push-pull under way."""

    def __init__(self, dispatcher: Dispatcher, key: int, name: str | None) -> None:
        self.key = key
        self.name = name
        self._dispatcher = dispatcher
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[PushPullHandle], object]] = []
        self._result: PushPullResult | None = None
        self._error: MltError | None = None

    def done(self) -> bool:
        """Whether it ended, well or not."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> PushPullResult:
        """Block until it ended; other Python threads run meanwhile.

        Raises the TransferError of a failed one, ClosedError if the context was closed under it, WaitTimeoutError if
        ``timeout`` seconds passed first (it goes on).
        """
        if not self._done.is_set() and self._dispatcher.is_current_thread():
            raise MltError(f"{self}: waiting for it inside a completion callback would never end; add a callback to it")
        if not self._done.wait(timeout):
            raise WaitTimeoutError(f"{self}: not done after {timeout:g} s; it goes on")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def add_done_callback(self, function: Callable[[PushPullHandle], object]) -> None:
        """Call ``function(handle)`` once when it ended: on a thread of the library that holds no lock, or at once on
        this thread if it ended before. Keep it short: it delays other callbacks. What it raises is logged."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(function)
                return
        self._call(function)

    def _finish(self, result: PushPullResult | None, error: MltError | None) -> None:
        with self._lock:
            if self._done.is_set():
                return
            self._result, self._error = result, error
            callbacks, self._callbacks = self._callbacks, []
            self._done.set()
        for function in callbacks:
            self._call(function)

    def _call(self, function: Callable[[PushPullHandle], object]) -> None:
        try:
            function(self)
        except BaseException:  # even SystemExit: it would end the thread that every other handle waits for
            logger.exception("%s: a completion callback raised", self)

    def __repr__(self) -> str:
        return f"push-pull of key {self.key}" + (f" ({self.name})" if self.name else "")


class Dispatcher:
    """The thread of a context that takes finished push-pulls from the native library and tells their handles."""

    _creation = threading.Lock()

    def __init__(self, context: Context) -> None:
        # Held while the thread runs: a context that its program dropped is then still there to be closed at exit.
        self._context = context
        self._engine = context.engine
        self._rank = context.rank
        self._lock = threading.Lock()
        self._handles: dict[int, PushPullHandle] = {}
        # Results whose caller is still on its way from the native call to ``add``.
        self._early: dict[int, _core.PushPullResult] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="mlt-push-pull", daemon=True)

    @classmethod
    def of(cls, context: Context) -> Dispatcher:
        """The dispatcher of ``context``, started when first asked for."""
        with cls._creation:
            if context._dispatcher is None:
                ranks = list(range(context.world_size, context.size))
                context.engine.use_services(ranks, context.world_size)
                context._dispatcher = cls(context)
                context._dispatcher._thread.start()
            return context._dispatcher

    def is_current_thread(self) -> bool:
        """Whether the caller runs inside a completion callback."""
        return threading.current_thread() is self._thread

    def add(self, operation: int, handle: PushPullHandle) -> None:
        """Tell ``handle`` when ``operation`` is done, which it may be already."""
        with self._lock:
            result = self._early.pop(operation, None)
            if result is None and not self._stopping:
                self._handles[operation] = handle
                return
        if result is not None:
            self._finish(handle, result)
        else:
            handle._finish(None, self._closed())

    def stop(self) -> None:
        """Deliver nothing more; called before the engine is closed, which wakes the thread."""
        with self._lock:
            self._stopping = True

    def join(self) -> None:
        """Wait for the thread's end, unless this is it (a callback closed the context)."""
        if not self.is_current_thread():
            self._thread.join()

    def _run(self) -> None:
        error: MltError = self._closed()
        try:
            while not self._stopping:
                result = self._engine.next_push_pull(SLICE_NS)
                if result is not None:
                    self._deliver(result)
        except ClosedError:
            pass
        except MltError as failure:
            error = failure
        except BaseException as failure:
            error = MltError(f"rank {self._rank}: the push-pull thread failed: {failure!r}")
            logger.exception("rank %d: the push-pull thread failed", self._rank)
        finally:
            self.stop()
            with self._lock:
                handles, self._handles = list(self._handles.values()), {}
            for handle in handles:
                handle._finish(None, error)

    def _deliver(self, result: _core.PushPullResult) -> None:
        with self._lock:
            handle = self._handles.pop(result.operation, None)
            if handle is None:
                self._early[result.operation] = result
                return
        self._finish(handle, result)

    def _finish(self, handle: PushPullHandle, native: _core.PushPullResult) -> None:
        if native.error:
            handle._finish(None, from_status(native.status, f"{handle}: {native.error}", native.failed_peer))
            return
        result = PushPullResult(
            key=native.key,
            name=handle.name,
            bytes=native.total_bytes,
            missing_bytes=native.missing_bytes,
            repairs=native.repaired_segments,
            elapsed_ns=native.elapsed_ns,
        )
        handle._finish(result, None)

    def _closed(self) -> ClosedError:
        return ClosedError(f"rank {self._rank}: the context was closed before the push-pull was done")


class PushPull:
    """A worker's side of push-pull over all summation services of the job.

    Raises ConfigError in a job without services or on a service's rank. Several may share one context. Safe to use
    from any thread.
    """

    def __init__(self, context: Context) -> None:
        if context.services == 0:
            raise ConfigError(
                f"rank {context.rank}: the job has no summation service; start one with `mlt serve` and give every "
                "rank services=1 (MLT_SERVICES=1)"
            )
        if context.rank >= context.world_size:
            raise ConfigError(f"rank {context.rank} is a summation service; only workers push and pull")
        self._context = context
        self._dispatcher = Dispatcher.of(context)

    @property
    def context(self) -> Context:
        """The context it was made for."""
        return self._context

    def push_pull(
        self,
        tensor: Any,
        *,
        key: int,
        loss_bound: float = 0.0,
        layer: int = 0,
        layers: int = 1,
        average: bool = True,
        out: Any | None = None,
        name: str | None = None,
        timeout: float | None = None,
    ) -> PushPullHandle:
        """Push ``tensor`` (float32, C-contiguous, in host memory) and pull its average over the workers into ``out``.

        ``out``: as many float32; default: in place. Both stay lent until the handle is done. ``key`` in [0, 2**40)
        names the tensor: every worker uses the same one for it in every iteration, with the same number of elements
        and the same ``loss_bound``, the fraction of its elements that this worker's push may lose, in [0, 1). Each
        element is divided by the number of workers whose segment arrived (``average=False``: the plain sum). Results
        are the same bits on every worker. ``layer`` of ``layers``: 0 is the front, which goes first. ``name`` is for
        messages. Raises InvalidBufferError, ConfigError, PeerFailedError, LimitError.
        """
        if not 0 <= key < MAX_KEY:
            raise ConfigError(f"key is {key}; keys are integers in [0, 2**40)")
        if layers < 1 or not 0 <= layer < layers:
            raise ConfigError(f"layer {layer} of {layers}: give 0 <= layer < layers (push-pull of key {key})")
        if timeout is not None and not timeout > 0:
            raise ConfigError(f"timeout is {timeout!r}; it is a time in seconds, above 0 (push-pull of key {key})")
        handle = PushPullHandle(self._dispatcher, key, name)
        operation = self._context.engine.push_pull(
            tensor,
            out=out,
            key=key,
            loss_bound=loss_bound,
            average=average,
            layer=layer,
            layers=layers,
            timeout_ns=0 if timeout is None else max(round(timeout * 1e9), 1),
        )
        self._dispatcher.add(operation, handle)
        return handle
