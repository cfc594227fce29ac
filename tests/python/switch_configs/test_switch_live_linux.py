"""The Linux outputs on real kernels: strict priority, Not-ECT dropped above S, ECT marked and kept, control untouched.

eBPF port: network namespaces of our own on this kernel. tc (prio, red): Debian's user-mode-linux, because this project
cannot count on a kernel with sch_red. Expected losses are fluid arithmetic; the tolerance covers noisy machines.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from mlt.switch_configs.generator import generate
from switch_lab import ROOT, example, small

sys.path.insert(0, str(ROOT / "tests" / "support"))
user_mode_linux = import_module("user_mode_linux")

pytestmark = pytest.mark.live

TRAFFIC = Path(__file__).with_name("switch_traffic.py")
SECONDS = 3
FRONT, BACK, CONTROL = 46 << 2, 10 << 2, 48 << 2
ECT = 2
# Two flows of 0.7 links into one: the favoured passes whole, the other keeps 0.3 of its 0.7.
SHARE = 0.7
EXPECTED_LOSS = 1 - (1 - SHARE) / SHARE
# The queues are small against what three seconds bring, so that what they hold hardly counts.
POLICY = {"l1": "131072", "s2": "49152", "l2": "131072"}
RATE_EBPF = 20_000_000
# User-mode-linux is slow: about a thousand packets a second leave it room.
RATE_UML = 8_000_000


def runs(rate: int) -> dict[str, tuple[str, str]]:
    flow = int(rate * SHARE)
    return {
        "selective": (f"7001:{FRONT | ECT}:{flow}", f"7002:{FRONT}:{flow}"),
        "strict": (f"7003:{FRONT | ECT}:{flow}", f"7004:{BACK | ECT}:{flow}"),
        "control": (f"7005:{CONTROL}:{flow // 10}", f"7006:{FRONT | ECT}:{flow * 2}"),
    }


def check(name: str, sent: dict[str, int], got: dict[str, dict[str, int]]) -> None:
    (first, n_first), (second, n_second) = sent.items()
    lost_first = 1 - got[first]["received"] / n_first
    lost_second = 1 - got[second]["received"] / n_second
    marked = got[first]["marked"]
    losses = f"{lost_first:.2%} and {lost_second:.2%}"
    print(f"{name}: lost {losses} (fluid {EXPECTED_LOSS:.2%}), marked {marked}")
    assert n_first > 100
    if name == "control":
        assert lost_first < 0.02
        assert got[first]["marked"] == 0
        # Here one ECT flow overloads its queue, so it is marked whatever the interleaving.
        assert got[second]["marked"] > 50
        return
    # A stalled machine bunches packets up to the limit; a favoured flow still loses far less than an equal one.
    assert lost_first < 0.12, f"{name}: the favoured flow lost {lost_first:.1%}"
    # Without priority or selection both flows would lose alike, (2 x 0.7 - 1) / (2 x 0.7) = 29 %.
    assert lost_second == pytest.approx(EXPECTED_LOSS, rel=0.3), f"{name}: lost {lost_second:.1%}"
    if name == "selective":
        assert got[second]["marked"] == 0


def missing(*programs: str) -> str:
    absent = [program for program in programs if shutil.which(program) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def sh(command: str, **extra: str) -> str:
    done = subprocess.run(
        ["sh", "-euc", command], capture_output=True, text=True, timeout=60, env={**os.environ, **extra}, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def star(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A sender and a receiver behind a bridge, each in a namespace; (name prefix, a bpffs of our own)."""
    if os.geteuid() != 0:
        pytest.skip("needs root for network namespaces")
    if reason := missing("ip", "tc", "nsenter", "clang", "bpftool"):
        pytest.skip(reason)
    if not Path("/usr/include/bpf/bpf_helpers.h").exists():
        pytest.skip("libbpf headers are not installed")
    prefix, bpffs = f"mltsw{os.getpid()}", tmp_path / "bpf"
    bpffs.mkdir()
    spaces = [f"{prefix}-{role}" for role in ("tx", "sw", "rx")]
    try:
        sh(f"mount -t bpf bpf {bpffs}")
        for space in spaces:
            sh(f"ip netns add {space} && ip -n {space} link set lo up")
        sh(wires(*spaces))
        yield prefix, str(bpffs)
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
        subprocess.run(["umount", str(bpffs)], check=False, capture_output=True)


def wires(tx: str, sw: str, rx: str) -> str:
    lines = [f"ip -n {sw} link add br0 type bridge", f"ip -n {sw} link set br0 up"]
    for number, space in ((1, tx), (2, rx)):
        lines += [
            f"ip link add e0 netns {space} type veth peer name swp{number} netns {sw}",
            f"ip -n {space} addr add 10.77.0.{number}/24 dev e0",
            f"ip -n {space} link set e0 up",
            f"ip -n {sw} link set swp{number} master br0 up",
        ]
    return "\n".join(lines)


def in_space(space: str, *command: str) -> list[str]:
    # Not "ip netns exec": that mounts a new /sys and hides the bpffs.
    return ["nsenter", f"--net=/run/netns/{space}", *command]


def measure(tx: str, rx: str, flows: tuple[str, str]) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    ports = [flow.split(":")[0] for flow in flows]
    receiver = subprocess.Popen(
        in_space(rx, sys.executable, str(TRAFFIC), "receive", str(SECONDS + 1.5), *ports),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == "ready\n"
    sender = in_space(tx, sys.executable, str(TRAFFIC), "send", str(SECONDS), "10.77.0.2", *flows)
    sent = json.loads(subprocess.run(sender, capture_output=True, text=True, check=True, timeout=60).stdout)
    got = json.loads(receiver.communicate(timeout=60)[0])
    return sent, got


def test_linux_ebpf__drops_selectively_and_keeps_priority(star: tuple[str, str], tmp_path: Path) -> None:
    prefix, bpffs = star
    generated = generate(small(rate=str(RATE_EBPF), **POLICY), "linux-ebpf")
    for name, text in {**generated.apply, **generated.undo}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    pins = f"{bpffs}/mlt-switch"
    sh(" ".join(in_space(f"{prefix}-sw", "sh", str(tmp_path / "linux-ebpf.apply.sh"))), MLT_BPF=pins)
    for name, flows in runs(RATE_EBPF).items():
        check(name, *measure(f"{prefix}-tx", f"{prefix}-rx", flows))
        time.sleep(0.2)  # the queues of the last run are empty by then
    rows = generated.target.parse_counters(sh(f"bpftool map dump pinned {pins}/maps/counters"))
    by_queue = {row.queue: row for row in rows}
    front = by_queue[6]
    assert front.marked
    assert front.dropped_early
    assert by_queue[5].dropped_at_limit
    assert not by_queue[7].marked
    assert not by_queue[7].dropped_early
    sh(" ".join(in_space(f"{prefix}-sw", "sh", str(tmp_path / "linux-ebpf.undo.sh"))), MLT_BPF=pins)
    assert "clsact" not in sh(f"tc -n {prefix}-sw qdisc show dev swp2")
    assert not Path(pins).exists()


@pytest.mark.slow
def test_linux_tc__drops_selectively_and_keeps_priority_in_user_mode_linux(tmp_path: Path) -> None:
    if reason := user_mode_linux.missing() or missing("ip", "tc"):
        pytest.skip(reason)
    generated = generate(small(rate=str(RATE_UML), **POLICY), "linux")
    for name, text in {**generated.apply, **generated.undo}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    # The example and the two-level form, at their own rates: tc must take every line.
    for name, policy in (("example", example()), ("fair", small(sharing="fair"))):
        script = generate(policy, "linux", ports=("9",)).apply["linux.apply.sh"]
        (tmp_path / f"{name}.sh").write_text(script, encoding="utf-8")
    modules = ["veth", "bridge", "sch_red", "sch_prio", "sch_htb", "cls_u32"]
    output = user_mode_linux.boot(tmp_path, modules, _body(tmp_path), timeout=110)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    assert len(lines) == 2 * len(runs(RATE_UML)), output
    for name, (sent, got) in zip(runs(RATE_UML), zip(lines[::2], lines[1::2], strict=True), strict=True):
        check(name, json.loads(sent), json.loads(got))
    rows = {row.queue: row for row in generated.target.parse_counters(output)}
    assert rows[6].marked
    assert rows[6].dropped_early
    assert rows[7].marked is None
    assert "undone: 0" in output
    assert "example: 0" in output, output
    assert "fair: 0" in output, output


def _body(folder: Path) -> str:
    """The script that runs inside, once the modules are loaded."""
    steps = []
    for flows in runs(RATE_UML).values():
        ports = " ".join(flow.split(":")[0] for flow in flows)
        steps.append(
            "rm -f /run/got\n"
            f"nsenter --net=/run/netns/rx {sys.executable} {TRAFFIC} receive {SECONDS + 4} {ports} > /run/got &\n"
            "for i in 1 2 3 4 5 6 7 8 9 10; do grep -qs ready /run/got && break; sleep 1; done\n"
            f"nsenter --net=/run/netns/tx {sys.executable} {TRAFFIC} send {SECONDS} 10.77.0.2 {' '.join(flows)}\n"
            "wait; tail -n 1 /run/got"
        )
    return "\n".join(
        [
            "for n in tx sw rx; do ip netns add $n; ip -n $n link set lo up; done",
            wires("tx", "sw", "rx"),
            f"nsenter --net=/run/netns/sw sh {folder}/linux.apply.sh",
            *steps,
            "tc -n sw -s qdisc show dev swp2",
            f"nsenter --net=/run/netns/sw sh {folder}/linux.undo.sh",
            'echo "undone: $(tc -n sw qdisc show dev swp2 | grep -c red)"',
            "ip -n tx link add swp9 type veth peer name swp8",
            f"for f in example fair; do nsenter --net=/run/netns/tx sh {folder}/$f.sh 2>&1",
            '  echo "$f: $?"; tc -n tx qdisc del dev swp9 root; done',
        ]
    )
