"""Coordinates the ranks of a run: transports take turns at every size, so that all have the same host and network
conditions.

A case is verified once, then timed in several turns; in each, every transport runs its share of the rounds, and the
first transport rotates from turn to turn. Only agents measure; none of this is inside a timed part.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mlt._shared.link import Message
from mlt._shared.patience import Patience
from mlt.job.rendezvous import ranks_text
from mlt.perf.agents import Agents, Event, Events
from mlt.perf.options import AUTOMATIC, OURS, START_SECONDS, Options
from mlt.perf.patterns import Case, as_message, cases_of
from mlt.perf.problem import PerfError, TransportMissingError
from mlt.perf.transports import transport_class

# Seconds to wait for the cause after the first report of a failure: the rank that died is not always reported first.
CULPRIT_SECONDS = 1.0

Observe = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Entrant:
    """One transport with one setting, at one size."""

    id: int
    transport: str
    case: Case
    label: str


@dataclass
class Measurement:
    """Measurements of one entrant. ``seconds``: rank 0's, one per round. CPU seconds and counters are sums over all
    ranks.

    ``arrived``: bytes of each round, of a transport without delivery guarantees; empty for all others.
    """

    transport: str
    label: str
    case: Case
    seconds: list[float] = field(default_factory=list)
    elapsed_seconds: float = 0.0
    cpu_seconds: float = 0.0
    missing_bytes: int = 0
    verified_missing: float = 0.0
    arrived: list[int] = field(default_factory=list)
    retransmitted: int = 0
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def packets_sent(self) -> int:
        return self.counters.get("data_packets_sent", 0)

    @property
    def packets_lost(self) -> int:
        """Packets sent by one rank and received by none."""
        return max(0, self.packets_sent - self.counters.get("data_packets_received", 0))


@dataclass(frozen=True)
class Skipped:
    """A transport that was left out, and why."""

    transport: str
    why: str


class Conductor:
    """One run over ``all_agents``; used once, by one thread."""

    def __init__(self, options: Options, all_agents: Sequence[Agents], events: Events, observe: Observe) -> None:
        self._options = options
        self._agents = {rank: agents for agents in all_agents for rank in agents.ranks}
        self._all = list(all_agents)
        self._events = events
        self._observe = observe
        self._networks: dict[int, str] = {}
        self.skipped: list[Skipped] = []

    def run(self) -> list[Measurement]:
        """All measurements that the options request. Raises PerfError; the owner of the agents ends them."""
        transports = self._start()
        for transport in transports:
            self._open(transport)
        found: list[Measurement] = []
        rounds = sum(self._options.rounds_of(size) for size in self._options.sizes)
        total, done = rounds * len(self._entrants(transports, self._options.sizes[0])), 0
        for size in self._options.sizes:
            entrants = self._entrants(transports, size)
            measurements = {
                entrant.id: Measurement(entrant.transport, entrant.label, entrant.case) for entrant in entrants
            }
            usual: dict[int, float] = {}
            for entrant in entrants:
                is_first = entrant.transport not in {other.transport for other in entrants[: entrant.id]}
                usual[entrant.id] = self._prepare(entrant, measurements[entrant.id], is_first)
            for entrant, count in self._turns(entrants, self._options.rounds_of(size)):
                self._observe(done, total, f"{entrant.label}, {size} bytes")
                self._turn(entrant, count, measurements[entrant.id], usual[entrant.id])
                done += count
            found += measurements.values()
        self._observe(total, total, "done")
        for transport in transports:
            self._tell(transport, {"do": "close"})
            self._expect(transport, "close", START_SECONDS)
        return found

    def _entrants(self, transports: Sequence[str], size: int) -> list[Entrant]:
        options = self._options
        found: list[Entrant] = []
        for transport in transports:
            bounded = transport_class(transport).is_bounded
            for case in cases_of(options, size, is_bounded=bounded):
                label = f"{transport} p={case.loss_bound:g}" if bounded else transport
                if case.algorithm != AUTOMATIC:
                    label += f" {case.algorithm}"
                found.append(Entrant(len(found), transport, case, label))
        return found

    def _turns(self, entrants: Sequence[Entrant], rounds: int) -> Iterator[tuple[Entrant, int]]:
        turns = min(self._options.turns, rounds)
        for turn in range(turns):
            count = rounds * (turn + 1) // turns - rounds * turn // turns
            first = turn % len(entrants)
            for entrant in [*entrants[first:], *entrants[:first]]:
                yield entrant, count

    # Messages to and from agents

    def _start(self) -> list[str]:
        """Start all transports at once; returns those that can take part, mlt first."""
        candidates = [OURS]
        for transport in self._options.transports:
            kind = transport_class(transport)
            if self._options.pattern not in kind.patterns:
                self._skip(transport, f"{transport} does not know the pattern {self._options.pattern}")
            elif self._options.ranks > kind.max_ranks:
                self._skip(transport, f"{transport} is for {kind.max_ranks} ranks, not {self._options.ranks}")
            else:
                candidates.append(transport)
        for transport in candidates:
            for agents in self._all:
                agents.start(transport)
        return [transport for transport in candidates if self._is_ready(transport)]

    def _is_ready(self, transport: str) -> bool:
        answers = self._expect(transport, "ready", START_SECONDS, or_missing=True)
        missing = [answer["text"] for answer in answers.values() if answer["kind"] == "missing"]
        if missing:
            self._skip(transport, str(missing[0]))
        return not missing

    def _skip(self, transport: str, why: str) -> None:
        if not self._options.is_optional(transport):
            raise TransportMissingError(f"{transport} cannot be compared with: {why}")
        self.skipped.append(Skipped(transport, why))

    def _open(self, transport: str) -> None:
        self._tell(transport, {"do": "announce"})
        announced = self._expect(transport, "announce", START_SECONDS)
        self._networks = {rank: str(answer["network"]) for rank, answer in announced.items()}
        table = [[announced[rank]["host"], announced[rank]["port"]] for rank in sorted(announced)]
        self._tell(transport, {"do": "open", "table": table})
        self._expect(transport, "open", max(START_SECONDS, self._options.timeout))

    def _prepare(self, entrant: Entrant, measurement: Measurement, is_first: bool) -> float:
        """Allocate its buffers, dropping those of another size, and verify one round; returns the seconds this took."""
        self._tell(entrant.transport, {"do": "case", "id": entrant.id, "first": is_first, **as_message(entrant.case)})
        self._expect(entrant.transport, "case", self._options.timeout)
        began = time.monotonic()
        self._tell(entrant.transport, {"do": "verify", "id": entrant.id})
        answers = self._expect(entrant.transport, "verify", self._options.timeout)
        measurement.verified_missing = max(float(answer["missing"]) for answer in answers.values())
        return time.monotonic() - began

    def _turn(self, entrant: Entrant, rounds: int, measurement: Measurement, usual: float) -> None:
        self._tell(entrant.transport, {"do": "turn", "id": entrant.id, "rounds": rounds})
        pace = entrant.case.port_bytes * 8 / self._options.rate if self._options.rate is not None else 0.0
        # Agents time out by themselves if a round hangs; this covers agents that cannot even do that.
        patience = self._options.timeout + 10 * rounds * max(usual, pace)
        answers = self._expect(entrant.transport, "turn", patience)
        measurement.seconds += answers[0]["seconds"]
        measurement.elapsed_seconds += answers[0]["elapsed"]
        measurement.arrived += answers[0]["arrived"]
        again: dict[str, int] = {}
        for rank, answer in answers.items():
            measurement.cpu_seconds += answer["cpu"]
            measurement.missing_bytes += answer["missing"]
            again[self._networks[rank]] = max(again.get(self._networks[rank], 0), answer["retransmitted"])
            for name, value in answer["counters"].items():
                measurement.counters[name] = measurement.counters.get(name, 0) + value
        measurement.retransmitted += sum(again.values())

    def _tell(self, transport: str, message: Message) -> None:
        for rank, agents in self._agents.items():
            agents.send(rank, transport, message)

    def _expect(self, transport: str, kind: str, seconds: float, *, or_missing: bool = False) -> dict[int, Message]:
        """One reply of every rank. Start-up messages of other transports are kept for their turn."""
        deadline, patience = time.monotonic() + seconds, Patience()
        answers: dict[int, Message] = {}
        kept: list[Event] = []

        def silent() -> list[int]:
            return [rank for rank in sorted(self._agents) if rank not in answers]

        def waiting_text() -> str:
            return f"still waiting for {transport} of {ranks_text(silent())} ({kind}; times out after {seconds:.0f} s)"

        while len(answers) < len(self._agents):
            left = max(deadline - time.monotonic(), 0.0)
            if kind != "turn":  # that measures
                patience.ask(waiting_text)
                left = min(left, max(patience.left, 0.01))
            try:
                event = self._events.get(timeout=left)
            except queue.Empty:
                if time.monotonic() < deadline:
                    continue
                raise PerfError(
                    f"{transport}: rank {', '.join(map(str, silent()))} did not reply within {seconds:.0f} s ({kind}); "
                    "check the network and firewalls, or raise --timeout"
                ) from None
            found = event.message.get("kind")
            if found in ("error", "died"):
                raise self._failure(event)
            if event.transport != transport:
                kept.append(event)
            elif found == "missing" and or_missing:
                answers = dict.fromkeys(self._agents, event.message)
            elif found == kind:
                answers[event.rank] = event.message
        for event in kept:
            self._events.put(event)
        return answers

    def _failure(self, first: Event) -> PerfError:
        """The error to report: the rank that was killed or lost before the ranks that noticed it."""
        events = [first]
        deadline = time.monotonic() + CULPRIT_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            try:
                events.append(self._events.get(timeout=left))
            except queue.Empty:
                break
        signs = [event for event in events if event.message.get("kind") in ("error", "died")]
        culprit = min(signs, key=_weight)
        name = (
            f"{culprit.transport}: "
            if culprit.transport and not culprit.message["text"].startswith(culprit.transport)
            else ""
        )
        return PerfError(f"{name}{culprit.message['text']}", peer=culprit.rank)


def _weight(event: Event) -> int:
    if event.message["kind"] == "died":
        return 0 if event.message["signal"] else 2
    return 1
