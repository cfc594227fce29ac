"""Pasted command output becomes marks and drops per class, for every target; what is not said stays unknown."""

from __future__ import annotations

import pytest
from mlt.switch_configs.counters import QueueCounters, integer, merge
from mlt.switch_configs.registry import target, targets

OUTPUTS: dict[str, tuple[str, QueueCounters]] = {
    "sonic": (
        """
     Port    TxQ    WredDrp/pkts    WredDrp/bytes    EcnMarked/pkts    EcnMarked/bytes
---------  -----  --------------  ---------------  ----------------  -----------------
Ethernet0    UC6             120           180000             4,321             6481500
Ethernet0    UC7             N/A              N/A               N/A                 N/A

     Port    TxQ    Counter/pkts    Counter/bytes    Drop/pkts    Drop/bytes
---------  -----  --------------  ---------------  -----------  ------------
Ethernet0    UC6           99999        149998500            7         10500
""",
        QueueCounters(port="Ethernet0", queue=6, sent=99999, marked=4321, dropped_early=120, dropped_at_limit=7),
    ),
    "linux": (
        """
qdisc prio 10: dev swp2 parent 1:2 bands 8 priomap 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7
 Sent 11184200 bytes 7774 pkt (dropped 1398, overlimits 0 requeues 0)
qdisc red 22: dev swp2 parent 10:2 limit 128Kb min 32Kb max 35768b ecn
 Sent 8574132 bytes 5946 pkt (dropped 1398, overlimits 2611 requeues 0)
 backlog 0b 0p requeues 0
  marked 1213 early 1398 pdrop 2 other 0
""",
        QueueCounters(port="swp2", queue=6, sent=5946, marked=1213, dropped_early=1398, dropped_at_limit=2),
    ),
    "linux-ebpf": (
        """[{
        "key": {
            "ifindex": 5,
            "queue": 6
        },
        "values": [{
                "cpu": 0,
                "value": {
                    "sent": 10,
                    "marked": 3,
                    "dropped_early": 4,
                    "dropped_at_limit": 0
                }
            },{
                "cpu": 1,
                "value": {
                    "sent": 5,
                    "marked": 1,
                    "dropped_early": 0,
                    "dropped_at_limit": 2
                }
            }
        ]
    }
]""",
        QueueCounters(port="ifindex 5", queue=6, sent=15, marked=4, dropped_early=4, dropped_at_limit=2),
    ),
    "junos": (
        """
Physical interface: et-0/0/0, Enabled, Physical link is Up
Egress queues: 10 supported, 8 in use
Queue number: 6, Forwarding classes: mlt-layers-1
  Queued:
    Packets              :                  1500                     0 pps
  Transmitted:
    Packets              :                  1400                     0 pps
    Tail-dropped packets :                    30                     0 pps
    RED-dropped packets  :                    70                     0 pps
    ECN-CE packets       :                   222                     0 pps
""",
        QueueCounters(port="et-0/0/0", queue=6, sent=1400, marked=222, dropped_early=70, dropped_at_limit=30),
    ),
    "nxos": (
        """
Egress Queuing for Ethernet1/1 [Interface]
+-------------------------------------------------------------------+
|                              QOS GROUP 6                            |
+-------------------------------------------------------------------+
|                           |  Unicast       |Multicast     |
|                   Tx Pkts |           5000|             0|
|        WRED/AFD Drop Pkts |             12|             0|
|      WD & ECN Marked Pkts |            345|             0|
|              Dropped Pkts |              6|             0|
""",
        QueueCounters(port="Ethernet1/1", queue=6, sent=5000, marked=345, dropped_early=12, dropped_at_limit=6),
    ),
    "eos": (
        """
Ethernet1:
Tx Queue   ECN Marked Packets
UC6        4321
Port    TxQ   Counter/pkts   Counter/bytes   DropPkts   DropBytes
Et1     UC6   99999          149998500       7          10500
""",
        QueueCounters(port="Ethernet1", queue=6, sent=99999, marked=4321, dropped_at_limit=7),
    ),
    "cumulus": (
        """
cumulus@switch:~$ nv show interface swp1 counters qos egress-queue-stats
traffic-class  tx-frames  tx-bytes  tx-uc-buffer-discards  wred-discards
-------------  ---------  --------  ---------------------  -------------
6              5000       7500000   3                      41
7              10         640       0                      0
""",
        QueueCounters(port="swp1", queue=6, sent=5000, dropped_early=41, dropped_at_limit=3),
    ),
    "os10": (
        """
OS10# show queuing statistics interface ethernet 1/1/1
Interface ethernet1/1/1
Queue Packets       Bytes          Dropped-Packets Dropped-Bytes
6     5000          7500000        17              25500
""",
        QueueCounters(port="ethernet1/1/1", queue=6, sent=5000, dropped_at_limit=17),
    ),
    "srlinux": (
        """
interface ethernet-1/1 {
    output {
        queues {
            queue unicast-6 {
                queue-statistics {
                    aggregate-statistics {
                        transmitted-packets 5000
                        dropped-packets 7
                        ecn-marked-packets 345
""",
        QueueCounters(port="ethernet-1/1", queue=6, sent=5000, marked=345, dropped_at_limit=7),
    ),
    "openconfig": (
        """
{"notification": [{"timestamp": 1, "prefix": "qos/interfaces/interface[interface-id=ethernet-1/1]/output/queues",
  "update": [{"path": "queue[name=q6]/state/transmit-pkts", "val": "5000"},
             {"path": "queue[name=q6]/state", "val": {"openconfig-qos:dropped-pkts": "17"}}]}]}
""",
        QueueCounters(port="ethernet-1/1", queue=6, sent=5000, dropped_at_limit=17),
    ),
    "onyx": (
        """
switch (config) # show interfaces ethernet 1/1 counters tc all
Eth1/1
  TC 6
    5000            TX packet
    345             ECN marked packets
    12              WRED discard
    7               TX queue discard
""",
        QueueCounters(port="1/1", queue=6, sent=5000, marked=345, dropped_early=12, dropped_at_limit=7),
    ),
}


@pytest.mark.parametrize("name", list(targets()))
def test_parse_counters__reads_the_commands_output(name: str) -> None:
    output, expected = OUTPUTS[name]
    assert expected in target(name).parse_counters(output)


@pytest.mark.parametrize("name", list(targets()))
def test_parse_counters__other_text_gives_nothing(name: str) -> None:
    assert target(name).parse_counters("% Invalid command at '^' marker.\n\nlorem 6 ipsum 7\n") == []


def test_parse_counters__cumulus_takes_the_table_of_the_manual() -> None:
    text = """
cumulus@switch:~$ nv show interface swp1 counters qos
Ingress Buffer Statistics
============================
    priority-group  rx-frames  rx-buffer-discards  rx-shared-buffer-discards
    --------------  ---------  ------------------  -------------------------
    6               12         0 Bytes             0 Bytes

Egress Queue Statistics
==========================
    traffic-class  tx-frames  tx-bytes  tx-uc-buffer-discards  wred-discards
    -------------  ---------  --------  ---------------------  -------------
    0              0          0 Bytes   0 Bytes                0
    6              5000       7.50 MB   4.50 KB                41

PFC Statistics
=================
    switch-priority  rx-pause-frames  rx-pause-duration  tx-pause-frames  tx-pause-duration
    ---------------  ---------------  -----------------  ---------------  -----------------
    6                0                0                  0                0
"""
    rows = target("cumulus").parse_counters(text)
    assert rows == [
        QueueCounters(port="swp1", queue=6, sent=5000, dropped_early=41, dropped_at_limit_bytes=4500),
        QueueCounters(port="swp1", queue=0, sent=0, dropped_early=0, dropped_at_limit=0, dropped_at_limit_bytes=0),
    ]


def test_merge__joins_commands_and_keeps_unknown_unknown() -> None:
    rows = [QueueCounters(port="p", queue=1, marked=3), QueueCounters(port="p", queue=1, sent=9)]
    assert merge(rows) == [QueueCounters(port="p", queue=1, marked=3, sent=9)]


def test_integer__numbers_only() -> None:
    assert (integer("1,234"), integer("N/A"), integer("-"), integer("0")) == (1234, None, None, 0)
