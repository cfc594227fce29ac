"""``Controller``: one rank's part of the collectives by name.

Threads: the caller submits, which sends a message to rank 0 (or asks the coordinator, on rank 0) and returns. A thread
of the controller carries out the answers in order; it sleeps until one arrives. A second one does so with reductions
that overtake those of the first, because they are more urgent. On rank 0 the context's callback thread passes the other
ranks' requests to the coordinator.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mlt._named.channel import OVERTAKING_TAG, TAG, Inbox, Outbox, RequestQueue
from mlt._named.coordinator import UNNAMED
from mlt._named.execution import Execution, Tensors
from mlt._named.leader import ORDERED, OVERTAKING, Leader, Settings
from mlt._named.requests import GLOBAL_SET, Answer, Kind, Request
from mlt._named.timeline import Timeline
from mlt._named.waiting import WaitingThreads
from mlt.errors import MltError

if TYPE_CHECKING:
    from mlt.context import Context, WaitWatch
    from mlt.operation import Completion, Operation

logger = logging.getLogger("mlt")

_END_SECONDS: Final = 10.0
# Time between reports of a wait to rank 0, after the line in the log.
_REPORT_SECONDS: Final = 5.0
# Part of the time until a wait logs its line, after which rank 0 is asked for the cause.
_ASK_AFTER: Final = 0.8


class HorovodInternalError(RuntimeError):
    """An operation failed. The name is the one that Horovod's scripts catch, in every framework."""


class RejectedError(HorovodInternalError, ValueError):
    """The requests of a name do not agree, or cannot be carried out: an error on every rank, after which the next
    operation works."""


class EndedError(HorovodInternalError):
    """The job has ended: a rank shut down or failed. Every operation fails until the controller is made anew."""


class Handle:
    """One submitted request. ``answer`` is set once it has completed without error.

    ``completions``: of the transport's operations that carried it out; of requests that were carried out together, the
    first has all.
    ``missing``: the ranks that had not submitted it when rank 0 was asked last; None: not known.
    """

    def __init__(self, request: Request, tensors: Tensors | None, controller: Controller) -> None:
        self.request = request
        self.tensors = tensors
        self.missing: tuple[int, ...] | None = None
        self._controller = controller
        self.answer: Answer | None = None
        self.completions: tuple[Completion, ...] = ()
        self.submitted = time.monotonic()
        self._error: Exception | None = None
        self._ended = threading.Event()

    def done(self) -> bool:
        """Whether it completed or failed."""
        return self._ended.is_set()

    def wait(self) -> Answer:
        """Block until it has completed. Raises HorovodInternalError."""
        if not self._ended.is_set():
            with self._controller.threads.waiting(self.request.key):
                if (watch := self._controller.watch(self)) is not None:
                    self._watch(watch)
                while not self._ended.wait(_REPORT_SECONDS):
                    self._controller.report_wait()
        if self._error is not None:
            raise self._error
        assert self.answer is not None
        return self.answer

    def _watch(self, watch: WaitWatch) -> None:
        """Log once which ranks did not submit the request, after asking rank 0 in time for its reply."""
        if self._ended.wait(watch.left * _ASK_AFTER):
            return
        self._controller.ask_missing(self)
        if self._ended.wait(watch.left):
            return
        if self.missing is None:
            watch.look("the other ranks are connected, but did not all submit it yet, or the network is slow")
        elif self.missing:
            ranks = ("rank " if len(self.missing) == 1 else "ranks ") + ", ".join(map(str, self.missing))
            watch.look(f"{ranks} did not submit it yet")
        else:
            watch.look("all ranks have submitted it; earlier operations are in progress, or the network is slow")

    def end(
        self, answer: Answer | None, error: Exception | None = None, completions: tuple[Completion, ...] = ()
    ) -> None:
        """Set the outcome; called once."""
        self.answer = answer
        self.completions = completions
        self._error = error
        self.tensors = None
        self._ended.set()


class Controller:
    """Safe to use from any thread. ``context``: of all ranks, used by the controller alone; None for a single rank."""

    def __init__(self, context: Context | None, settings: Settings | None = None) -> None:
        self._context = context
        self._settings = settings or Settings()
        self.rank = 0 if context is None else context.rank
        self.size = 1 if context is None else context.world_size
        self.threads = WaitingThreads()
        self._sets: dict[int, tuple[int, ...]] = {GLOBAL_SET: tuple(range(self.size))}
        self._lock = threading.Lock()  # of what submitters and the thread share
        self._pending: dict[tuple[int, str], Handle] = {}
        self._counters: dict[str, int] = {}
        self.agreed: set[Request] = set()
        """Comparisons that all ranks have passed since the job started, or since all had joined."""
        self._submitted = 0
        self.pushed_bytes = 0
        """Size of the tensors that this rank has submitted for reductions and broadcasts."""
        self._numbers: dict[tuple[int, str], tuple[int, Request]] = {}  # cache number and request, by name
        self._answers: dict[int, Answer] = {}
        self._ended: str | None = None
        self._closing = False
        self._timeline: Timeline | None = None
        self._execution = Execution(context, self.rank)
        self._requests = RequestQueue(self._post_requests)
        self._to_coordinator: Outbox | None = None
        self._leader: Leader | None = None
        if self.rank == 0:
            self._leader = Leader(context, self.size, self._settings)
        elif context is not None:
            self._to_coordinator = Outbox(context, 0)
        self._thread = threading.Thread(target=self._run, name="mlt-named", daemon=True)
        self._overtaking = threading.Thread(target=self._run_overtaking, name="mlt-named-overtaking", daemon=True)
        self._overtaking.start()
        self._thread.start()

    def ranks(self, set_id: int) -> tuple[int, ...] | None:
        """Ranks of a process set, in order; None if it does not exist."""
        return self._sets.get(set_id)

    @property
    def context(self) -> Context | None:
        """The context of all ranks, whose operations without a tag and tags from ``channel.TAG`` on are mlt's own."""
        return self._context

    @property
    def sets(self) -> dict[int, tuple[int, ...]]:
        """Ranks by process set."""
        return dict(self._sets)

    def name(self, kind: Kind, set_id: int) -> str:
        """A name for an operation without one: the same on all ranks that call the same operations in the same order.

        Join starts the count again, because a rank that joined called fewer.
        """
        with self._lock:
            counter = f"{kind}.{set_id}"
            self._counters[counter] = number = self._counters.get(counter, -1) + 1
        return f"{kind}{UNNAMED}{number}"

    def submit(self, request: Request, tensors: Tensors | None = None) -> Handle:
        """Start an operation.

        Raises ValueError if this rank is not in the process set, or if an operation of this name is in progress on this
        rank; EndedError after the end of the job.
        """
        ranks = self._sets.get(request.set_id)
        if ranks is None or self.rank not in ranks:
            raise ValueError(
                f"tensor {request.name!r}: rank {self.rank} is not in process set {request.set_id}"
                + (f" of ranks {list(ranks)}" if ranks else ", which does not exist")
            )
        handle = Handle(request, tensors, self)
        with self._lock:
            if self._ended is not None:
                raise EndedError(self._ended)
            if request.key in self._pending:
                raise ValueError(
                    f"tensor {request.name!r}: an operation of this name is in progress on rank {self.rank}; wait for "
                    "it, or give this one another name"
                )
            self._pending[request.key] = handle
            self._submitted += 1
            if request.kind in ("allreduce", "broadcast"):
                self.pushed_bytes += request.bytes
            number, known = self._numbers.get(request.key, (-1, None))
        self._requests.add(number if known == request else request)
        return handle

    def watch(self, handle: Handle) -> WaitWatch | None:
        """The watch of a wait for ``handle``; None without other ranks."""
        request = handle.request
        if self._context is None:
            return None
        others = [rank for rank in self._sets.get(request.set_id, ()) if rank != self.rank]
        what = f"{request.kind} of {request.name!r}" if request.kind != "join" else "join"
        return self._context.watch_wait(what, others)

    def ask_missing(self, handle: Handle) -> None:
        """Find out which ranks did not submit a request yet; ``handle.missing`` is set at once on rank 0, later on
        others."""
        request = handle.request
        question = Request("missing", request.name, set_id=request.set_id, op=request.kind)
        if self._leader is not None:
            handle.missing = self._leader.missing(question)
        else:
            self._requests.add(question)

    def report_wait(self) -> None:
        """Inform rank 0 for what this rank waits: if all ranks do for something else, that is the end."""
        with self._lock:
            submitted = (
                self._submitted
            )  # before the threads: one that has ended its wait meanwhile makes the report void
        waits, others = self.threads.state()
        self._requests.add(Request("waits", "", waits=waits, others=others, submitted=submitted))

    def add_set(self, ranks: Sequence[int]) -> int:
        """Number of a new process set; all ranks call it. Raises HorovodInternalError."""
        wanted = tuple(ranks)
        name = f"process set {sorted(wanted)}"
        return self.submit(Request("add_set", name, ranks=wanted)).wait().number

    def remove_set(self, set_id: int) -> None:
        """Remove a process set; all ranks call it. Raises HorovodInternalError."""
        self.submit(Request("remove_set", f"removal of process set {set_id}", root=set_id)).wait()

    def join(self) -> int:
        """Contribute nothing to further operations until all ranks have joined; the last rank that did."""
        return self.submit(Request("join", "join")).wait().number

    def set_timeline(self, timeline: Timeline | None) -> None:
        """Record operations in a file from now on, in place of an earlier one, which is closed; None: in none."""
        before, self._timeline = self._timeline, timeline
        if before is not None:
            before.close()

    def close(self, reason: str = "") -> None:
        """End the job on all ranks: their operations in progress fail. Idempotent."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            ended = self._ended is not None
        if not ended:
            self._requests.add(f"rank {self.rank} {reason or 'shut down'}")
            self._thread.join(_END_SECONDS + 1.0)
        if self._context is not None:
            self._context.close()
        self._overtaking.join()
        self._thread.join()
        self.set_timeline(None)

    def _post_requests(self, requests: list[Request | int | str]) -> Operation | None:
        """Pass requests to the coordinator; a text ends the job."""
        if self._leader is not None:
            self._leader.submit(0, requests)
        elif self._to_coordinator is not None:
            try:
                return self._to_coordinator.send(
                    [one.to_json() if isinstance(one, Request) else one for one in requests]
                )
            except MltError as error:
                self._end(str(error))
        return None

    def _run(self) -> None:
        try:
            text = self._carry_out_lane(ORDERED)
            self._overtaking.join(_END_SECONDS)  # it ends with the same text
        except Exception as error:
            self._fail(error)
            return
        self._end(text)
        self._meet()

    def _run_overtaking(self) -> None:
        try:
            self._carry_out_lane(OVERTAKING)
        except Exception as error:
            self._fail(error)

    def _carry_out_lane(self, lane: int) -> str:
        """Carry out the messages of a lane, one after the other, until the end of the job; its text."""
        leader = self._leader
        receive = self._inbox(lane).receive if leader is None else partial(leader.next_message, lane)
        while True:
            message = receive()
            if isinstance(message, dict):
                self._note_missing(message)
                continue
            if not isinstance(message, list):
                return str(message)
            self._carry_out([[self._known(one) for one in batch] for batch in message], lane)
            if leader is not None:
                leader.carried_out(lane)

    def _fail(self, error: Exception) -> None:
        """End the job: this rank cannot carry out an answer."""
        if isinstance(error, EndedError):
            return  # the other lane has ended it
        text = str(error)
        if not isinstance(error, MltError):
            logger.exception("rank %d: an operation by name failed", self.rank)
        self._end(text)
        # The others must not wait for this rank.
        if self._leader is not None:
            self._leader.end(text)
        else:
            self._requests.add(f"rank {self.rank}: {text}")

    def _note_missing(self, reply: dict[str, Any]) -> None:
        set_id, name = reply["key"]
        with self._lock:
            handle = self._pending.get((set_id, name))
        if handle is not None:
            handle.missing = tuple(reply["missing"])

    def _inbox(self, lane: int) -> Inbox:
        assert self._context is not None  # rank 0 alone may have none
        return Inbox(self._context, 0, OVERTAKING_TAG if lane == OVERTAKING else TAG)

    def _known(self, answer: Any) -> Answer:
        """The answer in a message: a number of the cache, or the fields."""
        if isinstance(answer, int):
            return self._answers[answer]
        known = answer if isinstance(answer, Answer) else Answer.from_json(answer)
        if known.cache_id >= 0:
            self._answers[known.cache_id] = known
        return known

    def _carry_out(self, batches: list[list[Answer]], lane: int) -> None:
        """Start all batches, then wait for them in order."""
        if self._timeline is not None:
            self._timeline.message()
        started = []
        now = time.monotonic()
        for answers in batches:
            first = answers[0]
            with self._lock:
                # No tensors are left: this rank would take part as one that has joined, and the others get wrong sums.
                if self._ended is not None:
                    raise EndedError(self._ended)
                handles = [self._pending.get(one.request.key) for one in answers]
                tensors = [None if handle is None else handle.tensors for handle in handles]
            if first.error:
                self._finish(answers, handles, RejectedError(first.error))
                continue
            ranks = self._sets[first.request.set_id]
            one = self._execution.start(answers, tensors, ranks, overtakes=lane == OVERTAKING)
            started.append((answers, handles, one))
        for answers, handles, one in started:
            completions = one.end()
            self._apply(answers[0])
            self._record(handles, now)
            self._finish(answers, handles, None, completions)

    def _record(self, handles: list[Handle | None], started: float) -> None:
        timeline = self._timeline
        if timeline is not None:
            for handle in handles:
                if handle is not None:
                    request = handle.request
                    timeline.record(request.name, request.kind, handle.submitted, started, time.monotonic())

    def _apply(self, answer: Answer) -> None:
        """Applies the changes of an answer on this rank."""
        request = answer.request
        if request.kind == "add_set":
            self._sets[answer.number] = tuple(sorted(set(request.ranks)))
        elif request.kind == "remove_set":
            self._sets.pop(request.root, None)
        elif request.kind == "join":
            with self._lock:
                self._counters.clear()
                self.agreed.clear()

    def _finish(
        self,
        answers: list[Answer],
        handles: list[Handle | None],
        error: HorovodInternalError | None,
        completions: tuple[Completion, ...] = (),
    ) -> None:
        for answer, handle in zip(answers, handles, strict=True):
            if handle is None:
                continue
            with self._lock:
                self._pending.pop(answer.request.key, None)
                if answer.cache_id >= 0:
                    self._numbers[answer.request.key] = answer.cache_id, handle.request
            handle.end(answer, error, completions)
            completions = ()

    def _end(self, text: str) -> None:
        """Fail everything in progress, and what comes."""
        with self._lock:
            if self._ended is not None:
                return
            self._ended = f"rank {self.rank}: the job has ended: {text}; shut down, then initialize again"
            handles, self._pending = list(self._pending.values()), {}
        for handle in handles:
            handle.end(None, EndedError(self._ended))

    def _meet(self) -> None:
        """Let no rank leave before all know the end, and have what it sent."""
        if self._context is None:
            return
        try:
            self._context.barrier(timeout=_END_SECONDS)
        except MltError as error:
            logger.debug("rank %d: the job ended without a last barrier: %s", self.rank, error)
