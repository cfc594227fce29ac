"""Ranks connect, or report which are missing, within a stated time."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from checks import assert_names, names, until
from rendezvous_caller import Caller, connect
from transport_jobs import exchange, local_job, process_job, takes

import mlt
from mlt._shared import patience
from mlt._shared.ports import free_port
from mlt.job import interfaces, rendezvous, secret
from mlt.job.configuration import JobConfig
from mlt.job.rendezvous import VERSION, Endpoint, meet
from mlt.job.secret import JobSecret
from mlt.options.qos import DscpMap

TIMEOUT = 1.0
SECRET = JobSecret("not known to other jobs")


def config(rank: int, size: int, port: int, **changes: Any) -> JobConfig:
    fields = {"services": 0, "job": "test", "master_addr": "127.0.0.1", "host": None, **changes}
    return JobConfig(rank=rank, world_size=size, rendezvous_port=port, **fields)


class Ranks:
    """Runs ``meet`` for several configs in threads and keeps what each returned or raised."""

    def __init__(
        self, *configs: JobConfig, timeout: float = TIMEOUT, dscp: DscpMap | None = None, paths: int = 0
    ) -> None:
        self.outcomes: dict[int, Any] = {}
        self._dscp = dscp
        self._paths = paths
        self._threads = [threading.Thread(target=self._one, args=(i, c, timeout)) for i, c in enumerate(configs)]
        for thread in self._threads:
            thread.start()

    def _one(self, index: int, one: JobConfig, timeout: float) -> None:
        try:
            self.outcomes[index] = meet(
                one, Endpoint(one.rank, "127.0.0.1", 1_000 + one.rank), timeout, dscp=self._dscp, paths=self._paths
            )
        except mlt.MltError as error:
            self.outcomes[index] = error

    def join(self) -> list[Any]:
        for thread in self._threads:
            thread.join()
        return [self.outcomes[index] for index in range(len(self._threads))]


def test_meet__all_ranks_get_the_same_table() -> None:
    port = free_port()
    with takes(at_most=2.0):
        tables = Ranks(*(config(rank, 5, port) for rank in (3, 1, 4, 0, 2)), timeout=10).join()
    expected = [Endpoint(rank, "127.0.0.1", 1_000 + rank) for rank in range(5)]
    assert tables == [expected] * 5


def test_meet__rank_0_may_come_last(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(patience, "QUIET_SECONDS", 0.1)
    port = free_port()
    early = Ranks(config(1, 2, port), timeout=10)
    until(lambda: "Connection refused" in caplog.text)  # rank 1 reports why it waits
    table = meet(config(0, 2, port), Endpoint(0, "127.0.0.1", 1_000), 10)
    assert early.join() == [table]


def test_meet__names_the_ranks_that_are_missing() -> None:
    port = free_port()
    with takes(at_least=TIMEOUT - 0.1, at_most=TIMEOUT + 1):
        zero, two = Ranks(config(0, 4, port), config(2, 4, port)).join()
    assert isinstance(zero, mlt.RendezvousError)
    assert_names(str(zero), "4 ranks", "ranks 1, 3", f"rank 0 at 127.0.0.1:{port}", "1 s")
    assert zero.peer == 1
    assert isinstance(two, mlt.RendezvousError)
    # Rank 2 hears it from rank 0.
    assert_names(str(two), "rank 2: ", f"rank 0 at 127.0.0.1:{port}", "'test'", "ranks 1, 3")


def test_meet__names_the_command_of_a_missing_service() -> None:
    port = free_port()
    zero = Ranks(dataclasses.replace(config(0, 1, port), services=1)).join()[0]
    assert_names(str(zero), "rank 1", "mlt serve")


def test_meet__distinguishes_ranks_that_left_from_ranks_that_never_connected() -> None:
    port = free_port()
    zero = Ranks(config(0, 3, port))
    with Caller(port) as caller:
        assert caller.open()
        caller.announce(rank=1, size=3)
        caller.socket.shutdown(socket.SHUT_WR)
        assert caller.line() == b""  # rank 0 has read all of it, and closed
    assert "rank 2 did not connect" in str(text := zero.join()[0])
    assert "rank 1 connected and left" in str(text)


def test_meet__a_long_wait_reports_once_which_ranks_are_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "QUIET_SECONDS", 0.2)
    port = free_port()
    Ranks(config(0, 3, port), config(2, 3, port), timeout=2.5).join()
    said = [record.getMessage() for record in caplog.records if record.name == "mlt"]
    zero, two = sorted(said)
    assert_names(zero, "rank 0: ", f"127.0.0.1:{port}", "rank 1 of 3", "2.5 s")
    assert_names(two, "rank 2: ", f"rank 0 at 127.0.0.1:{port}", "2.5 s")
    caplog.clear()
    Ranks(config(1, 2, port), timeout=1.0).join()
    (text,) = [record.getMessage() for record in caplog.records if record.name == "mlt"]
    assert_names(text, "rank 1: ", f"rank 0 at 127.0.0.1:{port}", "1 s", "Connection refused")


def test_meet__a_wait_for_a_rank_without_the_secret_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "QUIET_SECONDS", 0.5)
    port = free_port()
    zero = Ranks(config(0, 2, port, secret=JobSecret("the secret of this job")), timeout=1.5)
    Ranks(config(1, 2, port, secret=JobSecret("the secret of another")), timeout=1.0).join()
    zero.join()
    said = [record.getMessage() for record in caplog.records if record.message.startswith("rank 0")]
    assert_names(said[0], "1 connection", "secret")


def test_meet__what_rank_0_rejects_after_its_first_report_is_reported_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "QUIET_SECONDS", 0.2)

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.getMessage().startswith("rank 0")]

    port = free_port()
    zero = Ranks(config(0, 2, port, secret=JobSecret("the secret of this job")), timeout=6)
    until(lambda: len(said()) == 1)
    assert "secret" not in said()[0]
    Ranks(config(1, 2, port, secret=JobSecret("the secret of another")), timeout=1.0).join()
    until(lambda: len(said()) > 1)
    assert_names(said()[1], "rejected", "1 connection", "secret")
    zero.join()


def test_meet__a_short_wait_reports_nothing(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    Ranks(*(config(rank, 3, port) for rank in range(3)), timeout=10).join()
    assert not caplog.records


def test_meet__reports_that_rank_0_is_missing() -> None:
    port = free_port()
    with takes(at_least=TIMEOUT - 0.1, at_most=TIMEOUT + 1):
        (one,) = Ranks(config(1, 2, port)).join()
    assert isinstance(one, mlt.RendezvousError)
    assert_names(str(one), "rank 1: ", f"rank 0 at 127.0.0.1:{port}", "1 s", "Connection refused")


def test_meet__a_taken_port_is_named_at_once() -> None:
    port = free_port()
    refused = pytest.raises(mlt.PortInUseError, match=rf"rank 0: .*127.0.0.1:{port} .*MLT_RENDEZVOUS_PORT.*in use")
    with socket.create_server(("127.0.0.1", port)), takes(at_most=0.5), refused:
        meet(config(0, 2, port), Endpoint(0, "127.0.0.1", 1), TIMEOUT)


def test_meet__an_address_of_another_host_cannot_be_listened_at() -> None:
    # 203.0.113.0/24 is reserved for documentation.
    with pytest.raises(mlt.PortInUseError, match=names("MASTER_ADDR", "rank 0")):
        meet(config(0, 2, free_port(), master_addr="203.0.113.9", secret=SECRET), Endpoint(0, "127.0.0.1", 1), TIMEOUT)


@pytest.mark.parametrize(
    ("other", "cause"),
    [
        ({"job": "other"}, "rank 1 belongs to job 'other'"),
        ({"world_size": 3}, "3 workers and 0 services"),
        ({"services": 1}, "2 workers and 1 service"),
    ],
)
def test_meet__a_rank_of_another_job_is_rejected_and_the_right_one_served(other: dict[str, Any], cause: str) -> None:
    port = free_port()
    zero = Ranks(config(0, 2, port), timeout=10)
    with takes(at_most=1.0):
        (refused,) = Ranks(dataclasses.replace(config(1, 2, port), **other), timeout=10).join()
    assert isinstance(refused, mlt.PeerMismatchError)
    assert cause in str(refused)
    (table,) = Ranks(config(1, 2, port), timeout=10).join()
    assert zero.join() == [table]


def test_meet__other_code_points_are_rejected_with_both_maps() -> None:
    port = free_port()
    policy, own = DscpMap(data=(46, 40), control=48), DscpMap(data=(3, 7), control=31)
    zero = Ranks(config(0, 2, port), timeout=10, dscp=policy)
    (refused,) = Ranks(config(1, 2, port), timeout=10, dscp=own).join()
    assert isinstance(refused, mlt.PeerMismatchError)
    assert_names(str(refused), "rank 1", "(3, 7; control 31)", "rank 0", "(46, 40; control 48)")
    assert "MLT_QOS_POLICY" in str(refused)
    (table,) = Ranks(config(1, 2, port), timeout=10, dscp=policy).join()
    assert zero.join() == [table]


@pytest.mark.parametrize(
    ("different", "facts"),
    [
        ({"world_size": 4}, ("rank 1 expects 4 workers and 0 services", "3 and 0", "WORLD_SIZE")),
        ({"services": 1}, ("rank 1 expects 3 workers and 1 service", "3 and 0", "MLT_SERVICES")),
        ({"job": "other", "secret": SECRET}, ("rank 1 belongs to job 'other'", "job 'test'", "MLT_JOB")),
        ({"paths": 2}, ("rank 1 has 2 paths, rank 0 has 1", "MLT_PATHS")),
    ],
)
def test_meet__a_rank_whose_settings_differ_ends_the_start_at_every_rank(
    different: dict[str, Any], facts: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    secret = {"secret": SECRET} if "secret" in different else {}
    paths = different.get("paths", 1)
    changes = {name: value for name, value in different.items() if name != "paths"}
    others = Ranks(config(0, 3, port, **secret), config(2, 3, port, **secret), timeout=40, paths=1)
    with takes(at_most=10.0):
        wrong = Ranks(dataclasses.replace(config(1, 3, port), **changes), timeout=40, paths=paths).join()
        outcomes = wrong + others.join()
    for outcome in outcomes:
        assert isinstance(outcome, mlt.PeerMismatchError)
        assert_names(str(outcome), *facts)
    assert any("refused" in record.getMessage() for record in caplog.records)


def test_meet__another_job_without_a_secret_ends_the_start_at_every_rank_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rendezvous, "OTHER_JOB_SECONDS", 1.0)
    port = free_port()
    others = Ranks(config(0, 3, port), config(2, 3, port), timeout=40)
    with takes(at_most=10.0):
        outcomes = Ranks(dataclasses.replace(config(1, 3, port), job="other"), timeout=40).join() + others.join()
    for outcome in outcomes:
        assert isinstance(outcome, mlt.PeerMismatchError)
        assert_names(str(outcome), "rank 1 belongs to job 'other'", "job 'test'", "MLT_JOB")
    # Rank 0 logs it at once.
    assert_names(caplog.records[0].getMessage(), "rank 0: refused", "rank 1 belongs to job 'other'")


@pytest.mark.parametrize("dscp", [[], 7, ["x"], {"a": 1}, None])
def test_meet__code_points_that_are_none_are_no_announcement(dscp: Any) -> None:
    port = free_port()
    zero = Ranks(config(0, 2, port), dscp=DscpMap(data=(3,), control=31))
    with Caller(port) as caller:
        assert caller.open()
        caller.announce(dscp=dscp)
        assert_names(caller.content()["text"], "rank of mlt")
    zero.join()


def test_meet__two_processes_with_one_rank_are_told() -> None:
    port = free_port()
    outcomes = Ranks(config(0, 3, port), config(1, 3, port), config(1, 3, port)).join()
    mismatches = [one for one in outcomes if isinstance(one, mlt.PeerMismatchError)]
    assert len(mismatches) == 1
    assert "rank 1 was already announced" in str(mismatches[0])
    assert "refused: rank 1 was already announced" in str(outcomes[0])


def test_meet__another_version_is_rejected() -> None:
    port = free_port()
    zero = Ranks(config(0, 2, port))
    hello = {"mlt_rendezvous": VERSION + 1, "job": "test", "rank": 1, "size": 2, "services": 0, "host": "h", "port": 1}
    # Releases before this one said everything in their first line, and read "error" and "text".
    answer = call(port, json.dumps(hello).encode() + b"\n")
    assert json.loads(answer) == {
        "mlt_rendezvous": VERSION,
        "error": "peer_mismatch",
        "text": f"rendezvous version {VERSION} is spoken here, not {VERSION + 1}: install the same mlt release on all "
        "machines",
    }
    assert "rendezvous version" in str(zero.join()[0])


def call(port: int, data: bytes) -> bytes:
    """Say ``data`` to rank 0 once it listens, and return its answer."""
    with Caller(port) as caller:
        caller.say(data)
        return caller.line()


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"mlt_rendezvous":3}\n', b"\xff" * 9_000])
def test_meet__unknown_clients_are_rejected(noise: bytes) -> None:
    port = free_port()
    zero = Ranks(config(0, 2, port), timeout=10)
    assert call(port, noise) == b""
    (table,) = Ranks(config(1, 2, port), timeout=10).join()
    assert zero.join() == [table]


def test_meet__a_silent_caller_delays_no_other() -> None:
    port = free_port()
    zero = Ranks(config(0, 2, port), timeout=10)
    with connect(port), takes(at_most=1.0):
        (table,) = Ranks(config(1, 2, port), timeout=10).join()
        assert zero.join() == [table]


def proving(content: dict[str, Any] | str) -> tuple[int, Callable[[], None]]:
    """A server that proves itself to one caller, and says ``content``; its port, and a function that ends it."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection, connection.makefile("rwb") as stream:
            prover = secret.Prover(None, "rendezvous", role="host")
            assert prover.meet(json.loads(stream.readline())["nonce"])
            opening = {"mlt_rendezvous": VERSION, "nonce": prover.nonce, "proof": prover.prove()}
            stream.write(json.dumps(opening).encode() + b"\n")
            stream.flush()
            stream.readline()
            text = content if isinstance(content, str) else json.dumps(content)
            stream.write(json.dumps({"content": text, "proof": prover.prove(text)}).encode() + b"\n")

    thread = threading.Thread(target=serve)
    thread.start()

    def end() -> None:
        thread.join()
        server.close()

    return server.getsockname()[1], end


def answering(reply: bytes) -> tuple[int, Callable[[], None]]:
    """A server that answers every caller with ``reply``; its port, and a function that ends it."""
    server = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.recv(4_096)
                connection.sendall(reply)

    threading.Thread(target=serve, daemon=True).start()

    def end() -> None:
        stop.set()
        server.shutdown(socket.SHUT_RDWR)
        server.close()

    return server.getsockname()[1], end


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b'{"ranks":7}\n', b"x" * 20_000])
def test_meet__whatever_else_listens_there_is_reported_in_time(reply: bytes) -> None:
    port, end = answering(reply)
    try:
        with takes(at_most=TIMEOUT + 1), pytest.raises(mlt.RendezvousError, match=names("rank 1", port)):
            meet(config(1, 2, port), Endpoint(1, "127.0.0.1", 1), TIMEOUT)
    finally:
        end()


@pytest.mark.parametrize("table", ["[" * 5_000, "[]", "7", '{"ranks": 7}'])
def test_meet__what_is_no_table_is_rejected(table: str) -> None:
    port, end = proving(table)
    try:
        with pytest.raises(mlt.RendezvousError, match=names("rank 1", port)):
            meet(config(1, 2, port), Endpoint(1, "127.0.0.1", 1), TIMEOUT)
    finally:
        end()


def test_meet__a_table_of_other_ranks_is_rejected() -> None:
    port, end = proving({"ranks": [[0, "127.0.0.1", 1]]})
    try:
        with pytest.raises(mlt.PeerMismatchError, match=names("rank 1", "rank 0", "0 to 1")):
            meet(config(1, 2, port), Endpoint(1, "127.0.0.1", 1), TIMEOUT)
    finally:
        end()


def own_machine_is(monkeypatch: pytest.MonkeyPatch, *own: str) -> None:
    """Callers from any other address than these count as other machines."""
    monkeypatch.setattr(rendezvous.interfaces, "is_own_address", lambda address: address in own)


def test_meet__loopback_is_not_announced_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    own_machine_is(monkeypatch, "127.0.0.1")
    port = free_port()
    zero = Ranks(config(0, 3, port, host="10.0.0.1"), timeout=2)
    # 127.0.0.2 stands for the other machine, from which rank 2 calls.
    with Caller(port, source="127.0.0.2") as caller:
        assert caller.open()
        caller.announce(rank=2, size=3, host="127.0.0.1")
        text = caller.content()["text"]
    assert_names(text, "rank 2 announces 127.0.0.1", "127.0.0.2:")
    assert "MLT_INTERFACE" in text
    # Rank 0 itself announced loopback here (Ranks does).
    with Caller(port, source="127.0.0.2") as caller:
        assert caller.open()
        caller.announce(rank=2, size=3, host="10.0.0.2")
        text = caller.content()["text"]
    assert_names(text, "rank 0 announces 127.0.0.1", "MASTER_ADDR is 127.0.0.1", "rank 2", "127.0.0.2:")
    assert "refused: rank 2 announces 127.0.0.1" in str(zero.join()[0])


def test_meet__a_hosts_own_name_that_is_loopback_there_is_reached_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian: "node" is 127.0.1.1 to itself; rank 0 listens at its address for others as well (127.0.0.3 here)."""
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *rest, **more: resolve("127.0.1.1" if host == "node" else host, *rest, **more),
    )
    monkeypatch.setattr(rendezvous.interfaces, "machine_address", lambda: "127.0.0.3")
    port = free_port()
    zero, here, there = Ranks(
        config(0, 3, port, master_addr="node", secret=SECRET),
        config(1, 3, port, master_addr="node", secret=SECRET),
        config(2, 3, port, master_addr="127.0.0.3", secret=SECRET),
        timeout=10,
    ).join()
    assert zero == here == there == [Endpoint(rank, "127.0.0.1", 1_000 + rank) for rank in range(3)]


def test_meet__a_rank_that_mistakes_itself_for_rank_0s_host_gets_an_error() -> None:
    port = free_port()
    (one,) = Ranks(config(1, 2, port, master_addr="localhost")).join()
    assert_names(str(one), "localhost", "rank 0")
    (zero,) = Ranks(config(0, 2, port, master_addr="localhost")).join()
    assert "set MASTER_ADDR" in str(zero)


def from_environment(pipe: Connection, rank: int, port: int) -> None:
    """A rank that knows nothing but what torchrun would have set."""
    for name in [name for name in os.environ if name.startswith("MLT_")]:
        del os.environ[name]
    os.environ.update(RANK=str(rank), WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port - 1000))
    with mlt.Context() as context:
        right, left = (rank + 1) % 3, (rank - 1) % 3
        into = bytearray(1)
        receive = context.post_recv(into, from_=left)
        context.post_send(bytes([rank]), to=right).wait(10)
        receive.wait(10)
        pipe.send((context.rank, context.size, into[0]))


def test_context__the_four_variables_of_torchrun_are_enough() -> None:
    with process_job(from_environment, 3) as ranks:
        assert [one.hear() for one in ranks] == [(0, 3, 2), (1, 3, 0), (2, 3, 1)]


def test_context__reports_the_error_and_leaves_nothing_open() -> None:
    port = free_port()
    with takes(at_most=3.0), pytest.raises(mlt.RendezvousError, match="rank 1"):
        mlt.Context(0, 2, master_addr="127.0.0.1", rendezvous_port=port, connect_timeout=TIMEOUT)
    with socket.create_server(("127.0.0.1", port)):
        pass
    with pytest.raises(mlt.ConfigError, match=r"rank 0: host .*'nonsense'"):
        mlt.Context(0, 1, host="nonsense")


def differs_in_paths(pipe: Connection, rank: int, port: int) -> None:
    try:
        mlt.Context(rank, 2, master_addr="127.0.0.1", rendezvous_port=port, paths=1 + rank, connect_timeout=40)
    except mlt.PeerMismatchError as error:
        pipe.send(str(error))


def test_context__another_number_of_paths_is_told_at_both_ranks_at_once() -> None:
    with process_job(differs_in_paths, 2) as ranks, takes(at_most=10.0):
        for one in ranks:
            assert_names(one.hear(), f"rank {one.rank}: ", "rank 1 has 2 paths, rank 0 has 1", "MLT_PATHS")


def test_context__over_ipv6() -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError as error:
            pytest.skip(f"no IPv6 here: {error}")
    for options in (
        {"master_addr": "::1"},
        {"master_addr": "::1", "host": "::1"},
        {"master_addr": "::1", "interface": "lo"},
    ):
        with local_job(2, **options) as contexts:
            sent = np.arange(200_000, dtype=np.float32)
            into = np.zeros_like(sent)
            exchange(contexts[0], contexts[1], sent, into)
            assert (into == sent).all()


def test_context__interface_of_loopback_by_name_and_by_network() -> None:
    for interface in ("lo", "=lo", "127.0.0.0/8", "^nothing"):
        with local_job(2, interface=interface) as contexts:
            into = np.zeros(1_000, np.float32)
            exchange(contexts[0], contexts[1], np.ones(1_000, np.float32), into)
            assert into.all()


def test_context__a_wrong_interface_lists_the_candidates_and_leaves_nothing_open() -> None:
    with (
        takes(at_most=1.0),
        pytest.raises(mlt.ConfigError, match=r"^rank 0: interface .*'wlan9'.*candidates: .*lo 127"),
    ):
        mlt.Context(0, 2, master_addr="127.0.0.1", rendezvous_port=free_port(), interface="wlan9")


def test_join__a_name_that_comes_to_mean_another_host_is_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a secret nothing of the job goes to what the name means by now."""
    resolve, is_loopback, asked = socket.getaddrinfo, interfaces.is_loopback, list[str]()
    elsewhere = "127.0.0.66"  # stands for another host

    def answer(host: str, *words: Any, **more: Any) -> Any:
        if host == "rank0.test":
            asked.append(host)
            host = "127.0.0.1" if len(asked) == 1 else elsewhere
        return resolve(host, *words, **more)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    monkeypatch.setattr(interfaces, "is_loopback", lambda address: address != elsewhere and is_loopback(address))
    with socket.create_server((elsewhere, 0)) as listener:
        listener.settimeout(0.1)
        one = config(1, 2, listener.getsockname()[1], master_addr="rank0.test")
        with pytest.raises(
            mlt.ConfigError, match=rf"rank 1 would announce itself at {elsewhere}.*without a job secret"
        ):
            meet(one, Endpoint(1, "127.0.0.1", 5), 2.0)
        with pytest.raises(TimeoutError):
            listener.accept()
    assert len(asked) == 2


def test_join__a_moment_without_dns_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve, asked, port = socket.getaddrinfo, list[str](), free_port()

    def answer(host: str, *words: Any, **more: Any) -> Any:
        if host == "rank0.test":
            asked.append(host)
            if len(asked) == 2:
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
            host = "127.0.0.1"
        return resolve(host, *words, **more)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    early = Ranks(config(1, 2, port, master_addr="rank0.test"), timeout=10)
    until(lambda: len(asked) >= 3, 5)
    table = meet(config(0, 2, port), Endpoint(0, "127.0.0.1", 1_000), 10)
    assert early.join() == [table]
