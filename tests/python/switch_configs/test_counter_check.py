"""Telemetry in its forms, and the check of each class's counters against the policy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from checks import assert_names
from click.testing import CliRunner, Result
from mlt.switch_configs import counter_check
from mlt.switch_configs.counters import QueueCounters
from mlt.switch_configs.errors import SwitchConfigError
from mlt.switch_configs.generator import generate
from mlt.switch_configs.registry import target
from mlt.switch_configs.telemetry import read, read_openconfig
from switch_lab import small, text

from mlt.cli.switch import app

GNMIC = {  # gnmic's "event"-less JSON of a subscription, a line each
    "source": "leaf1",
    "prefix": "openconfig-qos:qos/interfaces/interface[interface-id=Ethernet1]",
    "updates": [
        {
            "Path": "output/queues/queue[name=q6]/state/transmit-pkts",
            "values": {"output/queues/queue/state/transmit-pkts": 9},
        }
    ],
}
GET = {
    "openconfig-qos:interfaces": {
        "interface": [
            {
                "interface-id": "Ethernet1",
                "output": {
                    "queues": {
                        "queue": [
                            {"name": "q6", "state": {"transmit-pkts": "9", "dropped-pkts": "2", "avg-queue-len": "70"}}
                        ]
                    }
                },
            }
        ]
    }
}


def row(queue: int, **counts: int) -> QueueCounters:
    return QueueCounters(port="swp2", queue=queue, **counts)


def said(*rows: QueueCounters) -> list[tuple[str, str]]:
    plan = generate(small(), "linux").plan
    return [(one.level, str(one)) for one in counter_check.check(plan, rows)]


def test_read__our_json_lines_and_tables() -> None:
    linux = target("linux")
    ours = [{"port": "swp2", "queue": 6, "sent": 5, "marked": None, "queued_bytes": 7}]
    assert read(json.dumps(ours), linux) == [row(6, sent=5, queued_bytes=7)]
    assert read(json.dumps([{"port": "swp2", "queue": "UC6", "sent": 5}]), linux) == [row(6, sent=5)]
    lines = "\n".join(json.dumps([{"port": "swp2", "queue": 6, "sent": count}]) for count in (5, 9))
    assert read(lines, linux) == [row(6, sent=9)]
    with pytest.raises(SwitchConfigError, match="no queue counters in it"):
        read("hello", linux)
    with pytest.raises(SwitchConfigError, match="is not a count"):
        read(json.dumps([{"port": "p", "queue": 6, "sent": -1}]), linux)
    with pytest.raises(SwitchConfigError, match="a name that ends with one"):
        read(json.dumps([{"port": "p", "queue": "best", "sent": 1}]), linux)


def test_read_openconfig__get_and_notifications() -> None:
    expected = QueueCounters(port="Ethernet1", queue=6, sent=9, dropped_at_limit=2, queued_bytes=70)
    assert read_openconfig(GET) == [expected]
    assert read_openconfig({"openconfig-qos:qos": {"interfaces": GET["openconfig-qos:interfaces"]}}) == [expected]
    path = "qos/interfaces/interface[interface-id=Ethernet1]/output/queues/queue[name=q6]/state"
    update = {"update": {"timestamp": 1, "update": [{"path": path, "val": {"transmit-pkts": "9"}}]}}
    assert read_openconfig(update) == [QueueCounters(port="Ethernet1", queue=6, sent=9)]
    assert read_openconfig({"a": [1, {"queue": [{"no": "name"}]}]}) == []


def test_since__differences_and_counters_that_were_cleared() -> None:
    found = counter_check.since([row(6, sent=9, marked=5), row(5, sent=1)], [row(6, sent=4, marked=7)])
    assert found == [row(6, sent=5), row(5, sent=1)]


def test_check__matching_counters_report_nothing() -> None:
    healthy = (
        row(7, sent=50, marked=0, dropped_early=0, dropped_at_limit=0),
        row(6, sent=1000, marked=40, dropped_early=60, dropped_at_limit=1),
        row(5, sent=1000, marked=0, dropped_early=0, dropped_at_limit=0),
        row(0, sent=3, marked=0, dropped_early=0, dropped_at_limit=9),
    )
    assert said(*healthy) == []


@pytest.mark.parametrize(
    ("rows", "level", "words"),
    [
        ([row(7, sent=5, marked=1)], "wrong", "swp2 queue 7 (control): 1 marked and 0 dropped early"),
        ([row(7, sent=5, dropped_at_limit=2)], "wrong", "2 packets dropped; control packets"),
        ([row(0, sent=5, dropped_early=2), row(6, sent=1)], "wrong", "(default): 0 marked and 2 dropped early"),
        ([row(6, sent=90, dropped_at_limit=10)], "wrong", "(front): 10 of 100 packets"),
        ([row(6, sent=90, marked=10, dropped_early=0)], "note", "10 marked and none dropped early"),
        ([row(6, sent=90, marked=0, dropped_early=10)], "note", "10 dropped early and none marked"),
        ([row(6, sent=0), row(5, sent=0), row(0, sent=77)], "wrong", "77 packets in the default class"),
    ],
)
def test_check__names_contradictions(rows: list[QueueCounters], level: str, words: str) -> None:
    found = said(*rows)
    assert [one for one in found if one[0] == level and words in one[1]], found


def mlt(*arguments: str | Path, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["verify", *map(str, arguments)], input=stdin, prog_name="mlt switch")


def test_verify__two_readings_as_json(tmp_path: Path) -> None:
    policy, before = tmp_path / "p.yaml", tmp_path / "before.json"
    policy.write_text(text(), encoding="utf-8")
    before.write_text(json.dumps([{"port": "swp2", "queue": 6, "sent": 100, "dropped_at_limit": 50}]), encoding="utf-8")
    later = json.dumps([{"port": "swp2", "queue": 6, "sent": 1100, "dropped_at_limit": 51, "queued_bytes": 3000}])
    asked = (policy, "-t", "linux", "--input", "-", "--before", before, "--json", "-")
    done = mlt(*asked, "--partial", stdin=later)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)[0]["sent"] == 1000
    assert "as far as seen" in done.stderr
    whole = mlt(*asked, stdin=later)
    assert whole.exit_code == 1
    assert_names(whole.stderr, "queues 7 (control), 5 (back), 0 (default) of swp2", "--partial")
    assert "matches the policy" not in whole.stderr
    alone = mlt(policy, "-t", "linux", "--input", "-", stdin=later.replace("51", "500"))
    assert alone.exit_code == 1
    assert "front" in alone.stdout
    assert "dropped at its limit" in alone.stderr
    assert mlt(policy, "-t", "linux", "--during", "true").exit_code == 2


def test_verify__output_without_counters_is_rejected(tmp_path: Path) -> None:
    """-o was dropped without a word."""
    policy = tmp_path / "p.yaml"
    policy.write_text(text(), encoding="utf-8")
    for option in (("--before", tmp_path / "b.json"), ("--json", tmp_path / "out.json"), ("--partial",)):
        done = mlt(policy, "-t", "linux", *option)
        assert done.exit_code == 2, option
        assert f"{option[0]} goes with --input" in done.output


def test_unseen__queues_ports_and_numbers_without_output() -> None:
    plan = generate(small(ports="[2, 3]"), "linux").plan
    every = [QueueCounters(port=port, queue=number, sent=1, marked=0, dropped_early=0, dropped_at_limit=0)
             for port in ("swp2", "swp3") for number in (7, 6, 5, 0)]  # fmt: skip
    assert counter_check.unseen(plan, every) == []
    assert counter_check.unseen(plan, every[:4]) == ["ports swp3"]
    assert counter_check.unseen(plan, every[1:]) == ["queues 7 (control) of swp2"]
    # A software switch's ports have names of their own, but its queues are the policy's.
    assert counter_check.unseen(plan, [replace(row, port="s0:host1") for row in every[:4]]) == []
    # An idle switch did nothing wrong, and nothing right; that was a note, and then "matches the policy".
    idle = [replace(row, sent=0) for row in every]
    (missing,) = counter_check.unseen(plan, idle)
    assert_names(missing, "any data class", "--during")
    incomplete = [replace(row, marked=None, dropped_at_limit=None) for row in every]
    assert counter_check.uncounted(plan, incomplete) == [
        "marked (front, back)",
        "dropped at the limit (control, front, back)",
    ]
    assert counter_check.uncounted(plan, every) == []
    assert counter_check.uncounted(plan, incomplete, {"marked"}) == ["marked (front, back)"]
    in_bytes = [replace(row, dropped_at_limit=None, dropped_at_limit_bytes=0) for row in every]
    assert counter_check.uncounted(plan, in_bytes) == []


def test_check__drops_in_bytes_alone_are_counted_as_packets_of_full_size() -> None:
    """Cumulus counts them so: a class that lost half of its packets matched the policy."""
    found = said(row(6, sent=1000, dropped_at_limit_bytes=1500 * 1000))
    assert [words for _, words in found if "1000 of 2000 packets dropped" in words], found


def test_named__ports_in_other_letters_are_the_policy_s() -> None:
    plan = generate(small(), "nxos").plan
    assert (
        counter_check.named(plan, [QueueCounters(port="Ethernet1/2", queue=6)])[0].port
        == plan.ports[0]
        == "ethernet1/2"
    )


def test_verify__what_a_system_never_counts_is_in_the_last_line(tmp_path: Path) -> None:
    """It ended with 0 and a note; what the commands do give and the input lacks ends with 1."""
    policy = tmp_path / "p.yaml"
    policy.write_text(text(extra="rounding_tolerance_percent: 25"), encoding="utf-8")
    head = "traffic-class  tx-frames  tx-bytes  tx-uc-buffer-discards  wred-discards\n"
    table = "nv show interface swp2 counters qos egress-queue-stats\n" + head
    table += "".join(f"{queue}  500  1 KB  0 Bytes  0\n" for queue in range(8))
    done = mlt(policy, "-t", "cumulus@sn2100", "--input", "-", stdin=table)
    assert done.exit_code == 0, done.output
    last = done.stderr.strip().splitlines()[-1]
    assert_names(last, "as far as seen", "cumulus", "marked (front, back)")
    incomplete = mlt(policy, "-t", "cumulus@sn2100", "--input", "-", stdin=table.replace("  wred-discards", "").replace(
        "  0 Bytes  0", "  0 Bytes"))  # fmt: skip
    assert incomplete.exit_code == 1
    assert_names(incomplete.stderr, "not seen", "dropped early (front, back)", "--partial")
    assert "incomplete: some counters were not seen" in incomplete.stderr
