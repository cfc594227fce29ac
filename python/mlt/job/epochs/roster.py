"""``Roster``: the members of an elastic job, and when their next epoch begins. No I/O, no clock: ``now`` is given.

    join, was         a member connects; it says which epoch it is in, if it is in one
    ready             it is in no epoch (any more), and asks for the next
    here              it listens at an address, for the epoch that it was given
    left, lost        it ends by intent; its connection broke

An epoch is *forming* from the assignment of ranks until all its members have the table of addresses, then *running*. It
is *due* when a member has left or another one is ready. The next one forms once every member of the running one is
ready, or is gone. The oldest members come first, so those who stay keep their order. ``take`` has the messages to send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from mlt._shared.counts import count_of
from mlt.job.epochs.messages import Announced, Hello
from mlt.job.epochs.settings import Bounds, Kind
from mlt.options.limits import MAX_RANKS

# For the members of a forming epoch to say where they listen.
FORM_SECONDS: Final = 20.0
SHOWN: Final = 4
_SERVICES_OPTIONS: Final = "--min-services of mlt elastic, --services of mlt launch"


class RefusedError(Exception):
    """A process cannot be a member; the text says why, and what to do. ``code``: of ``mlt.errors.ErrorCode``."""

    def __init__(self, text: str, code: str = "rendezvous") -> None:
        super().__init__(text)
        self.code = code


@dataclass
class Member:
    """``age``: the lower, the older. ``is_new``: it has its age from this coordinator, which does not know yet whether
    there are older members. ``is_connected``: false for one that an earlier coordinator knew, until ``until``.
    ``is_ready``: it asks for the next epoch. ``announced``: where it listens, for the epoch that forms."""

    id: str
    kind: Kind
    name: str
    age: int
    is_new: bool = False
    is_connected: bool = True
    until: float = 0.0
    is_ready: bool = False
    announced: Announced | None = None

    def __str__(self) -> str:
        return f"the {self.kind} {self.name}"


@dataclass
class Epoch:
    """Members in rank order, workers first."""

    number: int
    workers: tuple[str, ...]
    services: tuple[str, ...]
    is_forming: bool
    form_by: float = 0.0
    due: str = ""
    knows_loss: bool = False  # its members were told not to wait for each other
    asked_at: float | None = None  # when the first of its members asked for the next one
    is_adopted: bool = False  # begun by an earlier coordinator
    over_at: float | None = None  # since when it has no worker any more

    @property
    def members(self) -> tuple[str, ...]:
        return self.workers + self.services


class Roster:
    """Call ``turn`` after every event, at the time that it returned, and again while ``take`` has messages."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.number = 0
        self.epoch: Epoch | None = None
        self.members: dict[str, Member] = {}
        self._messages: deque[tuple[str, dict[str, Any]]] = deque()
        self._is_first = True
        self._changed_at = 0.0  # when the last member joined
        self._short_since: float | None = None
        self._have_ended = False  # the last worker that went has left by intent
        self._returning: set[str] = set()  # members of an epoch that did not form, which will ask again
        self._return_by: float | None = None

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """Messages to send, each with its member's id. A member that gets "refused" or "end" is no member any more."""
        messages = list(self._messages)
        self._messages.clear()
        return messages

    def expect(self, workers: int, services: int) -> None:
        """Await no more than these for the first epoch: a process of the launcher has failed before it joined."""
        at_least = self.bounds.min_workers
        self.bounds = replace(
            self.bounds, first_workers=max(workers, at_least), first_services=max(services, self.bounds.min_services)
        )

    def join(self, now: float, hello: Hello, job: str) -> None:
        """A member connects, perhaps again. Raises RefusedError."""
        if hello.job != job:
            raise RefusedError(f"it belongs to job {hello.job!r}, this is job {job!r} (set MLT_JOB)", "peer_mismatch")
        known = self.members.get(hello.member)
        if known is not None:
            known.is_connected = True
            known.is_ready = False  # it asks again, if it does
            self._send(hello.member, {"welcome": known.age})
            return
        same = [one for one in self.members.values() if one.kind == hello.kind]
        if hello.kind == "worker" and len(same) >= self.bounds.max_workers:
            raise RefusedError(
                f"the job has {count_of(len(same), 'worker')} already, {self.bounds.max_workers} at most: end one "
                "first, or raise --max-workers"
            )
        if len(self.members) >= MAX_RANKS:
            raise RefusedError(f"the job has {MAX_RANKS} members, which is the most")
        youngest = max((one.age for one in self.members.values()), default=-1)
        age = youngest + 1 if hello.age is None else hello.age
        is_new = hello.age is None and self._is_first
        self.members[hello.member] = Member(hello.member, hello.kind, hello.name, age, is_new)
        self.number = max(self.number, hello.epoch)  # an earlier coordinator counted to there
        self._changed_at = now
        self._have_ended = False
        self._send(hello.member, {"welcome": age})

    def was(self, now: float, member: str, number: int, workers: tuple[str, ...], services: tuple[str, ...]) -> None:
        """A member is in a running epoch: this coordinator was started again if it does not know that one.

        It is not taken over if members know a later one, or this coordinator has brought one to run.
        """
        epoch = self.epoch
        is_free = self._is_first if epoch is None else epoch.is_forming or epoch.is_adopted
        if is_free and number >= self.number and (epoch is None or number > epoch.number):
            self._adopt(now, Epoch(number, workers, services, is_forming=False, is_adopted=True))
        self.number = max(self.number, number)
        if self.epoch is None or self.epoch.number != number or self.epoch.is_forming or member not in self._current:
            self._send(member, {"due": number, "why": "the others have begun another epoch", "lost": True})
            self._send(member, {"over": number})
        elif self.epoch.due:
            self._send(member, {"due": number, "why": self.epoch.due, "lost": self.epoch.knows_loss})
            if self.epoch.over_at is not None:
                self._send(member, {"over": number})

    def ready(self, now: float, member: str) -> None:
        """A member asks for the next epoch, and is in none any more."""
        own = self.members[member]
        own.is_ready, own.announced = True, None
        self._returning.discard(member)
        epoch = self.epoch
        if epoch is None:
            return
        if member not in epoch.members:
            if not epoch.is_forming:
                self._due(f"{own} joins")
        elif epoch.is_forming:
            self._form_again(f"{own} could not take part in it", besides=member)
        else:
            if epoch.asked_at is None:
                epoch.asked_at = now
            self._due(f"{own} has left the epoch", lost=True)

    def here(self, member: str, number: int, announced: Announced) -> None:
        """A member of the forming epoch listens."""
        epoch = self.epoch
        if epoch is not None and epoch.is_forming and epoch.number == number and member in epoch.members:
            self.members[member].announced = announced

    def left(self, member: str) -> None:
        """A member ends by intent."""
        self._go(member, "left", is_intent=True)

    def lost(self, member: str, why: str) -> None:
        """The connection of a member broke: its process or its host has died."""
        self._go(member, f"is lost ({why})", is_intent=False)

    def turn(self, now: float) -> float | None:
        """Decide what is due; returns the time of the next decision, None if nothing is waited for."""
        for one in [one for one in self.members.values() if not one.is_connected and one.until <= now]:
            self.lost(one.id, "it did not connect again")
        times = [one.until for one in self.members.values() if not one.is_connected]
        epoch = self.epoch
        if epoch is not None and epoch.is_forming:
            times.append(self._complete(now, epoch))
            epoch = self.epoch
        if epoch is not None and not epoch.is_forming and epoch.due:
            waited = self._await_members(now, epoch)
            if waited is not None:
                times.append(waited)
        if self.epoch is None:
            waited = self._await_returning(now) or self._try_to_form(now)
            if waited is not None:
                times.append(waited)
        return min((one for one in times if one > now), default=None)

    @property
    def _current(self) -> tuple[str, ...]:
        return () if self.epoch is None else self.epoch.members

    def _adopt(self, now: float, epoch: Epoch) -> None:
        """Take over a running epoch from an earlier coordinator; its members have a time to connect."""
        if self.epoch is not None and self.epoch.is_forming:
            self._form_again("another epoch is running")
        elif self.epoch is not None:
            self._due("the others have begun another epoch", lost=True)
        self.number, self.epoch, self._is_first = epoch.number, epoch, False
        until = now + self.bounds.wait_seconds
        for rank, one in enumerate(epoch.members):
            kind: Kind = "worker" if one in epoch.workers else "service"
            absent = Member(one, kind, f"that was rank {rank}", rank, is_connected=False, until=until)
            self.members.setdefault(one, absent)
        # By their ranks; those that joined this coordinator before it knew the epoch come after them.
        newcomers = [one.id for one in self._by_age(self.members.values()) if one.id not in epoch.members]
        self._give_ages((*epoch.members, *newcomers))
        ready = [one for one in self.members.values() if one.is_ready]
        have_left = [one for one in ready if one.id in epoch.members]
        if have_left:
            epoch.asked_at = now
            self._due(f"{have_left[0]} has left the epoch", lost=True)
        elif ready:
            self._due(f"{ready[0]} joins")

    def _by_age(self, members: Iterable[Member]) -> list[Member]:
        return sorted(members, key=lambda one: (one.is_new, one.age, one.id))

    def _give_ages(self, members: Iterable[str]) -> None:
        """All members, the oldest first."""
        for age, one in enumerate(members):
            own = self.members[one]
            own.is_new = False
            if own.age != age:
                own.age = age
                self._send(one, {"age": age})

    def _go(self, member: str, how: str, *, is_intent: bool) -> None:
        own = self.members.pop(member, None)
        if own is None:
            return
        if own.kind == "worker":
            self._have_ended = is_intent or self.bounds.ends_when_empty
        epoch = self.epoch
        if epoch is None or member not in epoch.members:
            return
        if epoch.is_forming:
            self._form_again(f"{own} {how}")
        else:
            self._due(f"{own}, rank {epoch.members.index(member)} of epoch {epoch.number}, {how}", lost=True)

    def _due(self, why: str, *, lost: bool = False) -> None:
        """The running epoch ends: its members learn it, once more if one is lost, because they must not wait for it."""
        epoch = self.epoch
        if epoch is None or epoch.is_forming or (epoch.due and (epoch.knows_loss or not lost)):
            return
        epoch.due = epoch.due or why
        epoch.knows_loss = lost
        for one in self._waited_for(epoch):
            self._send(one.id, {"due": epoch.number, "why": why, "lost": lost})

    def _form_again(self, why: str, *, besides: str = "") -> None:
        epoch, self.epoch = self.epoch, None
        assert epoch is not None
        for one in epoch.members:
            if one in self.members and one != besides:
                self.members[one].announced = None
                self._returning.add(one)
                self._return_by = None
                self._send(one, {"again": epoch.number, "why": why})

    def _waited_for(self, epoch: Epoch) -> list[Member]:
        """Members of a running epoch that have not asked for the next."""
        found = [self.members[one] for one in epoch.members if one in self.members]
        return [one for one in found if not one.is_ready]

    def _complete(self, now: float, epoch: Epoch) -> float:
        """Send the table once all members of a forming epoch listen; returns the time limit for that."""
        members = [self.members[one] for one in epoch.members]
        late = [one for one in members if one.announced is None]
        if late and now >= epoch.form_by:
            for one in late:
                self._refuse(one, f"it did not say where it listens within {FORM_SECONDS:g} s")
            return now
        if late:
            return epoch.form_by
        first = members[0].announced
        assert first is not None
        for rank, one in enumerate(members):
            assert one.announced is not None
            why = one.announced.difference(first, rank)
            if why is not None:
                self._refuse(one, why, "peer_mismatch")
                return now
        table = [[rank, *one.announced.endpoint] for rank, one in enumerate(members) if one.announced is not None]
        for one in members:
            one.announced = None
            self._send(one.id, {"table": epoch.number, "ranks": table})
        epoch.is_forming = False
        joining = [one for one in self.members.values() if one.is_ready]
        if joining:
            self._due(f"{joining[0]} joins")
        return now

    def _await_members(self, now: float, epoch: Epoch) -> float | None:
        """The epoch is over once all its members have asked for the next; the time limit of those that have not.

        Workers come first: a service serves until it learns that none is left, and has its time from then on.
        """
        workers = [one for one in self._waited_for(epoch) if one.kind == "worker"]
        if workers:
            if epoch.asked_at is None:
                return None
            until = epoch.asked_at + self.bounds.wait_seconds
            if now < until:
                return until
            self._refuse_late(workers, epoch, "another member did")
        services = self._waited_for(epoch)
        if services:
            if epoch.over_at is None:
                epoch.over_at = now
                for one in services:
                    self._send(one.id, {"over": epoch.number})
            until = epoch.over_at + self.bounds.wait_seconds
            if now < until:
                return until
            self._refuse_late(services, epoch, "its last worker did")
        self.epoch = None
        return None

    def _refuse_late(self, members: Iterable[Member], epoch: Epoch, after: str) -> None:
        for one in members:
            self._refuse(
                one,
                f"it did not come to the end of epoch {epoch.number} within {self.bounds.wait_seconds:g} s after "
                f"{after}, and counts as dead",
            )

    def _await_returning(self, now: float) -> float | None:
        """The time limit of members that will ask again, because an epoch did not form; None if all have asked."""
        self._returning &= self.members.keys()
        if self._returning and self._return_by is None:
            self._return_by = now + FORM_SECONDS
        if self._returning and self._return_by is not None and now < self._return_by:
            return self._return_by
        for one in list(self._returning):
            self._refuse(self.members[one], f"it did not ask for the next epoch within {FORM_SECONDS:g} s")
        self._returning.clear()
        return None

    def _try_to_form(self, now: float) -> float | None:
        """Begin the next epoch if enough members are ready; the time limit for that, None without any."""
        ready = self._by_age(one for one in self.members.values() if one.is_ready)
        workers = [one.id for one in ready if one.kind == "worker"]
        services = [one.id for one in ready if one.kind == "service"]
        if not ready or (not workers and self._end_services(services)):
            self._short_since = None
            return None
        bounds = self.bounds
        if self._short_since is None:
            self._short_since = now
        until = self._short_since + bounds.wait_seconds
        is_enough = len(workers) >= bounds.min_workers and len(services) >= bounds.min_services
        if is_enough and self._is_first and now < until:
            first_workers = bounds.min_workers if bounds.first_workers is None else bounds.first_workers
            first_services = bounds.min_services if bounds.first_services is None else bounds.first_services
            if len(workers) < first_workers or len(services) < first_services:
                return until
            if now < self._changed_at + bounds.settle_seconds:
                return self._changed_at + bounds.settle_seconds
        if is_enough:
            self._form(now, tuple(workers), tuple(services))
            return now
        if now < until:
            return until
        text = self._shortage(len(workers), len(services))
        for one in ready:
            self._refuse(one, text)
        self._short_since = None
        return None

    def _shortage(self, workers: int, services: int) -> str:
        bounds = self.bounds
        needs = [f"{count_of(bounds.min_workers, 'worker')} (--min-workers)"] if workers < bounds.min_workers else []
        if services < bounds.min_services:
            needs.append(f"{count_of(bounds.min_services, 'service')} ({_SERVICES_OPTIONS})")
        here = " and ".join(
            [count_of(workers, "worker")] + ([count_of(services, "service")] if services or bounds.min_services else [])
        )
        return (
            f"the job has {here}, needs {' and '.join(needs)}, and no others joined within {bounds.wait_seconds:g} s: "
            "start more processes, or lower the minimum"
        )

    def _end_services(self, services: Iterable[str]) -> bool:
        """Services have nobody to serve once the last worker has left by intent; whether that is so."""
        if any(one.kind == "worker" for one in self.members.values()) or not self._have_ended:
            return False
        for one in services:
            self.members.pop(one)
            self._send(one, {"end": "every worker has left"})
        return True

    def _form(self, now: float, workers: tuple[str, ...], services: tuple[str, ...]) -> None:
        self.number += 1
        self.epoch = Epoch(self.number, workers, services, is_forming=True, form_by=now + FORM_SECONDS)
        if self._is_first:  # two coordinators may have counted the ages
            self._give_ages(one.id for one in self._by_age(self.members.values()))
        self._is_first, self._short_since = False, None
        for rank, one in enumerate(self.epoch.members):
            self.members[one].is_ready = False
            self._send(
                one,
                {"epoch": self.number, "rank": rank, "workers": list(workers), "services": list(services)},
            )

    def _refuse(self, own: Member, text: str, code: str = "rendezvous") -> None:
        """End a membership; the member gets the text."""
        self._send(own.id, {"refused": text, "code": code})
        self._go(own.id, f"is no member any more ({text})", is_intent=False)

    def _send(self, member: str, message: dict[str, Any]) -> None:
        self._messages.append((member, message))
