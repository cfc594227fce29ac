"""``Coordinator``: knows which ranks have submitted which names, and decides what all ranks do next; without I/O.

Rank 0 has one. Its inputs are the ranks' requests, its output batches of answers for each process set. A batch of
several answers is carried out as one operation. Answers leave in one order for all ranks, so ranks that are in several
process sets cannot wait for each other in a circle.

The cache: an answer without error to a request with a name of the caller's gets a number. A rank that submits the same
request again sends the number, and if all ranks do, the answer is the number too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mlt._named import elements
from mlt._named.agreement import agree
from mlt._named.requests import GLOBAL_SET, Answer, Request

UNNAMED: Final = ".unnamed."
"""Part of a name that the library made: it never comes again, so it is not cached."""
_Ready = tuple[Answer, bool]
"""An answer, and whether all ranks sent its number of the cache."""
_JOIN: Final = Request("join", "join")
_SHOWN: Final = 3
"""Names that a text lists for a rank."""


@dataclass(slots=True)
class _Entry:
    """The requests of one name so far. ``cached``: the ranks that sent the number ``cache_id`` instead."""

    since: float
    requests: dict[int, Request] = field(default_factory=dict)
    cached: set[int] = field(default_factory=set)
    cache_id: int = -1
    warned: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """Answers that the ranks of a process set carry out together; those in ``repeated`` travel as numbers."""

    ranks: tuple[int, ...]
    answers: tuple[Answer, ...]
    repeated: frozenset[int]

    @property
    def priority(self) -> int:
        """Priority of its most urgent answer."""
        return max(one.request.priority for one in self.answers)

    def to_json(self) -> list[Any]:
        return [one.cache_id if one.cache_id in self.repeated else one.to_json() for one in self.answers]


class Coordinator:
    """Not thread-safe: the controller holds a lock. ``fusion_bytes``: limit of a batch. ``capacity`` of the cache."""

    def __init__(
        self,
        size: int,
        *,
        fusion_bytes: int,
        capacity: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sets: dict[int, tuple[int, ...]] = {GLOBAL_SET: tuple(range(size))}
        self._next_set = 1
        self._fusion_bytes = fusion_bytes
        self._capacity = capacity
        self._now = now
        self._entries: dict[tuple[int, str], _Entry] = {}
        self._ready: deque[_Ready] = deque()
        self._joined: dict[int, None] = {}  # in the order of their calls
        self._known: list[dict[int, Request]] = []  # by cache number: the requests by rank
        self._answers: list[Answer] = []  # by cache number
        self._numbers: dict[tuple[int, str], int] = {}
        self._submitted: dict[int, int] = {}  # number of operations by rank
        self._waits: dict[int, Request] = {}  # by rank: its report, until it submits something
        self._warned_of: dict[int, tuple[tuple[int, str], ...]] = {}  # the waits of the last warning

    @property
    def has_ready(self) -> bool:
        """Whether ``take`` would return something."""
        return bool(self._ready)

    @property
    def is_waiting(self) -> bool:
        """Whether some rank waits for others."""
        return bool(self._entries) or bool(self._joined)

    def submit(self, rank: int, request: Request | int) -> None:
        """A rank is ready for a request, or for the one with this number of the cache."""
        self._submitted[rank] = self._submitted.get(rank, 0) + 1
        self._waits.pop(rank, None)
        if isinstance(request, int):
            cache_id, request = request, self._known[request][rank]
        else:
            cache_id = -1
        if request.kind == "join":
            self._join(rank)
            return
        entry = self._entries.get(request.key)
        if entry is None:
            entry = self._entries[request.key] = _Entry(self._now())
        entry.requests[rank] = request
        if cache_id >= 0:
            entry.cached.add(rank)
            entry.cache_id = cache_id
        self._complete(request.key, entry)

    def take(self, priority: int | None = None, *, fences: bool = True) -> list[Batch]:
        """The batches that are ready, in order; with a ``priority`` without what ``take_overtaking`` returns for it.

        ``fences=False``: only what is before the next answer that nothing may cross.
        """
        ready = list(self._ready)
        places = [place for place, (answer, _) in enumerate(ready) if _is_fence(answer)]
        end = len(ready) if fences or not places else places[0]
        first = places[-1] + 1 if places and fences else 0
        kept: list[_Ready] = []
        taken = ready[:first]
        for one in ready[first:end]:
            (kept if priority is not None and _may_overtake(one[0], priority) else taken).append(one)
        self._ready = deque(kept + ready[end:])
        return self._batches(taken)

    def take_overtaking(self, priority: int) -> list[Batch]:
        """The ready reductions of all ranks that are more urgent than ``priority``, in order."""
        ready = list(self._ready)
        end = next((place for place, (answer, _) in enumerate(ready) if _is_fence(answer)), len(ready))
        kept: list[_Ready] = []
        taken: list[_Ready] = []
        for one in ready[:end]:
            (taken if _may_overtake(one[0], priority) else kept).append(one)
        self._ready = deque(kept + ready[end:])
        return self._batches(taken)

    def _batches(self, taken: Sequence[_Ready]) -> list[Batch]:
        batches = []
        ready = deque(_by_priority(taken))
        while ready:
            answer, repeated = ready.popleft()
            answers, numbers = [answer], {answer.cache_id} if repeated else set()
            size = _bytes(answer)
            while ready and _may_fuse(answer, ready[0][0]):
                size += _bytes(ready[0][0])
                if size > self._fusion_bytes:
                    break
                other, other_repeated = ready.popleft()
                answers.append(other)
                numbers |= {other.cache_id} if other_repeated else set()
            ranks = self._ranks_of(answer)
            batches.append(Batch(ranks, tuple(answers), frozenset(numbers)))
        return batches

    def missing(self, question: Request) -> tuple[int, ...]:
        """The ranks that did not submit the request of a "missing" yet; empty if it waits for none."""
        if question.op == "join":
            return tuple(rank for rank in self._sets[GLOBAL_SET] if self._joined and rank not in self._joined)
        entry = self._entries.get(question.key)
        return () if entry is None else self._missing(question.set_id, entry)

    def overdue(self, seconds: float) -> list[str]:
        """A text for every name for which some ranks have waited this long; each name is reported once."""
        texts = []
        for (set_id, name), entry in self._entries.items():
            waited = self._now() - entry.since
            if waited < seconds or entry.warned:
                continue
            entry.warned = True
            texts.append(self._overdue_text(set_id, name, entry, waited))
        return texts

    def fail_overdue(self, seconds: float) -> None:
        """Answer every name for which some ranks have waited this long with an error."""
        for (set_id, name), entry in list(self._entries.items()):
            waited = self._now() - entry.since
            if waited >= seconds:
                self._fail((set_id, name), entry, self._overdue_text(set_id, name, entry, waited))

    def note_wait(self, rank: int, report: Request) -> None:
        """Records a rank's "waits": the operation that it waits for. It counts until the rank submits something."""
        if report.submitted == self._submitted.get(rank, 0):
            self._waits[rank] = report

    def end_standstill(self) -> str:
        """Answer everything with an error if each rank waits for something else, and none can submit more.

        If only other threads of some ranks can, the text of a warning, once; else an empty text.
        """
        is_apart = len(self._waits) == len(self._sets[GLOBAL_SET]) and all(
            self._is_pending(rank, key) for rank, report in self._waits.items() for key in report.waits
        )
        if not is_apart:
            return ""
        text = "all ranks wait for each other: " + "; ".join(map(self._place_of, sorted(self._waits)))
        threads = {rank: report.others for rank, report in sorted(self._waits.items()) if report.others}
        if threads:
            others = "; ".join(f"rank {rank}: {', '.join(names[:_SHOWN])}" for rank, names in threads.items())
            state = {rank: report.waits for rank, report in self._waits.items()}
            if state == self._warned_of:
                return ""
            self._warned_of = state
            return f"{text}; they continue only if other threads submit what is missing ({others})"
        for key, entry in list(self._entries.items()):
            self._fail(
                key, entry, f"tensor {key[1]!r}: {text}; all must call the same, with as many batches in each epoch"
            )
        self._waits.clear()
        return ""

    def _is_pending(self, rank: int, key: tuple[int, str]) -> bool:
        """Whether a rank has submitted this, and has no answer."""
        if key == _JOIN.key:
            return rank in self._joined
        entry = self._entries.get(key)
        return entry is not None and rank in entry.requests

    def _place_of(self, rank: int) -> str:
        """The operations that a rank waits for, for errors."""
        waits = self._waits[rank].waits
        names = ["join()" if key == _JOIN.key else repr(key[1]) for key in waits[:_SHOWN]]
        return f"rank {rank} in {', '.join(names)}"

    def _overdue_text(self, set_id: int, name: str, entry: _Entry, waited: float) -> str:
        missing, waiting = list(self._missing(set_id, entry)), sorted(entry.requests)
        elsewhere = "".join(f"; {self._place_of(rank)}" for rank in missing if rank in self._waits)
        return (
            f"tensor {name!r}: ranks {waiting} have waited {waited:.0f} s for ranks {missing} to submit it{elsewhere}"
        )

    def _missing(self, set_id: int, entry: _Entry) -> tuple[int, ...]:
        ranks = self._sets.get(set_id, ())
        return tuple(rank for rank in ranks if rank not in entry.requests and rank not in self._joined)

    def _ranks_of(self, answer: Answer) -> tuple[int, ...]:
        return self._sets.get(answer.request.set_id, self._sets[GLOBAL_SET])

    def _complete(self, key: tuple[int, str], entry: _Entry) -> None:
        ranks = self._sets.get(key[0])
        if ranks is None:
            self._fail(key, entry, f"tensor {key[1]!r}: process set {key[0]} was removed")
            return
        if any(rank not in entry.requests and rank not in self._joined for rank in ranks):
            return
        del self._entries[key]
        # All ranks sent the number, and none has joined since: the answer is known.
        if len(entry.cached) == len(ranks):
            self._ready.append((self._answers[entry.cache_id], True))
            return
        answer = agree(entry.requests, ranks, frozenset(self._joined))
        if not answer.error:
            answer = self._carry_out(answer)
        if not answer.error and len(entry.requests) == len(ranks):
            answer = self._remember(answer, entry.requests)
        self._ready.append((answer, False))

    def _carry_out(self, answer: Answer) -> Answer:
        """The part of an answer that is the coordinator's: process sets."""
        request = answer.request
        if request.kind == "add_set":
            ranks = tuple(sorted(set(request.ranks)))
            if not ranks or ranks[-1] >= len(self._sets[GLOBAL_SET]) or ranks[0] < 0:
                return replace(answer, error=f"process set {list(request.ranks)}: give ranks of this job")
            if ranks in self._sets.values():
                return replace(answer, error=f"a process set of ranks {list(ranks)} exists already")
            self._sets[self._next_set] = ranks
            self._next_set += 1
            return replace(answer, number=self._next_set - 1)
        if request.kind == "remove_set":
            if request.root not in self._sets or request.root == GLOBAL_SET:
                return replace(answer, error=f"process set {request.root} does not exist, or is that of all ranks")
            del self._sets[request.root]
            for key, entry in list(self._entries.items()):
                if key[0] == request.root:
                    self._fail(key, entry, f"tensor {key[1]!r}: process set {request.root} was removed")
        return answer

    def _remember(self, answer: Answer, requests: dict[int, Request]) -> Answer:
        """Give the answer a number, or the one that its name had."""
        request = answer.request
        if request.kind in ("add_set", "remove_set") or UNNAMED in request.name:
            return answer
        number = self._numbers.get(request.key)
        if number is None:
            if len(self._answers) >= self._capacity:
                return answer
            number = self._numbers[request.key] = len(self._answers)
            self._answers.append(answer)
            self._known.append({})
        answer = self._answers[number] = answer.cached_as(number)
        self._known[number] = dict(requests)
        return answer

    def _fail(self, key: tuple[int, str], entry: _Entry, text: str) -> None:
        self._entries.pop(key, None)
        # The set may be gone: all ranks get the answer, and those that have no such request ignore it.
        self._ready.append((Answer(next(iter(entry.requests.values())), error=text), False))

    def _join(self, rank: int) -> None:
        self._joined[rank] = None
        for key, entry in list(self._entries.items()):
            self._complete(key, entry)
        if len(self._joined) == len(self._sets[GLOBAL_SET]):
            last = next(reversed(self._joined))
            self._joined.clear()
            self._ready.append((Answer(_JOIN, number=last), False))


def _bytes(answer: Answer) -> int:
    return sum(elements.item_bytes(dtype) * elements.elements(shape) for dtype, shape in answer.request.tensors)


def _is_fence(answer: Answer) -> bool:
    """Whether no other answer may cross this one: it changes what they mean, or who contributes to them."""
    return answer.request.kind in ("join", "add_set", "remove_set")


def _by_priority(answers: Sequence[_Ready]) -> list[_Ready]:
    """The same answers, between two fences the most urgent ones first."""
    result: list[_Ready] = []
    part: list[_Ready] = []
    for one in answers:
        if _is_fence(one[0]):
            result += [*sorted(part, key=lambda other: -other[0].request.priority), one]
            part = []
        else:
            part.append(one)
    return result + sorted(part, key=lambda other: -other[0].request.priority)


def _may_overtake(answer: Answer, priority: int) -> bool:
    """Whether an answer may be carried out before others that were sent earlier: the order of operations that change
    what later ones mean, such as those of process sets, stays."""
    request = answer.request
    return (
        request.priority > priority
        and request.kind == "allreduce"
        and request.op != "adasum"
        and request.set_id == GLOBAL_SET
        and not answer.error
    )


def _may_fuse(one: Answer, other: Answer) -> bool:
    first, second = one.request, other.request
    return (
        first.kind == second.kind == "allreduce"
        and not one.error
        and not other.error
        and first.op == second.op != "adasum"
        and (first.set_id, first.prescale, first.postscale, first.bound, first.layer, first.layers)
        == (second.set_id, second.prescale, second.postscale, second.bound, second.layer, second.layers)
    )
