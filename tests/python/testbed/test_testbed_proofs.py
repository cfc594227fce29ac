"""The switch port, the loss injector and the delay line against arithmetic, in packets that the switch itself counted.

What may go wrong on a busy machine is only that the sender stalls. Each measurement therefore has a rule, stated with
it, that looks at the sender alone and says whether the load was what the arithmetic assumes; an invalid one is
repeated. The bound on the result (10 %) never moves.
"""

from __future__ import annotations

import socket
import statistics
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Semaphore, Thread

import pytest
from checks import until
from testbed_burst import ATTEMPTS, BACK, FRONT, burst, expected_burst, slow_ports_of
from testbed_lab import (
    ECT,
    PAYLOAD,
    POLICY,
    PORT,
    ROOT,
    WIRE,
    needs_testbed,
    queue,
    resolve,
    sink,
    udp,
    valid,
)  # fmt: skip
from testbed_losses import expected_losses

from mlt.testbed import Testbed, tc
from mlt.testbed.counters import key_of
from mlt.testbed.impairments import seed_of
from mlt.testbed.switch_port import decode_port

pytestmark = needs_testbed

TOLERANCE = 0.10
DELAY_TOLERANCE = 0.05
# A full packet's payload; Linux's UDP_SEGMENT, so that a slow sender of Python fills the link.
FULL, UDP_SEGMENT = 1472, 103
FRONT_QUEUE, BACK_QUEUE = 6, 5
# Packets that are sent before those before are counted: fewer than a CPU's queue of received packets holds
# (net.core.netdev_max_backlog, 1,000), which a busy machine lets overflow.
BLOCK = 500


# A delay must change nothing but the time of arrival.
DELAYS = [pytest.param(None, id="no-delay-line"), pytest.param("5ms", id="delay-line")]


@pytest.fixture(params=DELAYS)
def slow_ports(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    with Testbed(**slow_ports_of("ebpf"), **delayed(request.param)) as bed:
        yield bed


def delayed(delay: str | None) -> dict[str, str]:
    return {} if delay is None else {"delay": delay}


def test_switch_port__above_s_marks_ect_and_drops_not_ect(slow_ports: Testbed) -> None:
    pairs = 60  # below L: nothing is dropped but what is not ECN-capable
    found = valid([partial(burst, slow_ports, host, pairs, counts_arrivals=True) for host in slow_ports.hosts[1:]])
    expected = expected_burst(pairs)
    assert expected["dropped_at_limit"] == 0
    for name in ("sent", "marked", "dropped_early"):
        assert found[name] == pytest.approx(expected[name], rel=TOLERANCE), (name, found, expected)
    # S itself: the packets that met a queue below it.
    below = expected["sent"] - expected["marked"]
    assert found["sent"] - found["marked"] == pytest.approx(below, rel=TOLERANCE), (found, expected)
    assert found["dropped_at_limit"] == 0


def test_switch_port__above_l_drops_everything(slow_ports: Testbed) -> None:
    found = valid([partial(burst, slow_ports, host, 150, counts_arrivals=True) for host in slow_ports.hosts[1:]])
    expected = expected_burst(150)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=TOLERANCE), (name, found, expected)


def test_switch_port__drains_nothing_for_a_packet_whose_time_another_cpu_has_passed() -> None:
    """A packet reads the clock, then waits for the port: another CPU's packet may have drained it to a later time."""
    with Testbed(**slow_ports_of("ebpf")) as bed:
        burst(bed, "host1", 60)
        table = bed._tables["port_of_ifindex"]
        key = key_of(next(end for end in bed.layout.ports("switch") if end.interface == "host1"))
        value = bytearray((table.lookup(key, locked=True) or [b""])[0])
        later = time.monotonic_ns() + 10**10
        struct.pack_into("=Q", value, 16, later)  # struct port: lock and pad, rate, drained_at_ns
        before = decode_port(bytes(value))
        table.update(key, bytes(value))
        with sink(bed, "host1"), udp(bed, "host0", FRONT << 2 | ECT) as sock:
            sock.sendto(bytes(PAYLOAD), (bed.address("host1"), PORT))
            until(lambda: bed.port_state("switch", "host1").backlog_bytes != before.backlog_bytes)
        after = bed.port_state("switch", "host1")
    assert before.drained_at_ns == after.drained_at_ns == later
    assert after.backlog_bytes[FRONT_QUEUE] == before.backlog_bytes[FRONT_QUEUE] + WIRE


RATE, SHARE, SECONDS = 4_000_000, 0.7, 2.5


def overload(bed: Testbed, target: str) -> tuple[dict[str, int], dict[str, int], float] | None:
    """Two classes of 0.7 links each into one. Returns packets offered and delivered by class, and the link's packets.

    Valid if no gap between sends exceeded 150 ms: the lower class's queue holds 300 ms, so the link never idled.
    """
    resolve(bed, "host0", target)
    flows = {"layers-1": udp(bed, "host0", FRONT << 2 | ECT), "layers-2": udp(bed, "host0", BACK << 2 | ECT)}
    offered = dict.fromkeys(flows, 0)
    per_second = RATE * SHARE / 8 / WIRE
    with sink(bed, target):
        before = bed.port_state("switch", target).drained_at_ns
        began = last = time.monotonic()
        longest = 0.0
        while (now := time.monotonic()) - began < SECONDS:
            longest, last = max(longest, now - last), now
            for name, sock in flows.items():
                while offered[name] < (now - began) * per_second:
                    sock.sendto(bytes(PAYLOAD), (bed.address(target), PORT))
                    offered[name] += 1
            time.sleep(0.002)  # the pace of the flows
        rows = tc.show(bed.path("switch"))
        seconds = (bed.port_state("switch", target).drained_at_ns - before) / 1e9
    for sock in flows.values():
        sock.close()
    # What left the real queues: the handle 2N: is the queue of class N.
    by_handle = {row["handle"]: row for row in rows if row.get("dev") == target and row["kind"] == "bfifo"}
    delivered = {
        name: round(by_handle[f"2{number}:"]["bytes"] / WIRE)
        for name, number in (("layers-1", FRONT_QUEUE), ("layers-2", BACK_QUEUE))
    }
    return None if longest > 0.15 else (offered, delivered, seconds * RATE / 8 / WIRE)


def test_switch_port__serves_the_higher_class_first() -> None:
    slow = {f"host{number}": {"rate": RATE} for number in range(1, ATTEMPTS + 1)}
    with Testbed(hosts=ATTEMPTS + 1, rate="1gbit", links=slow, policy=str(POLICY)) as bed:
        offered, delivered, link = valid([partial(overload, bed, host) for host in bed.hosts[1:]])
    # Equal treatment would give each half of the link, 0.71 of what it offered.
    assert delivered["layers-1"] == pytest.approx(offered["layers-1"], rel=0.02), (offered, delivered)
    assert delivered["layers-2"] == pytest.approx(link - offered["layers-1"], rel=TOLERANCE), (link, offered, delivered)
    assert delivered["layers-2"] < 0.6 * offered["layers-2"]


def all_counted(bed: Testbed, sent: int) -> bool:
    """Whether the links have counted so many packets from host0 to host1, but those that they lost."""
    rows = {(row.link, row.direction): row for row in bed.link_counters()}
    up = rows["host0", "up"]
    return up.seen >= sent and rows["host1", "down"].seen >= up.seen - up.lost


@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize(("loss", "packets"), [(0.01, 40_000), (0.2, 4_000)])
def test_link_loss__loses_the_fraction_and_the_very_packets_of_its_seed(
    loss: float, packets: int, delay: str | None
) -> None:
    with Testbed(hosts=2, rate="200mbit", loss=loss, seed=7, **delayed(delay)) as bed:
        resolve(bed, "host0", "host1")
        start = {row.direction: row.seen for row in bed.link_counters() if row.link == "host0"}
        with sink(bed, "host1"), udp(bed, "host0") as sock:
            for sent in range(BLOCK, packets + 1, BLOCK):
                for _ in range(BLOCK):
                    sock.sendto(b"x" * 64, (bed.address("host1"), PORT))
                until(partial(all_counted, bed, start["up"] + sent), 10)
        rows = {(row.link, row.direction): row for row in bed.link_counters()}
    up = rows["host0", "up"]
    assert up.seen == start["up"] + packets
    assert up.lost == expected_losses(loss, seed_of(7, "host0", "up"), up.seen)
    assert up.lost / up.seen == pytest.approx(loss, rel=TOLERANCE)
    assert rows["host1", "down"].lost == 0
    assert rows["host1", "down"].seen == up.seen - up.lost


def test_link_loss__is_per_link_and_direction() -> None:
    with Testbed(hosts=3, links={"host1": {"loss_down": "100%"}}) as bed:
        with udp(bed, "host0") as sock, sink(bed, "host1") as deaf, sink(bed, "host2") as hears:
            for host in ("host1", "host2"):
                sock.sendto(b"hello", (bed.address(host), PORT))
            hears.settimeout(2)
            deaf.settimeout(0.3)
            assert hears.recv(16) == b"hello"
            with pytest.raises(TimeoutError):
                deaf.recv(16)
        lost = {(row.link, row.direction): row.lost for row in bed.link_counters() if row.lost}
    assert lost == {("host1", "down"): 1}


@pytest.mark.parametrize("file", [POLICY, ROOT / "examples" / "switch" / "paper-testbed.yaml"])
def test_switch_port__is_what_mlt_switch_generates(file: Path) -> None:
    """The port's table in the kernel is that of the generated script, read by its parser; each class gets its own."""
    from mlt.switch_configs.generator import generate
    from mlt.switch_configs.policy import load

    policy = load(file)
    behaviour = generate(policy, "linux-ebpf", ports=("host1",)).behaviour["host1"]
    # The example's switch runs at 100 Gbit/s, the testbed at its own rate: thresholds are bytes and do not change.
    with Testbed(hosts=2, rate="200mbit", policy=str(file)) as bed:
        state = bed.port_state("switch", "host1")
        for one in behaviour.queues:
            low = one.random_detect.min_bytes if one.random_detect is not None else 0
            assert (state.thresholds[one.queue], state.limits[one.queue]) == (low, one.limit_bytes or 0)
        assert state.rate_bytes_per_second == 200_000_000 // 8
        rows = [row for row in tc.show(bed.path("switch")) if row.get("dev") == "host1"]
        assert sorted(row["handle"] for row in rows if row["kind"] == "bfifo") == [f"2{n}:" for n in range(8)]
        resolve(bed, "host0", "host1")
        with sink(bed, "host1"):
            for data in policy.data:
                with udp(bed, "host0", data.dscp << 2) as sock:
                    sock.sendto(b"x", (bed.address("host1"), PORT))
        for data in policy.data:
            until(lambda name=data.name: queue(bed, "switch", "host1", name).sent == 1)  # type: ignore[misc]


def one_way_times(
    bed: Testbed, packets: int, gap: float, hold: float = 0.0, pair: tuple[str, str] = ("host0", "host1")
) -> list[float] | None:
    """Seconds from one host to another of packets that leave one after the other's arrival: none waits for another.

    The sender holds each back for ``hold`` seconds, asleep; they count. Valid if the median pause of ``gap`` seconds
    was late by less than a millisecond: then the receiver is prompt, too.
    """
    source, target = pair
    resolve(bed, source, target)
    times: list[float] = []
    lateness: list[float] = []
    arrived = Semaphore()
    with udp(bed, source) as here, sink(bed, target) as there:

        def send() -> None:
            for _ in range(packets):
                if not arrived.acquire(timeout=5):
                    return  # the receiver failed, and says so
                due = time.monotonic() + gap
                time.sleep(gap)  # the pace
                sent = time.monotonic()
                lateness.append(sent - due)
                if hold > 0:
                    time.sleep(hold)
                here.sendto(struct.pack("d", sent), (bed.address(target), PORT))

        there.settimeout(5)
        sender = Thread(target=send)
        sender.start()
        try:
            for _ in range(packets):
                (sent,) = struct.unpack("d", there.recv(16))
                times.append(time.monotonic() - sent)
                arrived.release()
        finally:
            sender.join()
    return sorted(times) if statistics.median(lateness) < 0.001 else None


def tenth(times: list[float]) -> float:
    """The sorted ``times``' quantile of 10 %."""
    return times[len(times) // 10]


@pytest.mark.parametrize("delay", [0.005, 0.025, 0.1])
def test_delay_line__adds_the_delay(delay: float) -> None:
    """Beside a sender that sleeps for the delay: waking a sleeper and the receiver takes a busy machine 0.3 ms."""
    with Testbed(hosts=2) as bed:
        asleep = valid([partial(one_way_times, bed, 50, 0.001, delay)] * ATTEMPTS)
    with Testbed(hosts=2, delay=delay) as bed:
        found = valid([partial(one_way_times, bed, 50, 0.001)] * ATTEMPTS)
        # The earliest tenth: a busy machine wakes both late, never early.
        assert tenth(found) - (tenth(asleep) - delay) == pytest.approx(delay, rel=DELAY_TOLERANCE)
        # Never less; and the other direction has none.
        assert found[0] >= delay
        assert [row.delay for row in bed.delay_counters()] == [delay, 0, delay, 0]


def test_delay_line__jitter_is_uniform_beyond_the_delay() -> None:
    """Beside a line without jitter, at the same time: both are as late as the machine is busy, and neither is early."""
    delay, jitter, packets = 0.010, 0.020, 200
    with Testbed(hosts=4, delay=delay, seed=3, links={"host0": {"delay": delay, "jitter": jitter}}) as bed:

        def both() -> tuple[list[float], list[float]] | None:
            with ThreadPoolExecutor(2) as at_once:
                pairs = (("host0", "host1"), ("host2", "host3"))
                jittered, plain = at_once.map(lambda pair: one_way_times(bed, packets, 0.001, pair=pair), pairs)
            return None if jittered is None or plain is None else (jittered, plain)

        found, beside = valid([both] * ATTEMPTS)
    assert min(found + beside) >= delay
    late = [one - delay for one in beside]
    # Of the uniform distribution, its quantiles: five standard deviations of the mean of 200 are 2 ms.
    assert statistics.mean(found) == pytest.approx(delay + jitter / 2 + statistics.mean(late), abs=0.0021 + 0.0005)
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        below = sum(one <= delay + share * jitter for one in found) / packets
        expected = statistics.mean(min(max(share - one / jitter, 0.0), 1.0) for one in late)
        # 0.12 is the Kolmogorov-Smirnov bound of 200 draws at 0.5 %.
        assert below == pytest.approx(expected, abs=0.12 + 0.03), (share, below, expected)


def link_rate(bed: Testbed) -> float | None:
    """Bits per second, with Ethernet header, that cross host1's link from a sender that always has more.

    Valid if no gap between sends exceeded 50 ms: the socket's buffer holds that of the link, and half of it when a send
    returns.
    """
    resolve(bed, "host0", "host1")
    run, options = bytes(FULL * 20), [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("H", FULL))]

    def seen() -> int:
        return {(row.link, row.direction): row.seen for row in bed.link_counters()}["host1", "down"]

    with sink(bed, "host1"), udp(bed, "host0") as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        began = last = time.monotonic()
        longest, first, counted = 0.0, 0, began
        while (now := time.monotonic()) - began < 1.2:
            longest, last = max(longest, now - last), now
            if not first and now - began > 0.2:
                first, counted = seen(), time.monotonic()
            sock.sendmsg([run], options, 0, (bed.address("host1"), PORT))
        carried, seconds = seen() - first, time.monotonic() - counted
    return None if longest > 0.05 else carried * (FULL + 42) * 8 / seconds


@pytest.mark.parametrize("delay", DELAYS)
def test_link_rate__is_that_of_the_topology(delay: str | None) -> None:
    with Testbed(hosts=2, rate="200mbit", **delayed(delay)) as bed:
        assert valid([partial(link_rate, bed)] * ATTEMPTS) == pytest.approx(200e6, rel=TOLERANCE)
        drops = [(row.dropped_full, row.dropped_unread, row.dropped_unsent) for row in bed.delay_counters()]
        assert all(row == (0, 0, 0) for row in drops), drops
