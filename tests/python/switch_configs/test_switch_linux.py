"""Linux: the script may run again, and on a switch ASIC only what the driver offloads is written."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess

import pytest
from mlt.switch_configs.errors import CannotExpressError, ParseError
from mlt.switch_configs.generator import generate
from switch_lab import example, small


def test_generate__the_script_replaces_and_adds_no_root() -> None:
    script = generate(example(), "linux", ports=("1",)).apply["linux.apply.sh"]
    roots = [line for line in script.splitlines() if " root " in line and line.startswith("tc ")]
    assert roots == [
        "tc qdisc replace dev swp1 root handle f: pfifo limit 1000",
        "tc qdisc replace dev swp1 root handle 1: htb default 2",
    ]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("tc") is None, reason="needs root and tc")
@pytest.mark.parametrize("part", ["root", "whole"])
def test_generate__tc_takes_the_script_twice(part: str) -> None:
    script = generate(example(), "linux", ports=("d1",)).apply["linux.apply.sh"]
    setup = "ip link add d1 type veth peer name d2 && ip link set d1 up"
    run = ["unshare", "-n", "sh", "-ec"]
    needs = ["htb", *(["prio bands 3", "red limit 60000 min 5000 max 20000 avpkt 1500"] if part == "whole" else [])]
    for queue in needs:
        probe = subprocess.run([*run, f"{setup} && tc qdisc add dev d1 root {queue}"], capture_output=True, check=False)
        if probe.returncode != 0:
            pytest.skip(f"no namespaces, or no sch_{queue.split()[0]} in this kernel")
    if part == "root":
        script = "\n".join(line for line in script.splitlines() if " root " in line and line.startswith("tc "))
    done = subprocess.run(
        [*run, f"{setup}\n( {script}\n)\n( {script}\n)\ntc qdisc show dev d1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "qdisc htb 1: root" in done.stdout


def test_switchdev__prio_at_the_root_and_no_htb() -> None:
    generated = generate(example(), "linux@mlxsw", ports=("1", "2"))
    script = generated.apply["linux.apply.sh"]
    body = [line for line in script.splitlines() if not line.startswith("#")]
    assert not any("htb" in line or "filter" in line for line in body)
    assert "tc qdisc replace dev swp1 root handle 10: prio bands 8 priomap 7 6 5 4 3 2 1 0 7 7 7 7 7 7 7 7" in body
    assert "dcb app replace dev swp1 dscp-prio 8:1 16:2 24:3 32:4 40:5 46:6 48:7 56:7" in body
    assert "dcb app del dev swp1 dscp-prio" in generated.undo["linux.undo.sh"]
    detect = generated.behaviour["swp1"].queue(6)
    assert detect is not None
    assert detect.random_detect is not None
    assert detect.random_detect.min_bytes % 6144 == detect.random_detect.max_bytes % 6144 == 0
    assert detect.limit_bytes is None


@pytest.mark.parametrize("platform", ["mlxsw", "mlxsw-spectrum-2", "mlxsw-spectrum-3"])
def test_switchdev__a_policy_of_fewer_classes_than_queues(platform: str) -> None:
    """It was "generated text does not mean the policy (please report)": prio's empty bands counted as queues."""
    generated = generate(small(extra="rounding_tolerance_percent: 25"), f"linux@{platform}")
    assert [queue.queue for queue in generated.behaviour["swp2"].queues] == [0, 5, 6, 7]


def test_switchdev__what_the_driver_does_not_offload_is_rejected() -> None:
    with pytest.raises(CannotExpressError, match="forwarded packets bypass them"):
        generate(small(sharing="fair"), "linux@mlxsw")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (" ecn\n", "\n"),
        (" ecn\n", " ecn nodrop\n"),
        ("priomap 7 6", "priomap 8 6"),
        ("46:6", "46:5"),
        ("46:6", "64:6"),
        ("parent 10:2", "parent 10:9"),
        ("root handle 10: prio", "root handle 1: htb"),
        ("dcb app replace", "dcb ap replace"),
    ],
)
def test_switchdev__faults_are_caught(old: str, new: str) -> None:
    generated = generate(example(), "linux@mlxsw", ports=("1",))
    script = generated.apply["linux.apply.sh"].replace(old, new)
    assert script != generated.apply["linux.apply.sh"]
    with contextlib.suppress(ParseError):
        assert generated.target.parse({"linux.apply.sh": script}) != generated.plan.intended()
