"""Delay lines: settings that change while frames pass, order, limits, broken links, and a program that ended."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest
from checks import assert_names, until
from testbed_lab import MLT, PORT, command, leftovers, needs_testbed, python, resolve, sink, udp

from mlt.testbed import BadTopologyError, Testbed, TestbedError, delay_line, namespaces, state
from mlt.testbed.delay_line import DelayCounters
from mlt.testbed.layout import LINES

pytestmark = needs_testbed

SO_RCVBUFFORCE = 33


def line_of(bed: Testbed, link: str, direction: str) -> DelayCounters:
    (found,) = [row for row in bed.delay_counters() if (row.link, row.direction) == (link, direction)]
    return found


def program_of(bed: Testbed) -> int:
    (pid,) = namespaces.processes([bed.path(LINES)])
    return pid


def test_delay__is_only_on_links_that_have_one() -> None:
    with Testbed(hosts=2, links={"host0": {"delay_down": "5ms"}}) as bed:
        rows = {(row.link, row.direction): (row.delay, row.jitter) for row in bed.delay_counters()}
        assert rows == {("host0", "up"): (0, 0), ("host0", "down"): (0.005, 0)}
        with pytest.raises(BadTopologyError, match="host1"):
            bed.set_delay("1ms")
        with pytest.raises(BadTopologyError, match="--delay 0"):
            bed.set_delay("1ms", link="host1")
        assert bed.topology.settings("host1").delay_up is None
    with Testbed(hosts=2) as bed:
        assert bed.delay_counters() == []
        assert namespaces.processes([bed.path(host) for host in bed.hosts]) == []


def test_set_delay__changes_links_while_frames_pass_and_keeps_the_order() -> None:
    name, sent, stop = "t-delay-set", [0], threading.Event()
    with Testbed(hosts=2, delay=0, name=name) as bed:
        resolve(bed, "host0", "host1")

        def send() -> None:
            with udp(bed, "host0") as sock:
                while not stop.is_set():
                    sock.sendto(struct.pack("=I", sent[0]), (bed.address("host1"), PORT))
                    sent[0] += 1
                    time.sleep(0.0002)  # the pace

        with sink(bed, "host1") as there:
            there.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
            there.settimeout(5)
            sender = threading.Thread(target=send)
            sender.start()
            for delay, jitter in (("20ms", "5ms"), ("0ms", "1ms"), ("50ms", "0ms"), ("2ms", "2ms")) * 3:
                passed = line_of(bed, "host0", "up").passed
                bed.set_delay(delay, jitter=jitter, link="host0", direction="up")
                until(lambda passed=passed: line_of(bed, "host0", "up").passed > passed + 20)  # type: ignore[misc]
            stop.set()
            sender.join()
            arrived = [struct.unpack("=I", there.recv(16))[0] for _ in range(sent[0])]
        assert arrived == list(range(sent[0]))
        up = line_of(bed, "host0", "up")
        assert (up.delay, up.jitter) == (0.002, 0.002)
        assert (up.dropped_full, up.dropped_unread, up.dropped_unsent) == (0, 0, 0)
        words = ["set", "--name", name, "host1", "--delay", "9ms", "--jitter", "1ms", "--direction", "down"]
        assert command(*words).returncode == 0
        assert command("set", "--name", name, "--delay", "7ms").returncode == 0
        assert [row.delay for row in bed.delay_counters()] == [0.007, 0, 0.007, 0.009]


def test_limit__is_kept_and_what_exceeds_it_is_counted() -> None:
    more, burst, sent = 1000, 256, 0
    with Testbed(hosts=2, rate="1gbit", delay="0ms") as bed:
        resolve(bed, "host0", "host1")
        bed.set_delay("10s", link="host0", direction="up")
        before = line_of(bed, "host0", "up")
        with udp(bed, "host0") as sock, sink(bed, "host1"):
            # In bursts that the kernel holds until the program, which may wait for a CPU, has read them.
            while line_of(bed, "host0", "up").dropped_full < more:
                for _ in range(burst):
                    sock.sendto(b"x", (bed.address("host1"), PORT))
                sent += burst

                def all_taken() -> bool:
                    up = line_of(bed, "host0", "up")
                    return up.held + up.passed + up.dropped_full + up.dropped_unread >= before.passed + sent  # noqa: B023

                until(all_taken, 5)
        up = line_of(bed, "host0", "up")
        assert up.held == delay_line.LIMIT_FRAMES
        assert up.held + up.dropped_full + up.dropped_unread >= sent
        assert up.passed == before.passed


@pytest.mark.parametrize("fields", [{"delay": "-1ms"}, {"delay": "11s"}, {"jitter": "1h"}, {"delay": "fast"}])
def test_delay__that_is_absurd_is_rejected_before_anything_is_made(fields: dict[str, str]) -> None:
    with pytest.raises(BadTopologyError, match=next(iter(fields))):
        Testbed(hosts=2, **fields)


def test_jitter__may_exceed_the_delay() -> None:
    with Testbed(hosts=2, delay="1ms", jitter="30ms") as bed:
        resolve(bed, "host0", "host1")
        with udp(bed, "host0") as here, sink(bed, "host1") as there:
            there.settimeout(5)
            for number in range(200):
                here.sendto(struct.pack("=I", number), (bed.address("host1"), PORT))
            assert [struct.unpack("=I", there.recv(16))[0] for _ in range(200)] == list(range(200))


def test_break_link__takes_the_carrier_at_both_ends_and_what_the_line_holds() -> None:
    with Testbed(hosts=2, delay="10ms") as bed:
        resolve(bed, "host0", "host1")
        until(lambda: all(row.held == 0 for row in bed.delay_counters()))
        bed.set_delay("3s")  # longer than a busy machine takes to break the link
        with udp(bed, "host0") as here, sink(bed, "host1") as there:
            here.sendto(b"x", (bed.address("host1"), PORT))
            until(lambda: line_of(bed, "host0", "up").held == 1)
            bed.break_link("host0")
            # The link's state in its namespace: a command there sees the /sys of the host.
            assert "NO-CARRIER" in bed.exec("host0", ["ip", "link", "show", "mlt0"]).stdout
            until(lambda: line_of(bed, "host0", "up").dropped_unsent == 1)
            there.settimeout(0.1)
            with pytest.raises(TimeoutError):
                there.recv(16)
        bed.heal_link("host0")
        bed.set_delay("10ms")
        resolve(bed, "host0", "host1")


def test_tcp__arrives_whole_although_checksums_are_not_filled_in() -> None:
    size = 3_000_000
    code = "import socket, sys\ns = socket.create_connection((sys.argv[1], 9100)); s.sendall(bytes(int(sys.argv[2])))"
    with Testbed(hosts=2, spines=1, delay="1ms", uplink={"delay": "1ms"}, mtu=4000) as bed:
        with bed.inside("host1", lambda: socket.create_server((bed.address("host1"), 9100))) as server:
            client = bed.popen("host0", [*python(code), bed.address("host1"), str(size)])
            connection, _ = server.accept()
            got = 0
            while part := connection.recv(1 << 20):
                got += len(part)
            assert client.wait(timeout=10) == 0
        assert got == size
        assert line_of(bed, "leaf0-spine0", "up").passed >= size // 4000


def test_program__that_ended_is_named_and_everything_is_removed() -> None:
    name = "t-delay-dead"
    with Testbed(hosts=2, delay="1ms", name=name) as bed:
        pid = program_of(bed)
        os.kill(pid, signal.SIGKILL)

        def problem() -> str:
            try:
                bed.delay_counters()
            except TestbedError as error:
                return str(error)
            return ""

        assert_names(until(problem), name, "has ended", "mlt testbed down")
        done = command("set", "--name", name, "host0", "--delay", "2ms")
        assert done.returncode == 1
        assert_names(done.stderr, name, "has ended")
    assert leftovers(name) == []


def test_run__killed__takes_the_program_with_it_and_the_next_command_removes_the_rest() -> None:
    name = "t-delay-killed"
    words = [*MLT, "run", "--hosts", "2", "--delay", "1ms", "--name", name, "--"]
    sleeper = python("import time; print('here', flush=True); time.sleep(300)")
    with subprocess.Popen([*words, *sleeper], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        run.stdout.readline()
        pid = program_of(Testbed.attach(name))
        run.kill()
        run.wait()
    until(lambda: state.start_time(pid) is None)
    command("down", "--name", name)  # or a command of another test was the next
    assert leftovers(name) == []
    assert not os.path.exists(f"/run/mlt-testbed/{name}.delay")


def test_up__keeps_the_program_until_down_and_status_shows_it() -> None:
    name = "t-delay-up"
    try:
        assert command("up", "--name", name, "--hosts", "2", "--delay", "3ms", "--jitter", "1ms").returncode == 0
        pid = program_of(Testbed.attach(name))
        shown = command("status", "--name", name).stdout
        assert_names(shown, "delay lines", "3 ms", "1 ms")
    finally:
        command("down", "--name", name)
    assert state.start_time(pid) is None


def test_start__reports_the_words_of_a_program_that_fails(tmp_path: Path) -> None:
    file = tmp_path / "bad.delay"
    file.write_bytes(bytes(8))
    with Testbed(hosts=1) as bed, pytest.raises(TestbedError, match="could not start: mlt-delay-line"):
        delay_line.start(file, bed.path("host0"), stays=False)
