"""``mlt doctor HOST`` finds what is wrong with a network, and nothing where nothing is."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checks import assert_names
from testbed_lab import command, needs_testbed
from testbed_ranks import tampering

from mlt.testbed import Testbed, namespaces

pytestmark = needs_testbed
pytest.importorskip("mlt._core")

DOCTOR = [sys.executable, "-m", "mlt.cli.main", "doctor"]
# Whatever this machine's scheduler did to round trips is not the network's: only these words are checked.
OK, PROBLEM = "ok", "problem"


@contextlib.contextmanager
def serving(bed: Testbed, host: str, *words: str) -> Iterator[None]:
    """``mlt doctor --serve`` on ``host``, ready to answer."""
    process = bed.popen(host, [*DOCTOR, "--serve", *words], stderr=subprocess.PIPE, text=True)
    try:
        line = process.stderr.readline()
        assert "serving at" in line, line
        yield
    finally:
        process.terminate()
        process.communicate(timeout=10)


def examine(bed: Testbed, *words: str, target: str | None = None) -> tuple[int, dict[str, list[str]]]:
    """host0 examines the way to host1: the exit code, and what was found by level, with the way out behind it."""
    with serving(bed, "host1"):
        done = bed.exec("host0", [*DOCTOR, target or bed.address("host1"), "--json", "-", *words], timeout=90)
    found: dict[str, list[str]] = {OK: [], PROBLEM: [], "optional": []}
    for finding in json.loads(done.stdout):
        assert finding["fix"] or finding["level"] == OK
        found[finding["level"]].append(f"{finding['what']} -> {finding['fix']}")
    return done.returncode, found


def test_clean_network__has_no_problem() -> None:
    with Testbed(hosts=2, rate="200mbit") as bed:
        code, found = examine(bed)
        assert found[PROBLEM] == []
        assert code == 0
        text = "\n".join(found[OK])
        assert f"TCP to {bed.address('host1')} (mlt0, MTU 1500) from {bed.address('host0')} (mlt0, MTU 1500)" in text
        assert "packets of 1500 bytes arrive whole, to 10.77.0.2" in text
        assert "packets of 1500 bytes arrive whole, back from 10.77.0.2" in text
        assert text.count("DSCP and ECN of every class arrive as they were sent") == 2
        assert "300 1500-byte packets: 0 lost" in text


def test_ipv6__is_examined_alike() -> None:
    with Testbed(hosts=2, rate="200mbit") as bed:
        code, found = examine(bed, target="fd77::2")
        assert (code, found[PROBLEM]) == (0, [])
        text = "\n".join(found[OK])
        assert "packets of 1500 bytes arrive whole, to fd77::2" in text
        assert text.count("DSCP and ECN of every class arrive as they were sent") == 2


@pytest.mark.parametrize(("target", "segment"), [(None, 1328), ("fd77:0:0:1::1", 1312)])
def test_path_mtu__that_a_router_reports_is_told_from_a_black_hole(target: str | None, segment: int) -> None:
    with Testbed(hosts=2, spines=1, rate="200mbit", uplink={"mtu": 1400}) as bed:
        code, found = examine(bed, target=target)
        assert code == 1
        there, back = found[PROBLEM]
        for text, way in ((there, "to"), (back, "back from")):
            assert_names(text, f"{way} {target or '10.77.1.1'}", "1400 bytes")
            assert "the interfaces have 1500: " in text
            assert "(ICMP)" in text
            assert f"segment_bytes={segment}" in text
        # Named by the router that is next to it.
        assert "by 10.77.0.254 (ICMP)" in there or "by fd77::fe (ICMP)" in there or target


def test_path_mtu__a_black_hole_is_named() -> None:
    with Testbed(hosts=2, rate="200mbit") as bed:
        shrink = ["ip", "link", "set", "host1", "mtu", "1400"]
        namespaces.inside(bed.path("switch"), lambda: subprocess.run(shrink, check=True))
        code, found = examine(bed)
        assert code == 1
        assert len(found[PROBLEM]) == 2
        for text in found[PROBLEM]:
            assert_names(text, "1500: ", "black hole")
        assert any(" to 10.77.0.2 carries packets of up to 1400 bytes" in text for text in found[PROBLEM])
        # What a veth takes from its peer may be larger by a VLAN's tag.
        assert any(" back from 10.77.0.2 carries packets of up to 140" in text for text in found[PROBLEM])


def test_mtu__that_differs_between_hosts_is_named_with_both() -> None:
    with Testbed(hosts=2, rate="200mbit", links={"host1": {"mtu": 1400}}) as bed:
        code, found = examine(bed)
        assert code == 1
        (text,) = found[PROBLEM]
        assert_names(text, "MTU mismatch", "1500 here", "1400 there", "10.77.0.2")
        assert "sudo ip link set mlt0 mtu 1400 here" in text


def test_dscp__that_is_bleached_is_named_by_class(tmp_path: Path) -> None:
    with Testbed(hosts=2, rate="200mbit") as bed, tampering(bed, "host0", tmp_path, keep=0x03):
        code, found = examine(bed)
        assert code == 1
        (text,) = found[PROBLEM]
        assert_names(text, "DSCP is bleached", "to 10.77.0.2", "control (31), class 0 (3), class 1 (7)")
        assert "class 6 (27)" in text
        assert "DSCP and ECN of every class arrive as they were sent, back from 10.77.0.2 -> " in found[OK]


def test_dscp__that_is_changed_and_ecn_that_is_cleared_are_named(tmp_path: Path) -> None:
    # DSCP 31 (0x7C) loses its upper three bits, as old "IP precedence" rewriting does; no ECN mark survives.
    with Testbed(hosts=2, rate="200mbit") as bed, tampering(bed, "host1", tmp_path, keep=0x1C):
        code, found = examine(bed)
        assert code == 1
        changed, ecn = found[PROBLEM]
        assert_names(changed, "DSCP is changed", "back from 10.77.0.2", "control (31 became 7), class 2 (11 became 3)")
        assert "class 0" not in changed  # 3 fits into three bits
        assert_names(ecn, "ECN is changed", "back from 10.77.0.2", "control (10 became 00), class 0 (10 became 00)")


def test_udp__blocked_in_one_direction_is_named(tmp_path: Path) -> None:
    with Testbed(hosts=2, rate="200mbit") as bed, tampering(bed, "host1", tmp_path, drop=socket.IPPROTO_UDP):
        code, found = examine(bed)
        assert code == 1
        (text,) = found[PROBLEM]
        assert_names(text, "no UDP back from 10.77.0.2", "12 datagrams")
        assert "UDP arrives, to 10.77.0.2 -> " in found[OK]
        # What can be learned one way is.
        assert "packets of 1500 bytes arrive whole, to 10.77.0.2 -> " in found[OK]


def test_loss__is_counted_each_way() -> None:
    with Testbed(hosts=2, rate="200mbit", links={"host0": {"loss_up": "10%"}}) as bed:
        code, found = examine(bed)
        assert code == 1
        small, full = (text for text in found[PROBLEM] if text.startswith("300 "))
        for text in (small, full):
            there = int(text.split(": ")[1].split()[0])
            assert 10 <= there <= 60, text  # 300 at 10 %: five standard deviations are 26
            assert "0 on the path back" in text
        assert len(found[PROBLEM]) == 2, found[PROBLEM]  # loss does not look like anything else


def test_job__examines_from_every_rank_in_turns() -> None:
    done = command("run", "--hosts", "3", "--rate", "200mbit", "--", *DOCTOR, "--job", timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[0] ok       10.77.0.2" in done.stdout
    assert "[0] ok       10.77.0.3" in done.stdout
    for rank in (1, 2):
        assert f"[{rank}] ok       packets of 1500 bytes arrive whole, back from 10.77.0.1" in done.stdout


def test_job__fails_on_every_rank_that_knows_of_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "mtu.yaml"
    file.write_text("hosts: 2\nspines: 1\nrate: 200mbit\nuplink: {mtu: 1400}\n")
    done = command("run", "--topology", str(file), "--", *DOCTOR, "--job", timeout=100)
    assert done.returncode == 1
    assert_names(done.stdout, "PROBLEM", "10.77.0.1", "1400 bytes")
    assert "[0] PROBLEM  10.77.1.1 (" in done.stdout
    assert "found 2 problems" in done.stdout
