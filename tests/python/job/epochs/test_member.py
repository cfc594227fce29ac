"""A member of an elastic job whose coordinator answers late, in another order, or not at all."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from checks import names, until
from elastic_jobs import LOOPBACK
from elastic_jobs import coordinator as running
from transport_jobs import takes

from mlt._shared.link import GONE_SECONDS, Link
from mlt.elastic import _NOTICE_SECONDS
from mlt.errors import RendezvousError
from mlt.job.epochs import coordinator as coordinator_module
from mlt.job.epochs import member as member_module
from mlt.job.epochs.coordinator import Coordinator
from mlt.job.epochs.member import EpochOverError, Member
from mlt.job.epochs.messages import Announced, ProvedLink
from mlt.job.epochs.settings import Bounds, Place
from mlt.job.secret import Prover

LISTENS = Announced("127.0.0.1", 4_000, (31, 3), 1, False, False)
SECONDS = 10.0


class Scripted(Coordinator):
    """A coordinator that does only what a test tells it: it answers by ``answer(link, message)``."""

    def __init__(self, answer: Callable[[ProvedLink, dict[str, Any]], object]) -> None:
        super().__init__(LOOPBACK, Bounds(settle_seconds=0.0))
        self.answer = answer

    def _on_message(self, member: str, message: dict[str, Any]) -> None:
        self.answer(self._links[member], message)


@contextlib.contextmanager
def scripted(answer: Callable[[ProvedLink, dict[str, Any]], object]) -> Iterator[Scripted]:
    with Scripted(answer) as running:
        thread = threading.Thread(target=running.run, daemon=True)
        thread.start()
        try:
            yield running
        finally:
            running.stop()
            thread.join(SECONDS)


def member_at(place: Place, connect_seconds: float = SECONDS) -> Member:
    return Member(place, "worker", job="default", connect_seconds=connect_seconds)


class Leaving:
    """Closes a membership at the end of a test."""

    def __init__(self, own: Member) -> None:
        self._own = own

    def close(self) -> None:
        self._own.leave(is_intent=False)


def assignment(number: int, own: Member) -> dict[str, Any]:
    return {"epoch": number, "rank": 0, "workers": [own.id], "services": []}


def test_epoch__whose_coordinator_vanishes_as_it_gives_the_ranks_is_asked_for_again() -> None:
    """The connection breaks before the thread that asks wakes."""
    own = member_at(Place("127.0.0.1", 1))
    provers = [Prover(None, "test", role=role) for role in ("caller", "host")]
    assert all(one.meet(other.nonce) for one, other in zip(provers, reversed(provers), strict=True))
    near, far = (ProvedLink(Link(end), one) for end, one in zip(socket.socketpair(), provers, strict=True))
    own._phase, own._was_connected, own._link = "asking", True, near
    far.send(assignment(1, own))
    far.link.close()
    own._serve(near)
    with takes(at_most=1.0), pytest.raises(EpochOverError, match="connection to the membership coordinator broke"):
        own.announce(1, LISTENS, lambda: None)


def test_announce__ends_if_the_addresses_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "FORM_SECONDS", 0.2)

    def answer(link: ProvedLink, message: dict[str, Any]) -> None:
        link.send(assignment(1, own) if "ready" in message else {"pong": 1})

    with scripted(answer) as coordinator:
        own = member_at(coordinator.place, 1.0)
        with contextlib.closing(Leaving(own)):
            assert own.ask() is not None
            with takes(at_most=5.0), pytest.raises(EpochOverError, match=names("sent no addresses for 1.2 s")):
                own.announce(1, LISTENS, lambda: None)


def test_connected__fails_if_a_member_was_lost_before() -> None:
    links = []

    def answer(link: ProvedLink, message: dict[str, Any]) -> None:
        links.append(link)
        if "ready" in message:
            link.send(assignment(1, own))
        elif "here" in message:
            link.send({"table": 1, "ranks": [[0, "127.0.0.1", 4_000]]})

    with scripted(answer) as coordinator:
        own = member_at(coordinator.place)
        with contextlib.closing(Leaving(own)):
            assert own.ask() is not None
            closed = threading.Event()
            own.announce(1, LISTENS, closed.set)
            links[0].send({"due": 1, "why": "rank 3 is lost", "lost": True})
            assert closed.wait(SECONDS)
            with pytest.raises(EpochOverError, match="epoch 1 does not begin: rank 3 is lost"):
                own.connected()


def test_coordinator__that_is_connected_and_does_not_answer_is_named_within_the_connect_timeout() -> None:
    with scripted(lambda link, message: None) as coordinator:
        own = member_at(coordinator.place, 1.0)
        with (
            contextlib.closing(Leaving(own)),
            takes(at_least=0.9, at_most=5.0),
            pytest.raises(RendezvousError, match=names(str(coordinator.place), "no answer from", "for 1 s")),
        ):
            own.ask()


def test_member__gets_messages_that_no_buffer_holds() -> None:
    """The addresses of thousands of members, for example."""

    def answer(link: ProvedLink, message: dict[str, Any]) -> None:
        if "ready" in message:
            for number in range(3):
                coordinator._send(own.id, {"age": number, "filler": "." * (12 << 20)})
            coordinator._send(own.id, assignment(1, own))

    with scripted(answer) as coordinator:
        own = member_at(coordinator.place)
        with contextlib.closing(Leaving(own)):
            assigned = own.ask()
            assert assigned is not None
            assert (assigned.number, own._age) == (1, 2)
            assert not coordinator._send_by


def test_member__that_does_not_read_is_lost_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "_SEND_SECONDS", 0.5)

    def answer(link: ProvedLink, message: dict[str, Any]) -> None:
        coordinator._send(own.id, {"age": 0, "filler": "." * (12 << 20)})

    with scripted(answer) as coordinator:
        own = member_at(coordinator.place)
        with contextlib.closing(Leaving(own)), ThreadPoolExecutor(1) as threads:
            own._condition.acquire()  # its thread stops at the first message
            try:
                asks = threads.submit(own.ask)
                own._condition.wait_for(lambda: own._link is not None, SECONDS)
                own._say({"ready": 1})
                until(lambda: coordinator._send_by, 5.0)
                until(lambda: not coordinator._links, 5.0)
            finally:
                own._condition.release()
            own.leave(is_intent=False)
            with pytest.raises(RendezvousError):
                asks.result(SECONDS)


def test_coordinator__that_fails_closes_its_connections(caplog: pytest.LogCaptureFixture) -> None:
    def answer(link: ProvedLink, message: dict[str, Any]) -> None:
        raise ZeroDivisionError("of the test")

    with Scripted(answer) as coordinator, ThreadPoolExecutor(1) as threads:
        own = member_at(coordinator.place, 1.0)
        serving = threads.submit(coordinator.run)
        with takes(at_most=6.0), pytest.raises(RendezvousError, match="no membership coordinator"):
            own.ask()
        with pytest.raises(ZeroDivisionError):
            serving.result(SECONDS)
        coordinator.stop()
    assert "it has failed (ZeroDivisionError: of the test)" in caplog.text


def test_coordinator__that_answers_may_let_a_member_wait_for_longer_than_the_connect_timeout() -> None:
    with running(min_workers=2, wait_seconds=4.0) as coordinator:
        own = member_at(coordinator.place, 2.0)
        with takes(at_least=3.5, at_most=9.0), pytest.raises(RendezvousError, match="2 workers"):
            own.ask()


def test_leave__while_the_coordinator_is_started_again_reaches_it() -> None:
    with running(first_services=1) as first, ThreadPoolExecutor(2) as threads:
        worker, service = member_at(first.place), Member(first.place, "service", job="default", connect_seconds=SECONDS)

        def begin(own: Member) -> None:
            assigned = own.ask()
            assert assigned is not None
            own.announce(assigned.number, LISTENS, lambda: None)
            own.connected()

        for one in [threads.submit(begin, own) for own in (worker, service)]:
            one.result(SECONDS)
        first.stop()
        time.sleep(0.2)
        first.close()
        until(lambda: worker._link is None)
        leaving = threads.submit(worker.leave)
        with running(first.place, settle_seconds=2.0, wait_seconds=60.0), contextlib.closing(Leaving(service)):
            leaving.result(SECONDS)
            with takes(at_most=SECONDS):
                assert service.ask() is None


def test_leave__does_not_wait_long_for_a_coordinator_that_is_gone() -> None:
    with running() as coordinator:
        own = member_at(coordinator.place)
        assert own.ask() is not None
        coordinator.stop()
        time.sleep(0.2)
        coordinator.close()
        until(lambda: own._link is None)
        with takes(at_most=4.0):
            own.leave()


def test_notice__is_longer_than_the_coordinator_needs_to_find_a_host_gone() -> None:
    assert _NOTICE_SECONDS > GONE_SECONDS
