"""``verify --switch`` and ``doctor --switch`` read EOS, NX-OS, Junos and Cumulus, from servers of our own.

No vendor's device took part; the forms are those of ``test_counters`` and, for JSON, of public readers.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from checks import assert_names
from push_lab import ROOT, SECRET, USER, inventory, mlt, policy_file, run_mlt
from push_servers import Eapi, Nvue, http
from push_servers_cli import Junos, Nxapi, netconf

pytest.importorskip("napalm")
QFX = ROOT / "examples" / "switch" / "qfx5120.yaml"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return policy_file(tmp_path, "eos: {queue-limit: the profile, step-threshold: a ramp}")


def eos_queues(sent: int, dropped: int = 0) -> str:
    head = "Port      TxQ    Counter/pkts   Counter/bytes     DropPkts    DropBytes\n"
    lines = [f"Et2/1     UC{queue}   {sent}   {1500 * sent}   {dropped if queue == 6 else 0}   0" for queue in range(8)]
    return head + "\n".join(lines)


def test_eos__tables_and_marks(policy: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyavd")
    device = Eapi()
    drops, marks = (
        "show interfaces Ethernet2/1 counters queue detail",
        "show qos interfaces Ethernet2/1 ecn counters queue",
    )
    queues = {**dict.fromkeys(map(str, range(8)), "-"), "6": "4321", "5": "0"}
    device.shows = {drops: eos_queues(5000), marks: {"intfQueueCounters": {"Ethernet2/1": {"queueCounters": queues}}}}
    with http(device) as port:
        words = (
            policy,
            "-t",
            "eos@7060x",
            "--switch",
            "leaf1",
            "--inventory",
            inventory(tmp_path, port, transport="http"),
        )
        read = mlt("verify", *words)
        assert read.returncode == 0, read.stderr
        assert "4321" in read.stdout
        last = read.stderr.strip().splitlines()[-1]
        assert_names(last, "as far as seen", "eos")
        assert "dropped early (front, back)" in last
        found = run_mlt("doctor", "--switch", "leaf1", "--target", "eos@7060x", *("--policy", policy), *words[5:])
        assert found.returncode == 0, found.stdout + found.stderr
        assert_names(found.stdout, "eos does not count: dropped early (front, back)")
        device.shows[drops] = eos_queues(5000, 2500)
        wrong = mlt("verify", *words)
        assert wrong.returncode == 1
        assert "2500 of 7500 packets" in wrong.stderr
        found = run_mlt("doctor", "--switch", "leaf1", "--target", "eos@7060x", *("--policy", policy), *words[5:])
        assert found.returncode == 1
        again = f"mlt switch verify {policy} --target eos@7060x --switch leaf1 --for 10s --inventory {words[-1]}"
        assert again in " ".join(found.stdout.split())
        idle = mlt("verify", *words, "--for", "1s")
        assert idle.returncode == 1
        assert_names(idle.stderr, "not seen", "any data class")
        device.shows[marks] = "a table, though JSON was asked for"
        refused = mlt("verify", *words)
        assert refused.returncode == 1
        assert_names(refused.stderr, "leaf1", "show qos interfaces")


NXOS = """
Egress Queuing for Ethernet1/2 [System]
+-------------------------------------------------------------+
|                          QOS GROUP {queue}                       |
+-------------------------------------------------------------+
|                   Tx Pkts |           5000|             0|
|        WRED/AFD Drop Pkts |              {early}|             0|
|      WD &amp; ECN Marked Pkts |            {marked}|             0|
|              Dropped Pkts |              0|             0|
""".replace("&amp;", "&")


def test_nxos__queuing_of_a_port_by_its_own_letters(policy: Path, tmp_path: Path) -> None:
    device = Nxapi(SECRET)
    queues = [(7, 0, 0), (6, 12, 345), (5, 1, 2), (0, 0, 0)]
    said = "".join(NXOS.format(queue=queue, early=early, marked=marked) for queue, early, marked in queues)
    device.shows["show queuing interface ethernet1/2"] = said
    with http(device) as port:
        words = (policy, "-t", "nxos", "--switch", "leaf1", "--inventory", inventory(tmp_path, port, transport="http"))
        read = mlt("verify", *words)
        assert read.returncode == 0, read.stderr
        assert "345" in read.stdout
        assert "ethernet1/2" in read.stdout  # the policy's name of a port that NX-OS calls Ethernet1/2
        assert read.stderr.strip().endswith("matches the policy")
        device.shows["show queuing interface ethernet1/2"] = NXOS.format(queue=6, early=12, marked=345)
        part = mlt("verify", *words)
        assert part.returncode == 1
        assert "not seen: queues 7 (control), 5 (back), 0 (default) of ethernet1/2" in part.stderr
        device.shows["show queuing interface ethernet1/2"] = "nothing"
        assert_names(mlt("verify", *words).stderr, "no queue counters", "'show queuing interface ethernet1/2'")


JUNOS = """
Queue number: {queue}, Forwarding classes: some
  Transmitted:
    Packets              :                  1400                     0 pps
    Tail-dropped packets :                     0                     0 pps
    RED-dropped packets  :                    70                     0 pps
    ECN-CE packets       :                   222                     0 pps
"""


def test_junos__queues_over_netconf(tmp_path: Path) -> None:
    device = Junos()
    said = "Physical interface: et-0/0/1, Enabled, Physical link is Up\n"
    device.shows["show interfaces queue et-0/0/1"] = said + JUNOS.format(queue=6)
    with netconf(device, SECRET, tmp_path) as (port, known):
        words = (QFX, "-t", "junos@qfx5120", "--ports", "2", "--switch", "leaf1", "--known-hosts", known)
        read = mlt("verify", *words, "--inventory", inventory(tmp_path, port), "--partial")
        assert read.returncode == 0, read.stderr
        assert "222" in read.stdout
        assert "70" in read.stdout
        assert "as far as seen" in read.stderr


def test_cumulus__queues_over_nvue(policy: Path, tmp_path: Path) -> None:
    authorization = "Basic " + base64.b64encode(f"{USER}:{SECRET}".encode()).decode()
    device = Nvue({}, authorization)
    queue: dict[str, Any] = {"tx-frames": 5000, "tx-bytes": 7500000, "tx-uc-buffer-discards": 0, "wred-discards": 0}
    device.stats["swp2"] = {str(number): dict(queue) for number in range(8)}
    device.stats["swp2"]["6"]["wred-discards"] = 41
    with http(device) as port:
        at = inventory(tmp_path, port, transport="http")
        words = (policy, "-t", "cumulus", "--switch", "leaf1", "--inventory", at)
        read = mlt("verify", *words)
        assert read.returncode == 0, read.stderr
        assert "41" in read.stdout
        assert_names(read.stderr, "not checked", "cumulus", "marked (front, back)")
        # Discards are bytes; they were not checked at all.
        device.stats["swp2"]["6"]["tx-uc-buffer-discards"] = 1500 * 500
        wrong = mlt("verify", *words)
        assert wrong.returncode == 1
        assert "750000 B" in wrong.stdout
        assert_names(wrong.stderr, "500 of 5541 packets", "9.0%")
        absent = mlt("verify", *words, "--ports", "3")
        assert absent.returncode == 1
        assert_names(absent.stderr, "404", "/interface/swp3/counters")
