"""The membership coordinator and its members over loopback sockets: who is admitted, and what a restart costs."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from checks import assert_names, names, until
from elastic_jobs import LOOPBACK, Running
from elastic_jobs import coordinator as coordinator_of
from transport_jobs import takes

from mlt.errors import ConfigError, MltError, PeerMismatchError, PortInUseError, RendezvousError
from mlt.job.epochs.coordinator import Coordinator
from mlt.job.epochs.member import Assignment, EpochOverError, Member
from mlt.job.epochs.messages import Announced
from mlt.job.epochs.settings import Bounds, Kind, Place
from mlt.job.secret import JobSecret

SECRET, OTHER = JobSecret("a" * 8 + "b" * 8), JobSecret("c" * 8 + "d" * 8)
LISTENS = Announced("127.0.0.1", 4_000, (31, 3), 1, False, False)
SECONDS = 10.0


def running(place: Place = LOOPBACK, **bounds: Any) -> contextlib.AbstractContextManager[Running]:
    return coordinator_of(place, job="lecture", secret=SECRET, **{"wait_seconds": 5.0, **bounds})


class Crowd:
    """Members, each with a thread of its own for what waits."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.members: list[Member] = []
        self._threads = ThreadPoolExecutor(16)

    def member(self, kind: Kind = "worker", **changes: Any) -> Member:
        options = {"job": "lecture", "secret": SECRET, "connect_seconds": SECONDS, **changes}
        self.members.append(Member(self.place, kind, **options))
        return self.members[-1]

    def begin(self, *members: Member) -> Future[list[Any]]:
        """All ask for the next epoch and announce themselves; the assignments."""

        def one(member: Member) -> Assignment | None:
            while (assigned := member.ask()) is not None:
                with contextlib.suppress(EpochOverError):
                    member.announce(assigned.number, LISTENS, lambda: None)
                    member.connected()
                    break
            return assigned

        each = [self._threads.submit(one, member) for member in members]
        return self._threads.submit(lambda: [one.result(60) for one in each])

    def ask(self, member: Member) -> Future[Assignment | None]:
        return self._threads.submit(member.ask)

    def close(self) -> None:
        for one in self.members:
            one.leave()
        self._threads.shutdown()


@contextlib.contextmanager
def crowd(coordinator: Coordinator) -> Iterator[Crowd]:
    own = Crowd(coordinator.place)
    try:
        yield own
    finally:
        own.close()


def test_members__get_ranks_and_addresses_and_learn_of_changes() -> None:
    with running(first_workers=2) as coordinator, crowd(coordinator) as own:
        one, other = own.member(), own.member()
        first = own.begin(one, other).result(SECONDS)
        assert sorted(place.rank for place in first) == [0, 1]
        third = own.member()
        joins = own.begin(third)
        assert "joins" in until(lambda: one.due and other.due)
        again = own.begin(one, other).result(SECONDS)
        assert [place.rank for place in again] == [place.rank for place in first]
        assert joins.result(SECONDS)[0].rank == 2
        other.leave(is_intent=False)
        assert "is lost" in until(lambda: one.due)
        assert one.await_due(1.0)


def test_stranger__without_the_secret_learns_nothing_and_delays_nobody() -> None:
    with running() as coordinator, crowd(coordinator) as own:
        for secret in (OTHER, None):
            with takes(at_most=3.0), pytest.raises(PeerMismatchError, match=names("secret", str(own.place))):
                own.member(secret=secret).ask()
        with socket.create_connection((coordinator.place.host, coordinator.place.port)) as silent:
            assert own.begin(own.member()).result(SECONDS)[0].rank == 0
            silent.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert silent.recv(1_000) == b""
        assert coordinator.counts["elastic_unproved"] == 2


def test_member__beyond_the_maximum_and_of_another_job_is_refused_by_name() -> None:
    with running(max_workers=1) as coordinator, crowd(coordinator) as own:
        assert own.begin(own.member()).result(SECONDS)[0].workers
        with takes(at_most=3.0), pytest.raises(RendezvousError, match=names("1 worker already", "--max-workers")):
            own.member().ask()
        with pytest.raises(PeerMismatchError, match=names("'other'", "'lecture'", "MLT_JOB")):
            own.member(job="other").ask()


def test_too_few__fail_by_name_within_the_wait() -> None:
    with running(min_workers=2, wait_seconds=1.0) as coordinator, crowd(coordinator) as own:
        one = own.member()
        with takes(at_least=1.0, at_most=4.0), pytest.raises(RendezvousError, match=names("1 worker", "2 workers")):
            one.ask()
        with pytest.raises(RendezvousError):
            one.ask()  # it is no member any more


def test_member__that_does_not_come_to_the_end_of_an_epoch_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with running(wait_seconds=1.0, first_workers=2) as coordinator, crowd(coordinator) as own:
        one, two = own.member(), own.member()
        assert len(own.begin(one, two).result(SECONDS)) == 2
        own.ask(one)
        until(lambda: "did not come to the end of epoch 1" in caplog.text)
        (line,) = [each for each in caplog.messages if "is refused: it did not come" in each]
        assert_names(
            line, f"the worker on {platform.node()}, process {os.getpid()}", "did not come to the end of epoch 1"
        )


def test_no_coordinator__is_named_within_the_connect_timeout() -> None:
    with running() as coordinator, crowd(coordinator) as own:
        coordinator.end()
        with takes(at_most=4.0), pytest.raises(RendezvousError, match=names(str(own.place), "mlt elastic", "1 s")):
            own.member(connect_seconds=1.0).ask()


def test_coordinator__that_is_started_again_takes_the_members_back() -> None:
    with running(first_workers=2) as coordinator, crowd(coordinator) as own:
        one, other = own.member(), own.member()
        first = own.begin(one, other).result(SECONDS)
        place = coordinator.place
        coordinator.end()
        time.sleep(1.0)  # for what must not happen: no event shows it
        assert (one.due, other.due, one.failure) == ("", "", None)
        with running(place, settle_seconds=2.0):
            third = own.begin(own.member())
            assert until(lambda: one.due and other.due)
            again = own.begin(one, other).result(SECONDS)
            assert [place.rank for place in again] == [place.rank for place in first]
            assert third.result(SECONDS)[0].rank == 2
            assert third.result(SECONDS)[0].number == 2


def test_member__that_waits_while_the_coordinator_is_started_again_gets_its_epoch() -> None:
    with running(min_workers=2, wait_seconds=60.0) as coordinator, crowd(coordinator) as own:
        waiting = own.begin(own.member())
        until(lambda: len(coordinator.counts) and coordinator.counts["elastic_accepted"])
        place = coordinator.place
        coordinator.end()
        with running(place, min_workers=2):
            assert own.begin(own.member()).result(SECONDS)[0].workers == waiting.result(SECONDS)[0].workers


def test_service__gets_none_once_every_worker_has_left() -> None:
    with running(first_services=1) as coordinator, crowd(coordinator) as own:
        worker, service = own.member(), own.member("service")
        assert own.begin(worker, service).result(SECONDS)[1].rank == 1
        ends = own.ask(service)
        worker.leave()
        assert ends.result(SECONDS) is None


def test_forked_process__does_not_keep_its_parents_membership() -> None:
    import os

    with running() as coordinator, crowd(coordinator) as own:
        one = own.member()
        own.begin(one).result(SECONDS)
        child = os.fork()
        if child == 0:
            try:
                one.leave()  # of the parent: no effect
                one.ask()
            except ConfigError:
                os._exit(3)
            finally:
                os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert one.due == ""


def test_port__in_use_and_places_without_a_secret_are_rejected() -> None:
    with running() as coordinator:
        with pytest.raises(PortInUseError, match=names(str(coordinator.place), "ss -lntp")):
            Coordinator(coordinator.place, Bounds())
        with pytest.raises(ConfigError, match=names("0.0.0.0", "job secret")):
            Coordinator(Place("0.0.0.0", 0), Bounds())
        with pytest.raises(ConfigError, match="does not resolve"):
            Coordinator(Place("no.such.host.invalid", 1), Bounds())


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"min_workers": 3, "max_workers": 2}, "3 to 2 workers"),
        ({"min_workers": 2, "first_workers": 1}, "starts with 1 workers"),
        ({"min_services": -1}, "min_services is -1"),
        ({"wait_seconds": 0}, "is 0 s"),
    ],
)
def test_bounds__that_contradict_each_other_are_rejected(bounds: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=names(words)):
        Bounds(**bounds)


@pytest.mark.parametrize("text", ["", "host:", "host:0", "host:70000", "a b:1:2"])
def test_place__names_what_is_wrong(text: str) -> None:
    with pytest.raises(ConfigError, match="MLT_ELASTIC"):
        Place.resolve(None, {"MLT_ELASTIC": text})
    assert issubclass(ConfigError, MltError)
