"""An examination over loopback, the two sides' disagreements, and callers that are none."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from checks import assert_names, names, until

import mlt
from mlt import _core
from mlt._shared import patience
from mlt._shared.addresses import parse_target
from mlt._shared.link import LinkError
from mlt._shared.ports import DOCTOR_OFFSET, free_port, port_beside
from mlt.diagnosis import allowance, messages, responder, session
from mlt.diagnosis.command import Settings, examine_host, examine_job
from mlt.diagnosis.datagrams import COUNT, ECHO, HEADER, MAGIC, MAX_DATAGRAM, REPLY, Port
from mlt.diagnosis.doctor import Finding
from mlt.diagnosis.messages import DEFAULT_DSCP, make_hello, read_hello
from mlt.diagnosis.responder import Responder, Visit
from mlt.errors import ConfigError, PortInUseError
from mlt.job import interfaces
from mlt.job.handshake_server import HandshakeServer
from mlt.options.qos import DEFAULT, DscpMap

PROTOCOL = _core.PROTOCOL_VERSION
DOCTOR = [sys.executable, "-m", "mlt.cli.main", "doctor"]


@contextlib.contextmanager
def serving(dscp: DscpMap = DEFAULT, address: str = "127.0.0.1") -> Iterator[tuple[int, list[Visit | None]]]:
    """A responder that answers one caller; its port, and how the visit ended."""
    one = Responder(0, dscp, addresses=[address])
    visits: list[Visit | None] = []
    thread = threading.Thread(target=lambda: visits.append(one.serve_one(20)))
    thread.start()
    try:
        yield one.port, visits
    finally:
        thread.join()
        one.close()


def examined(port: int, host: str = "127.0.0.1", **settings: Any) -> list[Finding]:
    return list(examine_host(host, Settings(port=port, environ={}, **settings)))


def problems(findings: list[Finding]) -> list[str]:
    assert all(one.fix for one in findings if one.level != "ok")
    return [one.what for one in findings if one.level == "problem"]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_loopback__is_well(address: str) -> None:
    if not interfaces.is_own_address(address):
        pytest.skip("no IPv6 here")
    with serving(address=address) as (port, visits):
        findings = examined(port, address)
    # The limit of this machine's socket buffers is another check's business.
    assert not [text for text in problems(findings) if "receive buffer" not in text]
    text = "\n".join(one.what for one in findings if one.level == "ok")
    assert_names(text, f"mlt {mlt.__version__}", f"protocol {PROTOCOL}")
    assert text.count("DSCP and ECN of every class arrive as they were sent") == 2
    assert text.count("packets of 655") == 2
    (visit,) = visits
    assert visit is not None
    assert visit.address == address


def test_default_map__is_the_native_librarys() -> None:
    with mlt.Context(0, 1) as context:
        assert context.dscp == DEFAULT_DSCP
    assert messages.protocol_version() == PROTOCOL


def test_maps__that_differ_are_named() -> None:
    with serving(DscpMap(data=(46, 40), control=48)) as (port, _):
        found = problems(examined(port))
    assert_names(found, "DSCPs differ", "3, 7, 11, 15, 19, 23, 27; control 31 here", "46, 40; control 48 there")


@pytest.mark.parametrize(
    ("changes", "level", "text"),
    [
        (
            {"protocol": PROTOCOL + 1},
            "problem",
            f"differ: {PROTOCOL} here (mlt 0.1.0), {PROTOCOL + 1} there (mlt 0.1.0)",
        ),
        ({"package": "9.9"}, "optional", "mlt 0.1.0 here, 9.9 there"),
        ({"protocol": None}, "problem", "native library"),
        ({"buffer": 212_992}, "problem", "UDP receive buffer of 208 KiB there"),
    ],
)
def test_other_side__of_another_kind_is_named(
    changes: dict[str, Any], level: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        responder, "make_hello", lambda *rest, **more: dataclasses.replace(make_hello(*rest, **more), **changes)
    )
    with serving() as (port, _):
        findings = examined(port)
    (found,) = [one for one in findings if text in one.what]
    assert found.level == level
    assert found.fix


def answering(reply: bytes) -> tuple[int, Callable[[], None]]:
    """A server that says ``reply`` to one caller and hangs up."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            connection, _ = server.accept()
            with connection:
                connection.recv(4_096)
                connection.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    return server.getsockname()[1], lambda: (server.close(), thread.join())[0]


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "another program"),
        (b'{"mlt_doctor":2,"package":"9.9"}\n', "version 2 (mlt 9.9)"),
        (b'{"mlt_doctor":1}\n', "greeting"),
        (b'{"refused":"the caller from 10.0.0.1 is mlt doctor"}\n', "'mlt doctor --serve'"),
        (b"x" * 9_000, "endless line"),
        (b"[1]\n", "another program"),
    ],
)
def test_whatever_else_listens__is_a_problem_in_words(reply: bytes, cause: str) -> None:
    port, end = answering(reply)
    try:
        (text,) = problems(examined(port))
    finally:
        end()
    assert_names(text, f"127.0.0.1 port {port}", "broke off")
    assert cause in text


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"{}\n",
        b'{"mlt_doctor":7,"package":"1"}\n',
        b'{"mlt_perf":2,"version":"0.1.0"}\n',
        b"\xff" * 10_000,
        b"",
    ],
)
def test_responder__rejects_unknown_clients_and_continues(said: bytes) -> None:
    one = Responder(0, DEFAULT, addresses=["127.0.0.1"])
    visits: list[Visit | None] = []
    asks = b"\n" in said  # else it is none that is served
    thread = threading.Thread(target=lambda: visits.extend(one.serve_one(20) for _ in range(1 + asks)))
    thread.start()
    with (
        socket.create_connection(("127.0.0.1", one.port), timeout=10) as client,
        contextlib.suppress(ConnectionError),
    ):
        client.sendall(said)
        client.shutdown(socket.SHUT_WR)
        while client.recv(4_096):
            pass
    with session.Session(session.connect("127.0.0.1", one.port, None), DEFAULT) as caller:
        caller.bye(3)
    thread.join()
    one.close()
    assert [visit.problems for visit in visits if visit is not None] == ([None, 3] if asks else [3])


@pytest.mark.parametrize("number", [1, 400])
def test_responder__idle_callers_delay_no_other_and_are_counted(number: int) -> None:
    said: list[str] = []
    one = Responder(0, DEFAULT, addresses=["127.0.0.1"], say=said.append)
    visits: list[Visit | None] = []
    thread = threading.Thread(target=lambda: visits.extend(one.serve_one(30) for _ in range(2)))
    thread.start()
    with contextlib.ExitStack() as idle:
        for _ in range(number):
            idle.enter_context(socket.create_connection(("127.0.0.1", one.port), timeout=10))
        began = time.monotonic()
        for problems_found in (1, 2):
            with session.Session(session.connect("127.0.0.1", one.port, None), DEFAULT) as caller:
                caller.bye(problems_found)
        thread.join()
        assert time.monotonic() - began < 5.0
    assert [visit.problems for visit in visits if visit is not None] == [1, 2]
    if number == 400:
        assert any("too many pending" in text for text in said)
    one.close()


@pytest.mark.parametrize(
    ("question", "cause"),
    [
        ({"do": "dance", "test": 1}, "no answer to 'dance'"),
        ({"do": "tally"}, "not a valid request"),
        ({"do": "send", "test": 1, "count": "many"}, "not a valid request"),
        ({"do": "tally", "test": 5_000_000, "least": 1, "seconds": 0.0}, None),
    ],
)
def test_responder__rejects_malformed_requests(question: dict[str, Any], cause: str | None) -> None:
    with serving() as (port, _), session.Session(session.connect("127.0.0.1", port, None), DEFAULT) as caller:
        if cause is None:
            assert caller._ask(**question) == {"received": 0, "classes": {}}
        else:
            with pytest.raises(LinkError, match=cause):
                caller._ask(**question)
        caller.bye(0)


def hello_from(port: int, source: str = "127.0.0.1") -> socket.socket:
    """A caller that said hello and waits."""
    connection = session.connect("127.0.0.1", port, source)
    own = dataclasses.asdict(make_hello(DEFAULT, interface="lo", mtu=1_500, buffer=1, port=9))
    connection.sendall(json.dumps(own).encode() + b"\n")
    return connection


def test_responder__hosts_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One host that opens many examinations and says nothing more holds up another one for one of them."""
    monkeypatch.setattr(responder, "IDLE_SECONDS", 1.0)
    one = Responder(0, DEFAULT, addresses=["127.0.0.1"])
    visits: list[Visit | None] = []
    thread = threading.Thread(target=lambda: visits.extend(one.serve_one(20) for _ in range(2)))
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(hello_from(one.port, "127.0.0.9")) for _ in range(responder.MAX_WAITING_OF_HOST)]
        thread.start()
        assert b"mlt_doctor" in many[0].recv(4_096)
        # While the first is served, more are let in: the host has one to wait more, and no place for another.
        stack.enter_context(hello_from(one.port, "127.0.0.9"))
        refused = stack.enter_context(hello_from(one.port, "127.0.0.9"))
        refused.settimeout(0.9)
        text = f"{responder.MAX_WAITING_OF_HOST} examinations of this host wait already".encode()
        assert text in refused.recv(4_096)
        with session.Session(session.connect("127.0.0.1", one.port, None), DEFAULT) as caller:
            caller.bye(5)
        thread.join()
    one.close()
    assert [(visit.address, visit.problems) for visit in visits if visit is not None] == [
        ("127.0.0.9", None),
        ("127.0.0.1", 5),
    ]


def test_responder__repeats_little_of_what_a_caller_sent() -> None:
    said: list[str] = []
    one = Responder(0, DEFAULT, addresses=["127.0.0.1"], say=said.append)
    thread = threading.Thread(target=lambda: [one.serve_one(20) for _ in range(2)])
    thread.start()
    with socket.create_connection(("127.0.0.1", one.port), timeout=10) as client:
        client.sendall(json.dumps({"mlt_doctor": "7" * 3_000, "package": "x" * 3_000}).encode() + b"\n")
        while client.recv(4_096):
            pass
    with session.Session(session.connect("127.0.0.1", one.port, None), DEFAULT) as caller:
        for question in ({"do": "x" * 5_000, "test": 1}, {"do": "send", "test": 1, "count": "x" * 5_000}):
            with pytest.raises(LinkError) as refused:
                caller._ask(**question)
            assert len(str(refused.value)) < 150
        caller.bye(0)
    thread.join()
    one.close()
    assert all(len(text) < 400 for text in said)


def test_doctor_and_perf__name_each_other() -> None:
    with serving() as (port, _):
        words = [sys.executable, "-m", "mlt.cli.main", "perf", "127.0.0.1", "--port", str(port)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert_names(done.stderr, "mlt doctor, not mlt perf", "--port")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        handshakes = HandshakeServer("perf", 3, None, listeners=[listener])
        thread = threading.Thread(target=handshakes.wait, args=(2.0,))
        thread.start()
        (text,) = problems(examined(listener.getsockname()[1]))
        thread.join()
        handshakes.close()
    assert "the program there is mlt perf, not mlt doctor" in text


def test_responder__ignores_datagrams_of_unknown_senders() -> None:
    with serving() as (port, _), session.Session(session.connect("127.0.0.1", port, None), DEFAULT) as caller:
        caller._ask(do="expect", test=9)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            for token in (0, caller.there.token ^ 1):
                client.sendto(HEADER.pack(MAGIC, COUNT, token, 9, 0), ("127.0.0.1", caller.there.port))
            client.sendto(b"", ("127.0.0.1", caller.there.port))
            client.sendto(b"short", ("127.0.0.1", caller.there.port))
        assert caller._tally(9, 1, 0.3).received == 0
        caller.bye(0)


def test_port__counts_by_traffic_class_and_rejects_bad_values() -> None:
    with contextlib.closing(Port("127.0.0.1", 5)) as here, contextlib.closing(Port("127.0.0.1", 5)) as there:
        here.peer, there.peer = ("127.0.0.1", there.number), ("127.0.0.1", here.number)
        there.expect(1)
        assert here.send_many(1, 3, 100, 31 << 2 | 2, 0).count == 3
        assert here.send_many(1, 2, 100, 3 << 2, 0).count == 2
        assert there.wait(1, 5, 5).classes == {31 << 2 | 2: 3, 3 << 2: 2}
        here.interface_mtu = 1_500
        sent = here.send_many(2, 1, 70_000, 0, 0)
        assert sent.count == 0
        assert sent.error != 0


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
@pytest.mark.parametrize(("sent", "back"), [(46 << 2 | 2, 46 << 2 | 2), (48 << 2 | 3, 48 << 2 | 2), (8 << 2, 8 << 2)])
def test_port__replies_in_the_class_of_the_echo_without_its_ce_mark(address: str, sent: int, back: int) -> None:
    if not interfaces.is_own_address(address):
        pytest.skip("no IPv6 here")
    with contextlib.closing(Port(address, 5)) as here, contextlib.closing(Port(address, 5)) as there:
        here.peer, there.peer = (address, there.number), (address, here.number)
        assert here.send(ECHO, 1, 9, 100, sent) == 0
        assert until(there.receive_all)
        assert until(here.receive) == (REPLY, 1, 9, 100, back)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("node2", ("node2", 7)),
        ("10.0.0.2:29600", ("10.0.0.2", 29_600)),
        ("fd00::2", ("fd00::2", 7)),
        ("[fd00::2]", ("fd00::2", 7)),
        ("[fd00::2]:29600", ("fd00::2", 29_600)),
    ],
)
def test_parse_target__reads_hosts_and_ports(target: str, expected: tuple[str, int]) -> None:
    assert parse_target(target, 7) == expected


@pytest.mark.parametrize(
    "target", ["", ":5", "host:", "host:0", "host:65536", "host:x", "[fd00::2]5", "[]:5", "[::1", "::1:29600"]
)
def test_parse_target__rejects_the_rest(target: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_target(target, 7)


def test_unreachable__names_the_fix() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (finding,) = examined(port)
    assert (finding.level, finding.fix) == ("problem", f"run mlt doctor --serve --port {port} on 127.0.0.1")
    assert_names(finding.what, f"127.0.0.1 port {port}", "refused")
    (finding,) = examined(port, "no.such.host.invalid")
    assert "no.such.host.invalid does not resolve" in finding.what


def test_serve__a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortInUseError, match=names(f"127.0.0.1 port {port}", "Address already in use")):
            Responder(port, DEFAULT, addresses=["127.0.0.1"])
        words = [*DOCTOR, "--serve", "--port", str(port), "--interface", "lo"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "choose another --port" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_serve__ends_on_signals_and_frees_its_port(number: signal.Signals, code: int) -> None:
    words = [*DOCTOR, "--serve", "--interface", "lo", "--port", "29617"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "serving at 127.0.0.1" in process.stderr.readline()
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=10)
    assert process.returncode == code
    assert "Traceback" not in err
    socket.create_server(("127.0.0.1", 29_617)).close()


def test_serve__an_unknown_client_cannot_forge_a_line() -> None:
    words = [*DOCTOR, "--serve", "--interface", "lo", "--port", "29616"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        process.stderr.readline()
        with socket.create_connection(("127.0.0.1", 29_616), timeout=10) as client:
            release = "9\x1b[2J\nmlt doctor: 192.0.2.1 found no problem"
            client.sendall(json.dumps({"mlt_doctor": 7, "package": release}).encode() + b"\n")
            while client.recv(4_096):
                pass
        said = [process.stderr.readline() for _ in range(2)]
        process.terminate()
        process.communicate(timeout=10)
    assert "mlt 9?[2J?mlt doctor: 192.0.2.1" in said[0]
    assert said[1].startswith("mlt doctor: 127.0.0.1 broke off")


def test_command__reports_by_its_exit_code() -> None:
    words = [*DOCTOR, "--serve", "--once", "--interface", "lo", "--port", "29618"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        process.stderr.readline()
        done = subprocess.run([*DOCTOR, "127.0.0.1:29618", "--json", "-"], capture_output=True, text=True, check=False)
        _, err = process.communicate(timeout=20)
    findings = json.loads(done.stdout)
    assert done.returncode == any(one["level"] == "problem" for one in findings)
    assert process.returncode == 0
    assert "127.0.0.1 (" in err


def job(rank: int, ranks: int, port: int, timeout: float) -> Settings:
    environ = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    return Settings(port=port, timeout=timeout, environ=environ)


@pytest.mark.parametrize(
    ("given", "port"),
    [
        ({}, 29_600),
        ({"MASTER_PORT": "29500"}, 32_500),
        ({"MASTER_PORT": "29501"}, 32_501),  # the next job of the host
        ({"MASTER_PORT": "65000"}, 59_000),
        ({"MASTER_PORT": "29500", "MLT_RENDEZVOUS_PORT": "40000"}, 42_000),
    ],
)
def test_job__has_a_port_of_its_own(given: dict[str, str], port: int) -> None:
    assert Settings(environ=given).job_port == port
    assert Settings(environ=given, port=7).job_port == 7
    assert Settings(environ=given).server_port == 29_600


def test_jobs__of_one_host_do_not_examine_each_other() -> None:
    first, second = free_port(offsets=[DOCTOR_OFFSET]), free_port(offsets=[DOCTOR_OFFSET])

    def start(rank: int, master: int) -> subprocess.Popen[str]:
        environ = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(master)}
        words = [*DOCTOR, "--job", "--connect-timeout", "1s"]
        return subprocess.Popen(words, env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True)

    ranks = [start(0, first), start(1, second)]
    outputs = [one.communicate(timeout=60)[0] for one in ranks]
    assert [one.returncode for one in ranks] == [1, 1]
    assert "1 of 1 rank did not connect" in outputs[0]
    assert f"port {port_beside(second, DOCTOR_OFFSET)} is refused" in outputs[1]


def test_job__a_long_wait_for_rank_0_or_for_the_others_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "QUIET_SECONDS", 0.2)
    port = free_port()
    (finding,) = examine_job(job(1, 2, port, 1.0), say=print)
    assert_names(finding.what, f"port {port} is refused")
    (finding,) = examine_job(job(0, 3, port, 1.0), say=print)
    assert_names(finding.what, "2 of 2 ranks did not connect")
    waits_for_0, waits_for_others = (record.getMessage() for record in caplog.records)
    assert_names(waits_for_0, "still waiting for", f"127.0.0.1 port {port}", "1 s", "Connection refused", "--job")
    assert_names(waits_for_others, "rank 0: still waiting", "2 of 2 ranks", f"port {port}", "1 s")


def test_session__that_waits_for_its_turn_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "QUIET_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as busy:  # accepts, and says nothing
        port = busy.getsockname()[1]
        caller = threading.Thread(target=examined, args=(port,))
        caller.start()
        until(lambda: caplog.records)
        busy.accept()[0].close()
        caller.join()
    assert_names(caplog.records[0].getMessage(), "still waiting for", f"127.0.0.1 port {port}", "another host", "150 s")


def test_settings__host_and_interface_as_a_rank_reads_them() -> None:
    both = {"MLT_HOST": "127.0.0.1", "MLT_INTERFACE": "eth0"}
    assert Settings(environ=both).host == "127.0.0.1"
    assert Settings(environ=both, interface="lo").host is None
    assert Settings(environ=both, interface="lo").wanted == "lo"
    assert Settings(environ={"MLT_INTERFACE": "eth0"}).wanted == "eth0"
    assert Settings(environ={}).wanted is None
    with pytest.raises(ConfigError, match=names("MLT_HOST is '203.0.113.9'")):
        _ = Settings(environ={"MLT_HOST": "203.0.113.9"}).host


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["--serve", "host"], "HOST, --serve, --job, --switch, --framework, --topology and --recorder"),
        (["--job", "--serve"], "HOST, --serve, --job, --switch, --framework, --topology and --recorder"),
        (["--once"], "--once goes with --serve"),
        (["--port", "0", "host"], "--port"),
        (["--serve", "--interface", "wlan9"], "--interface is 'wlan9'"),
        (["--policy", "/no/such/file.yaml", "127.0.0.1"], "/no/such/file.yaml"),
        (["host:port"], "HOST:PORT"),
    ],
)
def test_command__rejects_bad_arguments(words: list[str], cause: str) -> None:
    done = subprocess.run([*DOCTOR, *words], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode in (1, 2)
    assert cause in done.stderr
    assert "Traceback" not in done.stderr


def test_read_hello__checks_every_field() -> None:
    good = dataclasses.asdict(make_hello(DEFAULT, interface="eth0", mtu=1_500, buffer=1, port=1))
    assert read_hello(good).dscp == DEFAULT_DSCP
    for field, bad in (
        ("port", 0), ("mtu", "large"), ("data_dscp", [64]), ("data_dscp", []), ("control_dscp", -1), ("token", 1 << 64),
        ("buffer", None), ("protocol", "two"),
    ):  # fmt: skip
        with pytest.raises(LinkError, match="greeting"):
            read_hello({**good, field: bad})


HOSTILE = {
    "a test beyond 32 bits": b'{"do":"send","test":4294967296,"count":1,"size":64,"class":0,"interval":0}',
    "a problem count that is none": b'{"do":"bye","problems":"x"}',
    "a number without end": b'{"do":"tally","test":Infinity,"least":1,"seconds":1}',
    "nesting without end": b"[" * 5_000,
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
def test_responder__survives_malformed_requests(line: bytes) -> None:
    greeting = dataclasses.asdict(make_hello(DEFAULT, interface="lo", mtu=1_500, buffer=1, port=1))
    with serving() as (port, visits), socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(json.dumps(greeting).encode() + b"\n" + line + b"\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65_536):
            pass
    assert [visit.problems for visit in visits if visit is not None] == [None]


def test_responder__sends_one_caller_so_much_and_no_more() -> None:
    size, count = MAX_DATAGRAM, 900
    maximum = allowance.CALLER_BYTES // (count * size)
    with serving() as (port, _), session.Session(session.connect("127.0.0.1", port, None), DEFAULT) as caller:
        answered: list[int] = []

        def ask_on() -> None:  # its share grows while it sends, which is much faster
            for test in range(4 * maximum):
                asked = {"do": "send", "count": count, "size": size, "class": 0, "interval": 0.0}
                answered.append(int(str(caller._ask(**asked, test=test)["count"])))

        with pytest.raises(LinkError, match=names("64 MiB", "256 MiB")):
            ask_on()
        assert maximum <= len(answered) < 4 * maximum
        with pytest.raises(LinkError, match="try again"):  # an echo without an answer is no loss
            caller._tally(1, 0, 0)
        caller.bye(0)


def test_responder__an_examination_is_within_its_allowance() -> None:
    spent: list[int] = []

    class Counted(allowance.Allowance):
        def take(self, count: int) -> bool:
            spent.append(count)
            return super().take(count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allowance, "Allowance", Counted)
        with serving() as (port, _):
            examined(port)
    assert 0 < sum(spent) < allowance.CALLER_BYTES // 3
