"""An unknown client of rank 0's rendezvous learns nothing of the job, cannot join, and delays no other."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest
from checks import assert_names, until
from rendezvous_caller import ANNOUNCEMENT, Caller
from transport_jobs import takes

import mlt
from mlt._shared.ports import free_port
from mlt.job import handshake_server
from mlt.job._rendezvous_host import Host
from mlt.job.configuration import JobConfig
from mlt.job.rendezvous import VERSION, Endpoint, meet
from mlt.job.secret import JobSecret

SECRET = JobSecret("known to the ranks alone")
JOB = "job-17-secret-name"


def config(rank: int, port: int, size: int = 2, secret: JobSecret | None = SECRET) -> JobConfig:
    return JobConfig(
        rank=rank, world_size=size, services=0, job=JOB, master_addr="127.0.0.1", rendezvous_port=port, host=None,
        secret=secret,
    )  # fmt: skip


class Waiting:
    """Rank 0, waiting for the others in a thread."""

    def __init__(self, size: int = 2, timeout: float = 20.0) -> None:
        self.port = free_port()
        self.size = size
        self.counts: Counter[str] = Counter()
        self.outcome: Any = None
        self._timeout = timeout
        self._thread = threading.Thread(target=self._meet)
        self._thread.start()

    def _meet(self) -> None:
        try:
            own = Endpoint(0, "127.0.0.1", 1_000)
            self.outcome = meet(config(0, self.port, self.size), own, self._timeout, counts=self.counts)
        except BaseException as error:
            self.outcome = error

    def until(self, counter: str, minimum: int = 1) -> None:
        until(lambda: self.counts[counter] >= minimum, 10)

    def join_all(self) -> None:
        """Let the other ranks come, and rank 0 end well."""
        tables: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            tables[rank] = meet(config(rank, self.port, self.size), Endpoint(rank, "127.0.0.1", 1_000 + rank), 10.0)

        ranks = [threading.Thread(target=one, args=(rank,)) for rank in range(1, self.size)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        self._thread.join()
        expected = [Endpoint(rank, "127.0.0.1", 1_000 + rank) for rank in range(self.size)]
        assert self.outcome == expected, self.outcome
        assert tables[1:] == [expected] * (self.size - 1)


@pytest.fixture
def rank_0() -> Iterator[Waiting]:
    waiting = Waiting()
    yield waiting
    if waiting.outcome is None:
        with contextlib.suppress(Exception):
            waiting.join_all()


def old_announcement(**changes: Any) -> bytes:
    """The announcement of releases without a proof."""
    return json.dumps({"mlt_rendezvous": 1, **ANNOUNCEMENT, **changes}).encode() + b"\n"


@pytest.mark.parametrize("changes", [{"job": "?"}, {"size": 9_999}, {"rank": 7}, {"job": JOB}])
def test_server__a_wrong_guess_gets_no_proof_in_reply(rank_0: Waiting, changes: dict[str, Any]) -> None:
    with Caller(rank_0.port) as caller:
        caller.say(old_announcement(**changes))
        answer = caller.line()
        assert caller.line() == b""
    assert JOB.encode() not in answer
    # It hears the version of what listens there, and nothing else.
    assert set(json.loads(answer)) == {"mlt_rendezvous", "error", "text"}
    assert "version" in json.loads(answer)["text"]
    rank_0.join_all()
    assert rank_0.counts["rendezvous_other_version"] == 1


@pytest.mark.parametrize("secret", [None, JobSecret("guessed, and wrong all the way")])
def test_server__without_the_secret_no_rank_joins_and_no_reply_is_sent(
    rank_0: Waiting, secret: JobSecret | None
) -> None:
    with Caller(rank_0.port, secret=secret) as caller:
        assert not caller.open()
        caller.announce(job=JOB)
        assert caller.line() == b""
    rank_0.join_all()
    assert rank_0.counts["rendezvous_unproved"] == 1
    assert rank_0.counts["rendezvous_refusals"] == 0


def test_server__a_proof_is_good_for_its_own_line_and_connection_only(rank_0: Waiting) -> None:
    text = json.dumps({**ANNOUNCEMENT, "job": JOB})
    with Caller(rank_0.port, secret=SECRET) as first, Caller(rank_0.port, secret=SECRET) as second:
        assert first.open()
        recorded = json.dumps({"content": text, "proof": first.prover.prove(text)}).encode() + b"\n"
        assert second.open()
        second.say(recorded)
        assert second.line() == b""
        changed = json.dumps({"content": text.replace("127", "126"), "proof": first.prover.prove(text)})
        first.say(changed.encode() + b"\n")
        assert first.line() == b""
    with Caller(rank_0.port, secret=SECRET) as third:  # rank 0's own proof, sent back to it
        third.say(json.dumps({"mlt_rendezvous": VERSION, "nonce": third.prover.nonce}).encode() + b"\n")
        third.say(json.dumps({"content": "", "proof": json.loads(third.line())["proof"]}).encode() + b"\n")
        assert third.line() == b""
    rank_0.join_all()
    assert rank_0.counts["rendezvous_unproved"] == 3


@pytest.mark.parametrize(
    ("line", "counter"),
    [
        (b'{"mlt_rendezvous":1,"rank":1e999,"job":"x","size":2,"services":0,"host":"a","port":1}\n', "other_version"),
        (b'{"mlt_rendezvous":1e999,"nonce":"00"}\n', "malformed"),
        (b'{"mlt_rendezvous":NaN}\n', "malformed"),
        (b'{"mlt_rendezvous":3,"nonce":7}\n', "malformed"),
        (b'{"mlt_rendezvous":true,"nonce":""}\n', "malformed"),
        (b'{"mlt_rendezvous":"2","nonce":""}\n', "malformed"),
        (b'{"mlt_rendezvous":3,"nonce":"' + b"zz" * 32 + b'"}\n', "malformed"),
        (b"[" * 4_000 + b"\n", "malformed"),
        (b'{"a":' * 1_500 + b"\n", "malformed"),
        (b"[" * 4_000, "unidentified"),
        (b"\xff\xfe\x00\n", "malformed"),
        (b"null\n", "malformed"),
        (b"\n", "malformed"),
        (b"9" * 7_000 + b"\n", "malformed"),
        (b"x" * 100_000, "oversized"),
    ],
)
def test_server__rank_0_survives_every_line(rank_0: Waiting, line: bytes, counter: str) -> None:
    with Caller(rank_0.port) as caller, contextlib.suppress(ConnectionError):
        caller.say(line)
        if counter not in ("unidentified", "other_version"):
            assert caller.line() == b""
    rank_0.until(f"rendezvous_{counter}")
    rank_0.join_all()


@pytest.mark.parametrize(
    "content",
    [
        '{"rank":1e999,"job":"x","size":2,"services":0,"host":"a","port":1}',
        json.dumps({**ANNOUNCEMENT, "rank": True}),
        json.dumps({**ANNOUNCEMENT, "rank": "1"}),
        json.dumps({**ANNOUNCEMENT, "rank": 1.0}),
        json.dumps({**ANNOUNCEMENT, "rank": -1}),
        json.dumps({**ANNOUNCEMENT, "port": 10**30}),
        json.dumps({**ANNOUNCEMENT, "host": "h" * 300}),
        json.dumps({**ANNOUNCEMENT, "host": ["127.0.0.1"]}),
        json.dumps({**ANNOUNCEMENT, "host": "127.0.0.1\n\x1b[2J"}),
        json.dumps({**ANNOUNCEMENT, "host": "\ud800"}),
        "[" * 4_000,
        "",
        "null",
    ],
)
def test_server__rank_0_survives_a_rank_that_sends_garbage(rank_0: Waiting, content: str) -> None:
    with Caller(rank_0.port, secret=SECRET) as caller:
        assert caller.open()
        caller.announce(content)
        # It proved itself, so it is told.
        assert_names(caller.content()["text"], "rank of mlt")
    rank_0.join_all()
    assert rank_0.counts["rendezvous_refusals"] == 1


def test_server__repeats_little_of_another_version(rank_0: Waiting) -> None:
    with Caller(rank_0.port) as caller:
        caller.say(b'{"mlt_rendezvous":' + b"9" * 4_000 + b"}\n")
        answer = caller.line()
    assert b"rendezvous version 3 is spoken here, not 999" in answer
    assert len(answer) < 300
    rank_0.join_all()


@pytest.mark.parametrize("number", [100, 1_000])
def test_server__idle_callers_hold_no_rank_up(rank_0: Waiting, number: int) -> None:
    with contextlib.ExitStack() as idle:
        for _ in range(number):
            idle.enter_context(Caller(rank_0.port))
        with takes(at_most=3.0):
            rank_0.join_all()
    assert rank_0.counts["rendezvous_accepted"] >= 1
    if number == 1_000:
        assert rank_0.counts["rendezvous_too_many_pending"] >= number - handshake_server.max_callers(rank_0.size)


def test_server__callers_that_open_and_wait_are_cut_by_number_oldest_first(rank_0: Waiting) -> None:
    limit = handshake_server.max_callers(rank_0.size)
    with contextlib.ExitStack() as waiting:
        callers = [waiting.enter_context(Caller(rank_0.port)) for _ in range(limit + 10)]
        rank_0.until("rendezvous_too_many_pending", 10)
        assert callers[0].line() == b""
        assert callers[-1].open() is False
        rank_0.join_all()


class OpenDoor:
    """A server of this thread, and clients of it by their source address."""

    def __init__(self, expected: int = 2) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4_096)
        self.port = self._listener.getsockname()[1]
        self.handshakes = handshake_server.HandshakeServer(
            "rendezvous", VERSION, SECRET, listeners=[self._listener], expected=expected
        )
        self._stack = contextlib.ExitStack()
        self.accepted = 0

    def __enter__(self) -> OpenDoor:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.handshakes.close()
        self._listener.close()

    def come(self, source: str = "127.0.0.1", *, opens: bool = False) -> Caller:
        caller = self._stack.enter_context(Caller(self.port, secret=SECRET, source=source))
        self.accepted += 1
        while self.handshakes.counts["rendezvous_accepted"] < self.accepted:
            self.handshakes.turn(1.0)
        if opens:
            caller.say(json.dumps({"mlt_rendezvous": VERSION, "nonce": caller.prover.nonce}).encode() + b"\n")
            self.handshakes.turn(1.0)
            answer = json.loads(caller.line())
            assert caller.prover.meet(answer["nonce"])
            assert caller.prover.check(answer["proof"])
        return caller

    def takes_proof_of(self, caller: Caller) -> bool:
        with contextlib.suppress(ConnectionError):
            caller.announce()
            return bool(self.handshakes.turn(1.0))
        return False


@pytest.mark.parametrize("flood_opens", [False, True])
@pytest.mark.parametrize("rank_opens", [False, True])
def test_server__a_flood_from_one_address_closes_its_own_callers_only(rank_opens: bool, flood_opens: bool) -> None:
    with OpenDoor() as one:
        rank = one.come("127.0.0.2", opens=rank_opens)
        for _ in range(2 * handshake_server.max_callers(2)):
            one.come("127.0.0.1", opens=flood_opens)
        assert one.handshakes.counts["rendezvous_too_many_pending"] == handshake_server.max_callers(2) + 1
        if not rank_opens:
            rank.say(json.dumps({"mlt_rendezvous": VERSION, "nonce": rank.prover.nonce}).encode() + b"\n")
            one.handshakes.turn(1.0)
            rank.prover.meet(json.loads(rank.line())["nonce"])
        assert one.takes_proof_of(rank)


def test_server__of_one_address_a_caller_that_has_opened_outlives_idle_ones() -> None:
    with OpenDoor() as one:
        rank = one.come(opens=True)
        idle = [one.come() for _ in range(handshake_server.max_callers(2) + 10)]
        assert idle[10].line() == b""
        assert one.takes_proof_of(rank)


def test_server__a_flood_from_many_addresses_closes_idle_callers_first() -> None:
    with OpenDoor() as one:
        rank = one.come("127.0.0.2", opens=True)
        for turn in range(handshake_server.max_callers(2) + 10):
            one.come(f"127.0.{1 + turn // 250}.{1 + turn % 250}")
        assert one.takes_proof_of(rank)


def test_server__a_newcomer_of_the_fullest_address_makes_no_other_address_s_place() -> None:
    half = handshake_server.max_callers(2) // 2
    with OpenDoor() as one:
        ranks = [one.come("127.0.0.2") for _ in range(half)]
        flood = [one.come("127.0.0.1", opens=True) for _ in range(half + 1)]
        assert flood[0].line() == b""
        ranks[0].socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            ranks[0].socket.recv(1)


@pytest.mark.parametrize("size", [2, 37, 100, 190])
def test_server__what_a_flood_can_count_is_the_same_for_every_small_job(size: int) -> None:
    with OpenDoor(size) as one:
        callers = 0
        while not one.handshakes.counts["rendezvous_too_many_pending"]:
            one.come()
            callers += 1
        assert callers == 257


@pytest.mark.parametrize(("expected", "callers"), [(0, 256), (192, 256), (193, 512), (448, 512), (1_000, 2_048)])
def test_max_callers__show_the_size_of_a_large_job_to_a_power_of_two_only(expected: int, callers: int) -> None:
    assert handshake_server.max_callers(expected) == callers


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%lo", "fe80::2", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
    ],
)
def test_source_of__is_what_callers_of_one_host_share(one: str, other: str, same: bool) -> None:
    assert (handshake_server.source_of(one) == handshake_server.source_of(other)) is same


@pytest.mark.parametrize(
    ("errors", "closed"),
    [([errno.ECONNABORTED], 0), ([errno.EMFILE], 1), ([errno.ECONNABORTED, errno.EMFILE], 0)],
)
def test_server__only_want_of_a_descriptor_for_one_that_waits_closes_a_caller(errors: list[int], closed: int) -> None:
    left = [*errors, errno.EAGAIN]

    class Failing:
        def accept(self) -> tuple[socket.socket, Any]:
            raise OSError(left.pop(0), "")

    with OpenDoor() as one:
        one.come()
        one.handshakes._accept(cast(socket.socket, Failing()))
        assert one.handshakes.counts["rendezvous_too_many_pending"] == closed


def test_server__a_slow_caller_is_cut_by_time(rank_0: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake_server, "PROOF_SECONDS", 0.3)
    with Caller(rank_0.port) as mute, Caller(rank_0.port) as slow, takes(at_most=3.0):
        slow.open()
        for _ in range(3):
            slow.say(b" ")
        assert mute.line() == b""
        assert slow.line() == b""
    rank_0.join_all()
    assert rank_0.counts["rendezvous_timed_out"] == 2


def test_server__a_rank_with_another_secret_is_reported_at_once() -> None:
    waiting = Waiting(timeout=1.5)
    for secret, why in ((None, "this rank has none"), (JobSecret("another one, also long"), "it has another one")):
        with takes(at_most=1.0), pytest.raises(mlt.PeerMismatchError, match="did not prove") as refused:
            meet(config(1, waiting.port, secret=secret), Endpoint(1, "127.0.0.1", 1), 10.0)
        assert why in str(refused.value)
        assert "MLT_JOB_SECRET" in str(refused.value)
    waiting._thread.join()
    text = str(waiting.outcome)
    assert_names(text, "2 connections", "secret")


def test_server__many_unknown_clients_leave_only_counts() -> None:
    port, counts = free_port(), Counter[str]()
    with Host(config(0, port), Endpoint(0, "127.0.0.1", 1_000), None, counts) as host:
        for turn in range(1, 51):
            with Caller(port) as caller:
                caller.say(old_announcement())
                while counts["rendezvous_other_version"] < turn:
                    host._handshakes.turn(1.0)
        assert len(host._refused) <= 5


def test_server__two_jobs_with_one_secret_are_told_apart(rank_0: Waiting) -> None:
    with Caller(rank_0.port, secret=SECRET) as caller:
        assert caller.open()
        caller.announce(job="other")
        assert_names(caller.content()["text"], "rank 1", "'other'", f"{JOB!r}", "MLT_JOB")
    rank_0.join_all()


def test_context__counts_clients_of_the_server() -> None:
    port = free_port()
    contexts: dict[int, mlt.Context] = {}
    secret = "known to the ranks alone"

    def one(rank: int) -> None:
        contexts[rank] = mlt.Context(rank, 2, master_addr="127.0.0.1", rendezvous_port=port, job=JOB, secret=secret)

    first = threading.Thread(target=one, args=(0,))
    first.start()
    with Caller(port) as caller:
        caller.say(b"GET / HTTP/1.1\r\n\r\n")
        assert caller.line() == b""
    second = threading.Thread(target=one, args=(1,))
    second.start()
    first.join()
    second.join()
    try:
        counters = contexts[0].counters()
        assert counters["rendezvous_malformed"] == 1
        assert counters["control_accepted"] == 1
        assert counters["control_unproved"] == 0
        assert "rendezvous_malformed" not in contexts[1].counters()
        assert secret not in repr(contexts[0]) + repr(contexts[0].config)
    finally:
        for context in contexts.values():
            context.close()
