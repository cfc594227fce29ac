"""Several paths over kernel UDP, by what two spines count: both used, each exactly as asked, bad ones avoided."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from checks import until
from testbed_lab import needs_testbed, resolve
from testbed_paths import Stream, crossed, stream

from mlt.testbed import Testbed

pytestmark = needs_testbed

SECOND = 1.0
# A suspended path is tried again every 640 ms at the latest, and comes back in steps.
HEALING_SECONDS = 4.0
BOTH_SPINES = [{"segments": ["fd79::1"]}, {"segments": ["fd79::2"]}]


@pytest.fixture(scope="module", autouse=True)
def _native() -> None:
    pytest.importorskip("mlt._core")


@pytest.fixture(scope="module")
def fabric() -> Iterator[Testbed]:
    """Two leaves, two spines, one host on each leaf."""
    with Testbed(hosts=2, spines=2, rate="1gbit") as bed:
        resolve(bed, "host0", "host1")
        yield bed


def moved_by(bed: Testbed, flow: Stream, tensors: int = 30) -> dict[str, int]:
    """Packets over each spine while so many tensors went."""
    before, had = crossed(bed), len(flow.records)
    until(lambda: len(flow.records) >= had + tensors)
    return {spine: crossed(bed)[spine] - before[spine] for spine in before}


def shared_evenly(bed: Testbed, flow: Stream) -> None:
    """Both spines carry 0.4 to 0.6 of thirty tensors in a row, and have what the sender says that it gave them.

    A busy machine drops datagrams at a socket now and then, for which one path has less until it has healed: then later
    tensors are even.
    """
    deadline = time.monotonic() + 2 * HEALING_SECONDS
    while True:
        sent = flow.records[-1].packets
        spines = list(moved_by(bed, flow).values())
        given = [now - before for now, before in zip(flow.records[-1].packets, sent, strict=True)]
        share, asked = (packets[0] / sum(packets) for packets in (spines, given))
        assert share == pytest.approx(asked, abs=0.1), (spines, given)
        if 0.4 < share < 0.6:
            return
        assert time.monotonic() < deadline, (spines, given, flow.records[-1])


def test_ports__spread_one_tensor_over_both_spines(fabric: Testbed) -> None:
    # That 16 pairs of ports all hash to one spine happens once in 32,768 times.
    with stream(fabric, 16, size=2_000_000) as flow:
        spines = moved_by(fabric, flow)
    total = sum(spines.values())
    assert total > 30 * 1_000
    assert min(spines.values()) > total / 40, spines
    first = flow.records[0]
    assert first.packets[0] > 0
    assert all(packets > 0 for packets in first.packets), "one tensor takes every path"


@pytest.mark.parametrize(("paths", "spine"), [([BOTH_SPINES[0]], "spine0"), ([BOTH_SPINES[1]], "spine1")])
def test_segments__take_the_spine_that_they_name(fabric: Testbed, paths: list[object], spine: str) -> None:
    with stream(fabric, paths, ipv6=True) as flow:
        spines = moved_by(fabric, flow)
    other = next(name for name in spines if name != spine)
    assert spines[spine] > 30 * 150
    # The control connection is TCP without a segment list: some packets per second.
    assert spines[other] < spines[spine] / 50, spines


def test_segments__two_lists_share_the_spines_evenly(fabric: Testbed) -> None:
    with stream(fabric, BOTH_SPINES, ipv6=True) as flow:
        shared_evenly(fabric, flow)


def test_segments_to__of_a_file_are_lists_for_single_ranks(fabric: Testbed, tmp_path: Path) -> None:
    file = tmp_path / "paths.yaml"
    file.write_text("paths:\n- segments: ['fd79::1']\n  segments_to: {1: ['fd79::2']}\n", encoding="utf-8")
    with stream(fabric, str(file), ipv6=True) as flow:
        spines = moved_by(fabric, flow)
    assert spines["spine1"] > 30 * 150
    assert spines["spine0"] < spines["spine1"] / 50, spines


def avoid_and_return(bed: Testbed, flow: Stream, gone: float, moment: float) -> None:
    """Path 0 has at most the share ``gone`` within a second of ``moment``; tensors continue over path 1.

    ``moment`` is when the command that did it returned: on a busy machine that alone may take a second.
    """
    avoided = flow.when(lambda record: record.share[0] <= gone, after=moment, within=SECOND)
    assert avoided is not None, flow.records[-1]
    assert avoided < SECOND
    spines = moved_by(bed, flow)
    assert spines["spine0"] < 1.3 * gone * sum(spines.values()) + 60, spines


def test_dead_spine__is_avoided_within_a_second_and_used_again_when_healed(fabric: Testbed) -> None:
    with stream(fabric, BOTH_SPINES, ipv6=True) as flow:
        fabric.set_loss("100%", link="leaf0-spine0")
        broken = time.monotonic()
        avoid_and_return(fabric, flow, 0.0, broken)
        fabric.set_loss("0%", link="leaf0-spine0")
        back = flow.when(lambda record: record.share[0] > 0.4, after=time.monotonic(), within=HEALING_SECONDS)
        assert back is not None, flow.records[-1]
    # The tensor that lost packets when the spine died was repaired over the other one.
    assert max(record.end - record.start for record in flow.since(broken)) < SECOND


def test_unplugged_spine__is_avoided_within_a_second_and_used_again_when_healed(fabric: Testbed) -> None:
    with stream(fabric, BOTH_SPINES, ipv6=True) as flow:
        fabric.break_link("leaf0-spine0")
        broken = time.monotonic()
        avoid_and_return(fabric, flow, 0.0, broken)
        fabric.heal_link("leaf0-spine0")
        back = flow.when(lambda record: record.share[0] > 0.4, after=time.monotonic(), within=2 * HEALING_SECONDS)
        assert back is not None, flow.records[-1]
    assert max(record.end - record.start for record in flow.since(broken)) < SECOND


def test_lossy_spine__has_little_within_a_second_and_its_share_again_when_healed(fabric: Testbed) -> None:
    with stream(fabric, BOTH_SPINES, ipv6=True) as flow:
        fabric.set_loss("5%", link="leaf0-spine0", direction="up")
        moment = time.monotonic()
        avoid_and_return(fabric, flow, 0.25, moment)
        fabric.set_loss("0%", link="leaf0-spine0", direction="up")
        back = flow.when(lambda record: record.share[0] > 0.4, after=time.monotonic(), within=HEALING_SECONDS)
        assert back is not None, flow.records[-1]


def test_interfaces__are_both_used_and_an_unplugged_one_is_avoided() -> None:
    with Testbed(hosts=2, rate="1gbit") as bed:
        resolve(bed, "host0", "host1")
        # A second cable between the hosts, beside the switch.
        second = ["ip", "link", "add", "mlt1", "type", "veth", "peer", "name", "mlt1", "netns", bed.path("host1").name]
        assert bed.exec("host0", second).returncode == 0
        for number in (0, 1):
            host = f"host{number}"
            assert bed.exec(host, ["ip", "address", "add", f"10.99.0.{number + 1}/24", "dev", "mlt1"]).returncode == 0
            assert bed.exec(host, ["ip", "link", "set", "mlt1", "up"]).returncode == 0
        with stream(bed, ["mlt0", "mlt1"]) as flow:
            even = flow.when(lambda record: min(record.share) > 0.4, after=time.monotonic(), within=2 * HEALING_SECONDS)
            assert even is not None, flow.records[-1]
            assert min(flow.records[-1].packets) > 0.2 * sum(flow.records[-1].packets)
            assert bed.exec("host1", ["ip", "link", "set", "mlt1", "down"]).returncode == 0
            cut = time.monotonic()
            avoided = flow.when(lambda record: record.share[1] == 0, after=cut, within=SECOND)
            assert avoided is not None, flow.records[-1]
            assert bed.exec("host1", ["ip", "link", "set", "mlt1", "up"]).returncode == 0
            back = flow.when(lambda record: record.share[1] > 0.4, after=time.monotonic(), within=2 * HEALING_SECONDS)
            assert back is not None, flow.records[-1]
        assert max(record.end - record.start for record in flow.since(cut)) < SECOND


def test_flow_label__is_on_the_wire(fabric: Testbed) -> None:
    labels: set[tuple[int, int]] = set()

    def listen() -> socket.socket:
        return socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x86DD))

    with (
        fabric.inside("host1", listen) as tap,
        stream(fabric, [{"flow_label": 0xABCDE, "port": 30_001}, {"flow_label": 7, "port": 30_002}], ipv6=True),
    ):
        tap.settimeout(2)
        deadline = time.monotonic() + 5
        while len(labels) < 2 and time.monotonic() < deadline:
            packet = tap.recv(200)
            if packet[6] == socket.IPPROTO_UDP and packet[8:24] == socket.inet_pton(socket.AF_INET6, "fd77::1"):
                (source_port,) = struct.unpack("!H", packet[40:42])
                labels.add((source_port, int.from_bytes(packet[:4], "big") & 0xFFFFF))
    assert labels == {(30_001, 0xABCDE), (30_002, 7)}
