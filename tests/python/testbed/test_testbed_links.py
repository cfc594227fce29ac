"""Links and paths: several ways, broken and healed ones, changes while it runs, one packet per packet."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checks import until
from testbed_lab import PAYLOAD, PORT, command, needs_testbed, queue, resolve, sink, udp

from mlt.testbed import BadTopologyError, Testbed

pytestmark = needs_testbed

UDP_SEGMENT = 103
ORDER = Path(__file__).with_name("testbed_order.py")


@pytest.fixture(scope="module")
def fabric() -> Iterator[Testbed]:
    """Two leaves, two spines, one host on each leaf."""
    with Testbed(hosts=2, spines=2, rate="1gbit") as bed:
        resolve(bed, "host0", "host1")
        yield bed


def crossed(bed: Testbed) -> dict[str, int]:
    """Packets that each spine has had from leaf0."""
    rows = bed.link_counters()
    return {row.link: row.seen for row in rows if row.link.startswith("leaf0-") and row.direction == "up"}


def send_flows(bed: Testbed, flows: int, family: int = socket.AF_INET) -> int:
    """One packet on each of ``flows`` source ports; returns how many arrived."""
    address = bed.address("host1") if family == socket.AF_INET else "fd77:0:0:1::1"

    def receiver() -> socket.socket:
        sock = socket.socket(family, socket.SOCK_DGRAM)
        sock.bind((address, PORT))
        sock.settimeout(0.5)
        return sock

    def sender() -> None:
        for number in range(flows):
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.bind(("", 20_000 + number))
                sock.sendto(b"x", (address, PORT))

    got = 0
    with bed.inside("host1", receiver) as sock:
        bed.inside("host0", sender)
        try:
            while got < flows:
                sock.recv(16)
                got += 1
        except TimeoutError:
            pass
    return got


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_spines__share_flows_by_source_port(fabric: Testbed, family: int) -> None:
    before = crossed(fabric)
    assert send_flows(fabric, 200, family) == 200
    shares = [crossed(fabric)[link] - before[link] for link in before]
    assert sum(shares) >= 200
    # The hash is the kernel's; with 200 flows a fair one stays within five standard deviations.
    assert min(shares) > 60, shares


def test_break_link__moves_all_flows_to_the_other_spine(fabric: Testbed) -> None:
    for broken in ("leaf0-spine0", "leaf1-spine0"):
        fabric.break_link(broken)
        before = crossed(fabric)
        assert send_flows(fabric, 50) == 50
        moved = {link: crossed(fabric)[link] - before[link] for link in before}
        assert moved == {"leaf0-spine0": 0, "leaf0-spine1": 50}
        states = {row.link: row.up for row in fabric.link_counters()}
        assert not states[broken]
        fabric.heal_link(broken)
    before = crossed(fabric)
    until(lambda: send_flows(fabric, 50) == 50)
    assert all(crossed(fabric)[link] > before[link] for link in before)


def test_break_link__of_a_host_takes_its_carrier() -> None:
    with Testbed(hosts=2) as bed:
        resolve(bed, "host0", "host1")
        bed.break_link("host1")
        carrier = ["cat", "/proc/net/dev"]
        assert bed.exec("host1", carrier).returncode == 0
        with sink(bed, "host1") as sock, udp(bed, "host0") as source:
            sock.settimeout(0.3)
            source.sendto(b"x", (bed.address("host1"), PORT))
            with pytest.raises(TimeoutError):
                sock.recv(16)
        bed.heal_link("host1")
        resolve(bed, "host0", "host1")


def test_lossy_spine__loses_only_packets_that_cross_it(fabric: Testbed) -> None:
    fabric.set_loss("100%", link="leaf0-spine0", direction="up")
    try:
        before = crossed(fabric)
        got = send_flows(fabric, 100)
        moved = {link: crossed(fabric)[link] - before[link] for link in before}
        assert got == moved["leaf0-spine1"]
        assert moved["leaf0-spine0"] > 0
    finally:
        fabric.set_loss(0, link="leaf0-spine0")


def test_segmentation_offload__is_off_so_a_run_is_counted_packet_by_packet() -> None:
    with Testbed(hosts=2, rate="1gbit") as bed:
        resolve(bed, "host0", "host1")
        before = bed.link_counters()[0].seen
        with sink(bed, "host1"), udp(bed, "host0") as sock:
            segment = [(socket.SOL_UDP if hasattr(socket, "SOL_UDP") else 17, UDP_SEGMENT, struct.pack("H", PAYLOAD))]
            sock.sendmsg([bytes(PAYLOAD * 10)], segment, 0, (bed.address("host1"), PORT))
            until(lambda: bed.link_counters()[0].seen >= before + 10, 10)
        up = bed.link_counters()[0]
        assert (up.link, up.direction, up.seen - before) == ("host0", "up", 10)
        # And TCP, whose stack builds segments of 64 KB wherever it may.
        code = (
            "import socket, sys\n"
            "s = socket.create_connection((sys.argv[1], 9100)); s.sendall(bytes(1448 * 1000)); s.close()"
        )
        with bed.inside("host1", lambda: socket.create_server((bed.address("host1"), 9100))) as server:
            client = bed.popen("host0", ["python3", "-c", code, bed.address("host1")])
            connection, _ = server.accept()
            while connection.recv(1 << 20):
                pass
            assert client.wait(timeout=10) == 0
        assert bed.link_counters()[0].seen - up.seen >= 1000
        assert queue(bed, "switch", "host1", "all").sent >= 1010


def test_set_rate__changes_the_port_and_the_host_while_it_runs() -> None:
    with Testbed(hosts=2, rate="100mbit", buffer="64KiB") as bed:
        bed.set_rate("8mbit", link="host1")
        bed.set_buffer("32KiB")
        state = bed.port_state("switch", "host1")
        assert (state.rate_bytes_per_second, state.limits[0]) == (1_000_000, 32_768)
        assert bed.port_state("switch", "host0").rate_bytes_per_second == 12_500_000
        shape = bed.exec("host1", ["tc", "qdisc", "show", "dev", "mlt0"]).stdout
        assert "rate 8Mbit" in shape
        resolve(bed, "host0", "host1")
        with sink(bed, "host1"), udp(bed, "host0") as sock:
            for _ in range(100):
                sock.sendto(bytes(PAYLOAD), (bed.address("host1"), PORT))
            # The host sends at 100 Mbit/s, the port drains 8: of 144 KB about 43 stay or leave.
            until(lambda: queue(bed, "switch", "host1", "all").dropped_at_limit > 50)
        with pytest.raises(BadTopologyError, match="rate"):
            bed.set_rate("8")
        assert bed.topology.settings("host1").rate == 8_000_000


def test_status__prints_json() -> None:
    with Testbed(hosts=2, name="t-status", loss="100%") as bed:
        with udp(bed, "host0") as sock:
            sock.sendto(b"x", (bed.address("host1"), PORT))
            until(lambda: bed.link_counters()[0].lost == 1)
        assert command("set", "--name", "t-status", "host1", "--loss", "3%", "--direction", "down").returncode == 0
        assert command("set", "--name", "t-status", "--loss", "2%").returncode == 0
        found = json.loads(command("status", "--name", "t-status", "--json", "-").stdout)
        text = command("status", "--name", "t-status").stdout
    rows = {(row["link"], row["direction"]): row for row in found["links"]}
    assert (rows["host0", "up"]["lost"], rows["host0", "up"]["loss"]) == (1, 0.02)
    # Setting all hosts' way up leaves the other direction of one link as it was.
    assert rows["host1", "up"]["loss"] == 0.02
    assert found["hosts"] == {"host0": "10.77.0.1", "host1": "10.77.0.2"}
    assert {row["queue"] for row in found["queues"]} == {0, 7}
    assert "links of t-status" in text


def routing_header(segments: list[str]) -> bytes:
    """A segment routing header (RFC 8754, section 2): the list is last hop first."""
    listed = [socket.inet_pton(socket.AF_INET6, one) for one in reversed(segments)]
    left = len(listed) - 1
    return struct.pack("BBBBBBH", 0, 2 * len(listed), 4, left, left, 0, 0) + b"".join(listed)


@pytest.mark.parametrize("spine", ["spine0", "spine1"])
def test_routing_header__chooses_the_spine(fabric: Testbed, spine: str) -> None:
    target, packets = "fd77:0:0:1::1", 20
    header = routing_header([fabric.layout.segments[spine], target])

    def receiver() -> socket.socket:
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        sock.bind((target, PORT))
        sock.settimeout(1)
        return sock

    before = crossed(fabric)
    with (
        fabric.inside("host1", receiver) as there,
        fabric.inside("host0", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as here,
    ):
        # By socket option: as a control message per packet the kernel takes type 2 headers only (EINVAL).
        here.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RTHDR, header)
        for _ in range(packets):
            here.sendto(b"x", (target, PORT))
        for _ in range(packets):
            assert there.recv(16) == b"x"
    moved = {link: crossed(fabric)[link] - before[link] for link in before}
    assert moved == {f"leaf0-{name}": packets if name == spine else 0 for name in ("spine0", "spine1")}


def test_mtu__is_the_links_and_a_smaller_one_swallows_large_packets() -> None:
    with Testbed(hosts=3, mtu=4000, links={"host2": {"mtu": 1500}}) as bed:
        resolve(bed, "host0", "host1")
        resolve(bed, "host0", "host2")
        with udp(bed, "host0") as sock, sink(bed, "host1") as wide, sink(bed, "host2") as narrow:
            for size, host in ((3000, "host1"), (1000, "host2"), (3000, "host2")):
                sock.sendto(bytes(size), (bed.address(host), PORT))
            wide.settimeout(1)
            narrow.settimeout(0.3)
            assert len(wide.recv(4000)) == 3000
            assert len(narrow.recv(4000)) == 1000
            with pytest.raises(TimeoutError):
                narrow.recv(4000)


def test_fifo__is_a_plain_queue_with_the_same_losses() -> None:
    with Testbed(hosts=2, queue="fifo", rate="10mbit", buffer="16KiB", links={"host0": {"rate": "1gbit"}}) as bed:
        resolve(bed, "host0", "host1")
        bed.set_loss("100%", link="host1", direction="up")
        with sink(bed, "host1"), udp(bed, "host0") as sock, udp(bed, "host1") as back:
            for _ in range(50):
                sock.sendto(bytes(PAYLOAD), (bed.address("host1"), PORT))
            back.sendto(b"x", (bed.address("host0"), PORT))
            # 72 KB into 16 KiB and htb's first burst of 16 KiB: about half is dropped.
            until(lambda: queue(bed, "switch", "host1", "all").dropped_full > 15)
            until(lambda: any(row.lost == 1 for row in bed.link_counters() if row.link == "host1"))


@pytest.mark.skipif(not Path("/proc/sys/net/core/rps_default_mask").exists(), reason="needs Linux 6.3")
def test_link__keeps_the_order_of_a_flow_on_busy_cpus() -> None:
    done = subprocess.run([sys.executable, str(ORDER), "4"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["arrived"] > 1_000
    assert found["late"] == 0
