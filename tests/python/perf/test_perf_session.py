"""A server and a client, and the ranks of a job, as processes on loopback: what they measure and how they fail."""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checks import assert_names, names, until
from perf_runs import agents_of, perf, read, running

from mlt import __version__
from mlt._shared import patience
from mlt._shared.json_lines import object_of
from mlt._shared.link import Link, LinkClosedError, Message
from mlt._shared.ports import free_port
from mlt.errors import ConfigError, MltError
from mlt.job import interfaces
from mlt.job.handshake_client import proved
from mlt.job.handshake_server import SPARE_CALLERS, HandshakeServer
from mlt.job.secret import JobSecret, Prover
from mlt.perf import conductor, remote
from mlt.perf.gathering import Gathering
from mlt.perf.options import Options
from mlt.perf.patterns import read_case
from mlt.perf.problem import BadOptionError, PerfError
from mlt.perf.remote import PROTOCOL, SERVICE, Follower, Host, check_hosts, hello, read_host
from mlt.perf.session import run_job
from mlt.perf.transports import Place

needs_ipv6 = pytest.mark.skipif(not interfaces.is_own_address("::1"), reason="no IPv6 here")
HOST = {"rank": 1, "address": "127.0.0.1", "interface": "lo", "mtu": 65_536}


@contextlib.contextmanager
def server(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``mlt perf --serve`` that listens, and its port."""
    port = str(free_port())
    with running("--serve", "--port", port, *words) as process:
        assert process.stderr is not None
        assert f"port {port}" in process.stderr.readline()
        yield process, port


def caller_of(port: int) -> socket.socket | None:
    """A connection there, once somebody listens."""
    try:
        return socket.create_connection(("127.0.0.1", port), timeout=10)
    except ConnectionRefusedError:
        return None


def proved_link(connection: socket.socket, secret: str | None = None) -> tuple[Link, Prover]:
    """A client that proved itself there, as far as it knows the secret."""
    link = Link(connection)
    return link, remote.handshake(link, None if secret is None else JobSecret(secret), "what listens there")


def answered(port: int, said: Message) -> Message:
    """The reply of a server there to a client that proved itself."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        link, prover = proved_link(connection)
        link.send(proved(prover, said))
        answer = link.receive(timeout=20)
        assert prover.check(answer["proof"], answer["content"])
        return object_of(answer["content"])


def ended(port: int, said: bytes) -> bytes:
    """The bytes that a server there sends to a client that proves nothing, until it hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(said)
        found = b""
        while piece := connection.recv(65_536):
            found += piece
        return found


def test_serve__one_client_after_another(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with server() as (process, port):
        for size in (32_000, 64_000):
            done = perf(
                "127.0.0.1", "--port", port, "--size", f"{size}B", "--rounds", "10", "--compare", "tcp,raw-udp",
                "--json", str(out),
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            found = read(out)
            assert found["mode"] == "server and client"
            assert [host["rank"] for host in found["hosts"]] == [0, 1]
            assert [(row["transport"], row["bytes"]) for row in found["results"]] == [
                (peer, size) for peer in ("mlt", "tcp", "raw-udp")
            ]
        assert process.poll() is None
        assert not agents_of(process.pid)


def test_serve__once_ends_after_a_run() -> None:
    with server("--once") as (process, port):
        assert perf("127.0.0.1", "--port", port, "--size", "8KB", "--rounds", "3").returncode == 0
        assert process.wait(20) == 0


def test_serve__names_transports_that_need_one_host() -> None:
    with server("--once") as (process, port):
        done = perf("127.0.0.1", "--port", port, "--size", "8KB", "--rounds", "2", "--compare", "mpi")
        assert done.returncode == 1
        assert "mpi cannot be compared with" in done.stderr
        assert "on one host only (--local)" in done.stderr  # to install it would not help
        # The server learns why, cleans up and says so.
        _, error = process.communicate(timeout=20)
        assert process.returncode == 1
        assert "mpi cannot be compared with" in error


def test_serve__a_second_client_is_turned_away() -> None:
    with server() as (process, port), running("127.0.0.1", "--port", port, "--size", "1MiB", "--rounds", "100000"):
        until(lambda: agents_of(process.pid))
        done = perf("127.0.0.1", "--port", port, "--size", "8KB", "--rounds", "2")
        assert done.returncode == 1
        assert "busy with another client" in done.stderr


def test_serve__a_client_that_dies_is_survived() -> None:
    with server() as (process, port):
        with running("127.0.0.1", "--port", port, "--size", "1MiB", "--rounds", "100000") as client:
            jobs = until(lambda: agents_of(process.pid))
            client.kill()
            until(lambda: not any(Path(f"/proc/{agent}/exe").exists() for agent in jobs))
        assert process.stderr is not None
        assert "failed" in process.stderr.readline()
        assert perf("127.0.0.1", "--port", port, "--size", "8KB", "--rounds", "2").returncode == 0


def test_client__a_server_that_dies_is_named() -> None:
    with (
        server() as (process, port),
        running("127.0.0.1", "--port", port, "--size", "1MiB", "--rounds", "100000") as client,
    ):
        until(lambda: agents_of(process.pid))
        until(lambda: agents_of(client.pid))
        process.kill()
        _, error = client.communicate(timeout=30)
        assert client.returncode == 1
        assert "rank 0" in error
        assert "Traceback" not in error


def test_serve__port_in_use_is_named() -> None:
    with socket.create_server(("", 0)) as taken:
        done = perf("--serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert_names(done.stderr, "in use", "--port")


def test_client__no_server() -> None:
    done = perf("127.0.0.1", "--port", str(free_port()))
    assert done.returncode == 1
    assert "no mlt perf at 127.0.0.1" in done.stderr
    assert "mlt perf --serve" in done.stderr


def test_client__something_else_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with running("127.0.0.1", "--port", str(port)) as client:
            connection = other.accept()[0]
            connection.sendall(b"220 mail.example ESMTP\r\n")
            _, error = client.communicate(timeout=20)
            connection.close()
    assert client.returncode == 1
    assert "is not mlt perf" in error


def test_serve__another_version_is_rejected() -> None:
    with server() as (_, port):
        answer = answered(int(port), hello() | {"version": "9.9.9"})
        before = object_of(ended(int(port), b'{"mlt_perf":2,"version":"9.9.9"}\n'))
    assert_names(before["text"], f"version {PROTOCOL}", "not 2")
    assert "9.9.9" in answer["refused"]
    assert __version__ in answer["refused"]
    assert "install the same version" in answer["refused"]


@pytest.mark.parametrize(
    "content",
    [
        {"options": {"rounds": "many"}, "host": {"rank": 1, "address": "127.0.0.1", "interface": "lo", "mtu": 65536}},
        {
            "options": {"code": "import os"},
            "host": {"rank": 1, "address": "127.0.0.1", "interface": "lo", "mtu": 65536},
        },
        {"options": {}, "host": {"rank": "first"}},
        {"options": {"ranks": 3, "pattern": "incast"}, "host": {"rank": 1, "address": "", "interface": "", "mtu": 1}},
        {"options": {}, "job": 3},
        {"options": 7},
        {"options": {"pattern": "x" * 7_000}, "host": HOST},
        {"options": {"timeout": "x" * 7_000}, "host": HOST},
        {"options": {"sizes": [8] * 1_000}, "host": HOST},
        {"options": {}, "host": HOST | {"address": "192.0.2.1"}},
    ],
)
def test_serve__hostile_clients_are_rejected_and_survived(content: dict[str, object]) -> None:
    with server() as (process, port):
        answer = answered(int(port), hello(**content))
        assert "refused" in answer
        assert len(answer["refused"]) < 500
        assert perf("127.0.0.1", "--port", port, "--size", "8KB", "--rounds", "2").returncode == 0
        assert process.poll() is None


def test_protocol__is_in_the_hello() -> None:
    assert hello(rank=1) == {"mlt_perf": PROTOCOL, "version": __version__, "rank": 1}


def test_check_hosts__names_both_sides_of_an_mtu_mismatch() -> None:
    hosts = [Host(0, "10.0.0.1", "eth0", 9000), Host(1, "10.0.0.2", "eth1", 1500)]
    with pytest.raises(PerfError) as caught:
        check_hosts(hosts, Options())
    for part in ("rank 0 (eth0 10.0.0.1, MTU 9000)", "rank 1 (eth1 10.0.0.2, MTU 1500)", "--segment-bytes 1432"):
        assert part in str(caught.value)
    with pytest.raises(PerfError):
        check_hosts(hosts, Options(segment_bytes=1440))
    check_hosts(hosts, Options(segment_bytes=1432))
    check_hosts([hosts[0], Host(1, "10.0.0.2", "eth1", 9000)], Options())


def job(port: int, rank: int, ranks: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def test_job__rank_0_prints_and_the_others_follow(tmp_path: Path) -> None:
    port, out = free_port(), tmp_path / "out.json"
    words = ("--pattern", "allreduce", "--size", "24KB", "--rounds", "6", "--compare", "tcp", "--json", str(out))
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(running(*words, **job(port, rank, 3))) for rank in (1, 2, 0)]
        texts = [process.communicate(timeout=60) for process in ranks]
        assert [process.returncode for process in ranks] == [0, 0, 0], texts
    assert "allreduce of" in texts[2][0]
    assert texts[0][0] == texts[1][0] == ""
    found = read(out)
    assert found["mode"] == "job"
    assert len(found["hosts"]) == 3


def test_job__a_rank_that_never_comes_is_named() -> None:
    done = perf("--pattern", "allreduce", "--timeout", "1", **job(free_port(), 0, 2))
    assert done.returncode == 1
    assert "rank 1 of 2 did not connect" in done.stderr


def test_job__no_rank_0() -> None:
    done = perf("--pattern", "allreduce", "--timeout", "1", **job(free_port(), 1, 2))
    assert done.returncode == 1
    assert "rank 0 does not reply" in done.stderr


def start_of_job(number: int, port: int, timeout: float, errors: list[str]) -> threading.Thread:
    """One of 3 ranks in a thread; ``errors`` gets its error."""

    def run() -> None:
        options = Options(pattern="allreduce", ranks=3, timeout=timeout)
        try:
            run_job(options, job(port, number, 3), None, lambda *_: None)
        except MltError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_job__a_long_start_says_at_every_rank_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "QUIET_SECONDS", 0.2)
    port, errors = free_port(offsets=(1000, 2000)), list[str]()
    at = f"127.0.0.1:{port + 2000}"

    def lines(number: int) -> list[str]:
        return [text for one in caplog.records if (text := one.getMessage()).startswith(f"rank {number}: ")]

    start_of_job(1, port, 1.5, errors).join()
    assert_names(lines(1)[0], "still waiting for rank 0", at, "1.5 s", "MASTER_PORT")
    for thread in (start_of_job(0, port, 5.0, errors), start_of_job(1, port, 60.0, errors)):
        thread.join()
    assert_names(lines(0)[-1], "still waiting at", at, "rank 2 of 3", "5 s")
    assert any(f"rank 0 at {at} still waits for other ranks" in text for text in lines(1))
    assert ["rank 2 of 3 did not connect" in error for error in errors] == [False, True, True]


def test_run__an_agent_that_does_not_start_is_named_before_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "QUIET_SECONDS", 0.2)
    monkeypatch.setattr(conductor, "START_SECONDS", 1.0)
    silent: Any = SimpleNamespace(ranks=(0, 1), start=lambda _: None, send=lambda *_: None)
    with pytest.raises(PerfError, match=r"rank 0, 1 did not reply within 1 s \(ready\)"):
        conductor.Conductor(Options(), [silent], queue.SimpleQueue(), lambda *_: None).run()
    (record,) = caplog.records
    assert_names(record.getMessage(), "still waiting for mlt of ranks 0, 1 (ready", "1 s")


def test_job__port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        environment = job(free_port(), 0, 2) | {"MLT_PERF_PORT": str(taken.getsockname()[1])}
        done = perf("--pattern", "allreduce", "--timeout", "1", **environment)
    assert done.returncode == 1
    assert "in use" in done.stderr
    assert "MLT_PERF_PORT" in done.stderr


def test_job__unknown_clients_are_rejected_and_startup_continues(tmp_path: Path) -> None:
    port, at, out = free_port(), free_port(), tmp_path / "out.json"
    words = ("--pattern", "allreduce", "--size", "8KB", "--rounds", "3", "--json", str(out))

    def environment(rank: int) -> dict[str, str]:
        return job(port, rank, 2) | {"MLT_PERF_PORT": str(at)}

    with contextlib.ExitStack() as stack:
        leader = stack.enter_context(running(*words, **environment(0)))
        # One that never says a word, one of another program, and ranks that are none of this job's.
        stack.enter_context(until(lambda: caller_of(at)))
        ended(at, b"GET / HTTP/1.1\r\n\r\n")
        for said in (
            hello(host={"rank": 7}),
            hello(host=HOST | {"rank": float("inf")}),
            hello(host=HOST | {"rank": 2}),
        ):
            assert "refused" in answered(at, said)
        follower = stack.enter_context(running(*words, **environment(1)))
        texts = [process.communicate(timeout=60) for process in (leader, follower)]
        assert [leader.returncode, follower.returncode] == [0, 0], texts
    assert_names(texts[0][1], "rejected", "127.0.0.1")
    assert [host["rank"] for host in read(out)["hosts"]] == [0, 1]


def test_job__names_rejected_clients_and_missing_ranks() -> None:
    port, at = free_port(), free_port()
    words = ("--pattern", "allreduce", "--timeout", "8")
    with running(*words, **job(port, 0, 2), MLT_PERF_PORT=str(at)) as leader:
        until(lambda: caller_of(at)).close()
        answered(at, hello(host=HOST) | {"version": "9.9.9"})
        _, error = leader.communicate(timeout=40)
    assert leader.returncode == 1
    assert "rank 1 of 2 did not connect" in error
    assert "runs mlt 9.9.9" in error.partition("did not connect")[2]


def test_job__a_rank_that_is_hung_up_on_comes_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        at = listener.getsockname()[1]
        with running("--pattern", "allreduce", **job(free_port(), 1, 2), MLT_PERF_PORT=str(at)) as rank:
            listener.accept()[0].close()
            listener.setblocking(False)
            handshakes = HandshakeServer(SERVICE, PROTOCOL, None, listeners=[listener])
            (caller,) = handshakes.wait(20)
            handshakes.close()
            assert read_host(remote.read_hello(caller.content, "the rank"), "the rank").rank == 1
            remote.refuse(Link(caller.connection), caller.prover, "enough was seen")
            _, error = rank.communicate(timeout=20)
    assert "enough was seen" in error


def test_serve__an_idle_caller_holds_no_client_up() -> None:
    with server("--once") as (_, port), contextlib.ExitStack() as idle:
        for _ in range(100):
            idle.enter_context(socket.create_connection(("127.0.0.1", int(port)), timeout=10))
        done = perf("127.0.0.1", "--port", port, "--size", "32000B", "--rounds", "5")
        assert done.returncode == 0, done.stderr


def test_serve__an_unknown_client_cannot_forge_a_line() -> None:
    with server() as (process, port):
        answered(int(port), hello() | {"version": "9\x1b[2J\nmlt perf: a run with 192.0.2.1 is done"})
        assert process.stderr is not None
        said = [process.stderr.readline()]
    assert "runs mlt 9?[2J?mlt perf: a run with 192.0.2.1 is done (perf" in said[0]


def gathered(listener: socket.socket, said: list[str]) -> Gathering:
    return Gathering([listener], Host(**HOST | {"rank": 0}), 2, None, said.append)


def rank_1(at: int) -> threading.Thread:
    """A rank that comes there."""

    def come() -> None:
        link, prover = proved_link(socket.create_connection(("127.0.0.1", at), timeout=10))
        link.send(proved(prover, hello(host=HOST)))
        with contextlib.suppress(LinkClosedError):
            link.receive(timeout=20)

    thread = threading.Thread(target=come)
    thread.start()
    return thread


def test_gathering__silent_callers_do_not_keep_a_rank_out() -> None:
    with contextlib.ExitStack() as stack:
        listener = socket.create_server(("127.0.0.1", 0), backlog=SPARE_CALLERS + 8)
        at = listener.getsockname()[1]
        gathering = stack.enter_context(gathered(listener, []))
        for _ in range(SPARE_CALLERS + 2):
            stack.enter_context(socket.create_connection(("127.0.0.1", at)))
        rank = rank_1(at)
        gathering.run(4.0)
        assert sorted(gathering.hosts) == [0, 1]
        gathering.members[1].link.close()
        rank.join()


def deaf(at: int, said: Message) -> socket.socket:
    """A client that proves itself and reads nothing of the answer, with the smallest buffers that there are."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1_024)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 88)
    connection.connect(("127.0.0.1", at))
    link, prover = proved_link(connection)
    link.send(proved(prover, said))
    return connection


def test_gathering__a_client_that_does_not_read_delays_no_other() -> None:
    said: list[str] = []
    with contextlib.ExitStack() as stack:
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        at = listener.getsockname()[1]
        gathering = stack.enter_context(gathered(listener, said))
        runs = threading.Thread(target=gathering.run, args=(20.0,))
        began = time.monotonic()
        runs.start()
        for _ in range(4):
            stack.enter_context(deaf(at, hello() | {"version": "\x80" * 1_000}))
        rank = rank_1(at)
        runs.join()
        assert time.monotonic() - began < 4.0
        assert sorted(gathering.hosts) == [0, 1]
        gathering.members[1].link.close()
        rank.join()
    assert len([text for text in said if "runs mlt ????" in text]) == 4
    assert all(len(text) < 400 for text in said)


def test_gathering__a_client_without_the_secret_is_counted_and_shown() -> None:
    said: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    at = listener.getsockname()[1]
    own = Host(**HOST | {"rank": 0})
    with Gathering([listener], own, 2, JobSecret("sixteen bytes or more"), said.append) as gathering:
        failures: list[str] = []

        def run() -> None:
            try:
                gathering.run(1.5)
            except PerfError as error:
                failures.append(str(error))

        runs = threading.Thread(target=run)
        runs.start()
        with (
            pytest.raises(PerfError, match=names("job's secret", "another one")),
            socket.create_connection(("127.0.0.1", at)) as connection,
        ):
            proved_link(connection, "another one of sixteen bytes")
        runs.join()
    assert "connections rejected: 1 unproved" in failures[0]
    assert any("rejected so far: 1 unproved" in text for text in said)


@pytest.mark.parametrize(
    "wrong",
    [
        *({field: value} for field in ("rank", "mtu") for value in (float("inf"), float("nan"), 1.5, True, "1", -1)),
        {"rank": 1 << 16},
        {"mtu": 0},
        {"mtu": 1 << 40},
        {"address": 1},
        {"address": "nowhere"},
        {"interface": None},
        {"more": 1},
    ],
)
def test_read_host__impossible_values_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(PerfError, match="rank and address"):
        read_host(hello(host=HOST | wrong), "a client")


def test_job__a_rank_that_left_may_come_again() -> None:
    port, at = free_port(), free_port()
    words = ("--pattern", "allreduce", "--size", "8KB", "--rounds", "3")
    with running(*words, **job(port, 0, 3), MLT_PERF_PORT=str(at)) as leader:
        with until(lambda: caller_of(at)) as gone:
            link, prover = proved_link(gone)
            link.send(proved(prover, hello(host=HOST)))
        with running(*words, **job(port, 2, 3), MLT_PERF_PORT=str(at)) as other:
            done = perf(*words, **job(port, 1, 3), MLT_PERF_PORT=str(at))
            _, error = leader.communicate(timeout=60)
            other.communicate(timeout=60)
    assert (leader.returncode, other.returncode, done.returncode) == (0, 0, 0), (error, done.stderr)


def test_serve__unknown_clients_do_not_end_it() -> None:
    with server("--once") as (process, port):
        assert ended(int(port), b"GET / HTTP/1.1\r\n\r\n") == b""
        assert perf("127.0.0.1", "--port", port, "--size", "8KB", "--rounds", "2").returncode == 0
        assert process.wait(20) == 0


OPTIONS = Options()


def follower(options: Options = OPTIONS, peer_host: str | None = None, **admission: Any) -> Follower:
    return Follower(Place(1, 2, "127.0.0.1", "lo", 65_536, "job"), options, peer_host=peer_host, **admission)


def following(
    monkeypatch: pytest.MonkeyPatch, silence: float, options: Options = OPTIONS
) -> tuple[Link, threading.Thread, list[str]]:
    """``follow`` in a thread, the other end of its link, and how it ended."""
    monkeypatch.setattr(remote, "SILENCE_SECONDS", silence)
    here, there = socket.socketpair()
    ends: list[str] = []

    def run() -> None:
        try:
            remote.follow(Link(there), follower(options))
            ends.append("")
        except MltError as error:
            ends.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    return Link(here), thread, ends


def test_follow__a_silent_leader_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    link, thread, ends = following(monkeypatch, 0.3)
    thread.join(20)
    link.close()
    assert len(ends) == 1
    assert_names(ends[0], "rank 1: ", "0.3 s", "ended")
    assert "mlt-perf-pump" not in {one.name for one in threading.enumerate()}


def test_follow__a_leader_sends_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "ALIVE_SECONDS", 0.05)
    link, thread, ends = following(monkeypatch, 2.0)  # a busy machine may stop a thread for half a second
    agents = remote.RemoteAgents(link, Host(1, "127.0.0.1", "lo", 65_536), queue.SimpleQueue())
    time.sleep(3.0)  # longer than silence is borne
    assert thread.is_alive()
    agents.end(None)
    thread.join(20)
    agents.close()
    assert ends == [""]
    assert "mlt-perf-pump" not in {one.name for one in threading.enumerate()}


@needs_ipv6
def test_serve__over_ipv6(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with server() as (_, port):
        done = perf(
            "::1", "--port", port, "--size", "32KB", "--rounds", "3", "--compare", "tcp,raw-udp", "--json", str(out)
        )
    assert done.returncode == 0, done.stderr
    assert [host["address"] for host in read(out)["hosts"]] == ["::1", "::1"]


@needs_ipv6
def test_job__over_ipv6(tmp_path: Path) -> None:
    port, out = free_port(), tmp_path / "out.json"
    words = ("--pattern", "allreduce", "--size", "24KB", "--rounds", "3", "--compare", "tcp", "--json", str(out))
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(running(*words, **job(port, rank, 2) | {"MASTER_ADDR": "::1"})) for rank in (1, 0)]
        texts = [process.communicate(timeout=60) for process in ranks]
        assert [process.returncode for process in ranks] == [0, 0], texts
    assert [host["address"] for host in read(out)["hosts"]] == ["::1", "::1"]


@needs_ipv6
def test_local__an_interface_with_ipv6_alone(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = perf("--local", "--interface", "::1/128", "--size", "8KB", "--rounds", "2", "--compare", "tcp,raw-udp,gloo",
                "--json", str(out))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {host["address"] for host in read(out)["hosts"]} == {"::1"}


def test_follower__sends_to_the_client_and_to_no_third_host() -> None:
    one = follower(peer_host="127.0.0.5")
    assert one.table([["192.0.2.1", 9], ["192.0.2.2", 10]]) == [["127.0.0.5", 9], ["127.0.0.1", 10]]
    for wrong in (
        None,
        [],
        [["127.0.0.1", 9]],
        [["127.0.0.1", 9]] * 3,
        [["127.0.0.1", 9], ["127.0.0.1", 0]],
        [["127.0.0.1", 9], [7, 9]],
        [["127.0.0.1", True], ["127.0.0.1", 9]],
        [["127.0.0.1", 9, 9], ["127.0.0.1", 9]],
    ):
        with pytest.raises(BadOptionError):
            one.table(wrong)


def test_follower__in_a_job_without_a_secret_sends_to_loopback_only() -> None:
    table = [["203.0.113.9", 9], ["127.0.0.1", 10]]
    with pytest.raises(ConfigError, match=names("rank 1", "rank 0 at 203.0.113.9", "MLT_JOB_SECRET")):
        follower().table(table)
    with pytest.raises(BadOptionError, match=names("rank 0", "some.host")):
        follower().table([["some.host", 9], ["127.0.0.1", 10]])
    assert follower(secret=JobSecret("sixteen bytes or more")).table(table) == table


@pytest.mark.parametrize(
    "wrong",
    [
        {"do": "start", "transport": "tcp"},
        {"do": "start", "transport": "os"},
        {"do": "start", "transport": ["mlt"]},
        {"do": "tell", "rank": 1, "transport": "mlt", "message": {"do": "open", "table": [["::", 1]]}},
        {"do": "x" * 5_000},
        {},
    ],
)
def test_follow__an_unagreed_message_ends_it_and_the_leader_gets_the_reason(
    monkeypatch: pytest.MonkeyPatch, wrong: Message
) -> None:
    link, thread, ends = following(monkeypatch, 10.0)
    link.send(wrong)
    told = link.receive(timeout=10)
    thread.join(20)
    link.close()
    assert told["message"]["kind"] == "error"
    assert told["message"]["text"] == ends[0] != ""
    assert len(ends[0]) < 300


def test_follow__takes_no_line_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    link, thread, ends = following(monkeypatch, 10.0)
    with contextlib.suppress(LinkClosedError):
        link.send({"do": "x" * (1 << 20)}, timeout=5)
    thread.join(10)
    link.close()
    assert not thread.is_alive()
    assert "an endless line" in ends[0]


def test_follow__takes_no_longer_than_its_options_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Options, "longest_seconds", 0.3)
    link, thread, ends = following(monkeypatch, 10.0)

    def ended() -> bool:
        with contextlib.suppress(LinkClosedError):
            link.send({"do": "alive"})
        return bool(ends) or not thread.is_alive()

    until(ended, 10, every=0.1)
    thread.join(20)
    link.close()
    assert "took more than 0 s" in ends[0]


def test_options__a_run_that_takes_long_is_given_its_time() -> None:
    assert Options(sizes=(8,), rounds=1, timeout=1).longest_seconds == 600
    assert Options().longest_seconds > 4 * 3_600
    assert Options(rounds=1_000_000, timeout=1e9).longest_seconds == 24 * 3_600


def test_read_case__only_cases_of_the_options() -> None:
    options = Options(sizes=(8, 16), loss_bounds=(0.0, 0.1))
    message = {"bytes": 16, "loss_bound": 0.1, "algorithm": "automatic"}
    found = read_case(message, options, is_bounded=True)
    assert (found.pattern, found.bytes, found.ranks, found.loss_bound) == ("p2p", 16, 2, 0.1)
    for size, bound in ((32, 0.0), (16.0, 0.0), (True, 0.0), ("16", 0.0), (16, 0.2), (16, "0")):
        with pytest.raises(BadOptionError, match="the run's options"):
            read_case(message | {"bytes": size, "loss_bound": bound}, options, is_bounded=True)
    with pytest.raises(BadOptionError):
        read_case(message, options, is_bounded=False)
    with pytest.raises(BadOptionError, match="algorithm ring"):
        read_case(message | {"algorithm": "ring"}, options, is_bounded=True)
    named = Options(pattern="allreduce", sizes=(16,), algorithms=("ring", "halving"))
    assert read_case({"bytes": 16, "loss_bound": 0.0, "algorithm": "ring"}, named, is_bounded=True).algorithm == "ring"


def test_serve__without_a_secret_is_for_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    own = interfaces.machine_address()
    if own is None:
        pytest.skip("no address for other hosts here")
    with server() as (_, port):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((own, int(port)), timeout=5).close()
        assert perf("127.0.0.1", "--port", port, "--size", "8KB", "--rounds", "2").returncode == 0
    for words in (("--serve", "--interface", own), (own,)):
        done = perf(*words, "--port", str(free_port()))
        assert done.returncode == 2
        assert_names(done.stderr, f"{own}", "not a loopback address", "job secret")
        assert "MLT_INSECURE=1" in done.stderr


def test_serve__with_a_secret_is_for_hosts_that_know_it() -> None:
    own = interfaces.machine_address()
    if own is None:
        pytest.skip("no address for other hosts here")
    port, secret = str(free_port()), "sixteen bytes or more"
    words = (own, "--port", port, "--size", "8KB", "--rounds", "2")
    with running("--serve", "--port", port, MLT_JOB_SECRET=secret) as process:
        assert process.stderr is not None
        assert "at all addresses" in process.stderr.readline()
        for environment in ({"MLT_JOB_SECRET": "another one of sixteen bytes"}, {"MLT_INSECURE": "1"}):
            done = perf(*words, **environment)
            assert done.returncode == 1
            assert "job's secret" in done.stderr
        done = perf(*words, MLT_JOB_SECRET=secret)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("size", [1 << 20, 4 << 20])
def test_serve__floods_no_third_host_and_holds_to_the_agreed_options(size: int) -> None:
    options = {
        "pattern": "allreduce",
        "sizes": [1 << 20],
        "compare": ["raw-udp"],
        "timeout": 1.0,
        "segment_bytes": 1432,
    }
    with contextlib.ExitStack() as stack:
        _, port = stack.enter_context(server())
        victim = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        victim.bind(("127.0.0.77", 0))
        victim.settimeout(0.5)
        link, prover = proved_link(stack.enter_context(socket.create_connection(("127.0.0.1", int(port)))))
        link.send(proved(prover, hello(host=HOST, options=options, job="x")))
        remote.read_proved(link, prover, "the server")
        link.send({"do": "start", "transport": "raw-udp"})

        def told(message: Message) -> Message:
            link.send({"do": "tell", "rank": 0, "transport": "raw-udp", "message": message})
            return dict(link.receive(timeout=20)["message"])

        assert link.receive(timeout=20)["message"]["kind"] == "ready"
        announced = told({"do": "announce"})
        table = [[announced["host"], announced["port"]], list(victim.getsockname())]
        assert told({"do": "open", "table": table})["kind"] == "open"
        case = told({"do": "case", "id": 0, "bytes": size, "loss_bound": 0.0, "algorithm": "automatic", "first": True})
        if size > 1 << 20:
            assert case["kind"] == "error"
            assert_names(case["text"], f"{size} bytes", "loss bound 0.0", "options")
            return
        assert case["kind"] == "case"
        link.send({"do": "tell", "rank": 0, "transport": "raw-udp", "message": {"do": "verify", "id": 0}})
        with pytest.raises(TimeoutError):
            victim.recv(65_536)


def test_serve__a_client_that_does_not_read_delays_no_other() -> None:
    with server() as (_, port), contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(deaf(int(port), hello() | {"version": "\x80" * 1_000}))
        began = time.monotonic()
        answer = answered(int(port), hello() | {"version": "9.9.9"})
        assert time.monotonic() - began < 3.0
    assert "9.9.9" in answer["refused"]
