"""The eBPF port: the same behaviour on kernels without prio and red, and exact thresholds without averaging.

``switch_port.bpf.c`` keeps one fluid queue per class, drained at link rate in strict order, and decides per packet:
above L drop, above S mark ECT and drop Not-ECT. htb below it holds the real packets in the same order. Every leaf has a
minimal guaranteed rate, so borrowing decides, which htb grants strictly by ``prio``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files as package_files
from typing import ClassVar

from mlt.switch_configs.behaviour import Behaviour, RandomDetect
from mlt.switch_configs.capabilities import Capabilities, Feature, Support
from mlt.switch_configs.counters import QueueCounters, merge
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.target import PortBuilder, Procedure, Reading, Target, code_lines

SOURCE = "switch_port.bpf.c"
QUEUES = 8
# Tokens for one millisecond, within the precision of timers.
MIN_BURST_BYTES = 16384
# Shell functions of the script: little-endian hex for bpftool's map keys and values.
_PRELUDE = """#!/bin/sh
set -eu
: "${MLT_BPF:=/sys/fs/bpf/mlt-switch}"
here=$(cd "$(dirname "$0")" && pwd)
hex() { n=$1; i=0; while [ $i -lt "$2" ]; do printf '%02x ' $((n & 255)); n=$((n >> 8)); i=$((i + 1)); done; }
dscp() { bpftool map update pinned "$MLT_BPF/maps/queue_of_dscp" key hex $(hex "$1" 4) value hex $(hex "$2" 4); }
begin() { dev=$1; rate=$2; index=$(ip -o link show dev "$1" | cut -d: -f1); values=""
  burst=$((rate / 8000)); if [ "$burst" -lt 16384 ]; then burst=16384; fi; }
queue() { values="$values $(hex "$3" 8)$(hex "$4" 8)"; tc class add dev "$1" parent 1:1 classid 1:1$2 htb \\
  rate 8kbit ceil "${rate}bit" prio $((7 - $2)) burst 1600 cburst "$burst" quantum 1514
  tc qdisc add dev "$1" parent 1:1$2 handle 2$2: bfifo limit "$5"; }
commit() { bpftool map update pinned "$MLT_BPF/maps/port_of_ifindex" key hex $(hex "$index" 4) value hex $(hex 0 8) \\
  $(hex $((rate / 8)) 8)$(hex 0 8)$(hex 0 64)$values
  tc qdisc add dev "$dev" clsact && tc filter add dev "$dev" egress bpf da pinned "$MLT_BPF/programs/mlt_switch_port"; }
"""


class LinuxEbpf(Target):
    """A script that compiles, loads and configures the program; queue numbers are the policy's own."""

    name: ClassVar[str] = "linux-ebpf"
    title: ClassVar[str] = "Linux (eBPF switch port over htb)"
    comment: ClassVar[str] = "#"
    whole: ClassVar[str] = "the script that 'mlt switch generate' wrote"
    capabilities: ClassVar[Capabilities] = Capabilities(
        max_queues=QUEUES,
        above_max_ect="mark",
        above_max_source="our own program",
        support={
            Feature.SELECTIVE_DROP: Support("yes", "our own program; measured"),
            Feature.STRICT_PRIORITY: Support("yes", "fluid queues drain in order, htb borrows in order; measured"),
            Feature.ECN_ON_STRICT: Support("yes", "thresholds belong to the queue"),
            Feature.QUEUE_LIMIT: Support("yes", "our own program"),
            Feature.STEP_THRESHOLD: Support("yes", "no averaging, no ramp"),
            Feature.FAIR: Support("no", "the program drains its queues in strict order", "use target linux"),
            Feature.WEIGHTED: Support(
                "no", "the program drains its queues in strict order", "use target linux with fair"
            ),
        },
    )
    procedure: ClassVar[Procedure] = Procedure(
        apply=("sudo sh ./linux-ebpf.apply.sh   (needs clang, libbpf headers, bpftool, tc; bpffs at /sys/fs/bpf)",),
        verify=("bpftool map dump pinned /sys/fs/bpf/mlt-switch/maps/counters", "tc -s class show dev PORT"),
        undo=("sudo sh ./linux-ebpf.undo.sh",),
        notes=("turn off tso, gso and gro on the ports: thresholds count packets as they leave",),
    )

    def native_port(self, label: str) -> str:
        return f"swp{label}" if label.isdigit() else label

    def render(self, plan: Plan) -> dict[str, str]:
        switch = plan.policy.switch
        lines = [
            *_PRELUDE.rstrip().split("\n"),
            'mkdir -p "$MLT_BPF"',
            f'clang -O2 -g -Wall -target bpf "-I/usr/include/$(uname -m)-linux-gnu" -c "$here/{SOURCE}" '
            '-o "$here/switch_port.bpf.o"',
            'bpftool prog loadall "$here/switch_port.bpf.o" "$MLT_BPF/programs" pinmaps "$MLT_BPF/maps"',
        ]
        lines += [f"dscp {dscp} {queue}" for dscp, queue in enumerate(plan.dscp_to_queue())]
        for port in plan.ports:
            rate = switch.link_rate_bits_per_second
            burst = max(MIN_BURST_BYTES, rate // 8000)
            lines += [
                f"begin {port} {rate}",
                f"tc qdisc add dev {port} root handle 1: htb default 10 r2q 10",
                f"tc class add dev {port} parent 1: classid 1:1 htb rate {rate}bit burst {burst} cburst {burst} "
                "quantum 1514",
            ]
            by_number = {queue.number: queue for queue in plan.queues}
            for number in range(QUEUES):
                queue = by_number.get(number)
                detect = queue.random_detect if queue is not None else None
                low = detect.min_bytes if detect is not None else 0
                limit = (queue.limit_bytes if queue is not None else None) or 0
                lines.append(f"queue {port} {number} {low} {limit} {switch.shared_buffer_bytes}")
            lines.append(f"commit {port}")
        source = package_files("mlt.switch_configs").joinpath("bpf").joinpath(SOURCE).read_text(encoding="utf-8")
        return {"linux-ebpf.apply.sh": "\n".join(lines) + "\n", SOURCE: source}

    def undo(self, plan: Plan) -> dict[str, str]:
        lines = ["#!/bin/sh", "set -eu", ': "${MLT_BPF:=/sys/fs/bpf/mlt-switch}"']
        for port in plan.ports:
            lines += [f"tc qdisc del dev {port} clsact", f"tc qdisc del dev {port} root"]
        lines.append('rm -r "$MLT_BPF"')
        return {"linux-ebpf.undo.sh": "\n".join(lines) + "\n"}

    def parse(self, files: Mapping[str, str], reading: Reading | None = None) -> Behaviour:
        reading = reading or Reading()
        dscp_map: dict[int, int] = {}
        ports: dict[str, PortBuilder] = {}
        committed: set[str] = set()
        prelude = {line for line in _PRELUDE.split("\n") if line}
        for name, text in files.items():
            if not name.endswith(".sh"):
                continue
            for number, line in code_lines(text, self.comment):
                where = f"{name}:{number}"
                if line in prelude or re.match(
                    r"mkdir -p |clang |bpftool prog loadall |tc (qdisc|class) add dev ", line
                ):
                    continue
                if m := re.fullmatch(r"dscp (\d+) ([0-7])", line):
                    if int(m[1]) > 63 or int(m[1]) in dscp_map:
                        raise self.fail(where, f"dscp {m[1]} is out of range or mapped twice")
                    dscp_map[int(m[1])] = int(m[2])
                elif m := re.fullmatch(r"begin (\S+) \d+", line):
                    ports[m[1]] = PortBuilder()
                elif m := re.fullmatch(r"queue (\S+) ([0-7]) (\d+) (\d+) (\d+)", line):
                    self._queue(where, ports, m)
                elif m := re.fullmatch(r"commit (\S+)", line):
                    committed.add(m[1])
                else:
                    raise self.fail(where, f"not a command this target writes: {line!r}")
        used = set(dscp_map.values())
        for port, built in ports.items():
            if port not in committed or len(built.present) != QUEUES:
                raise self.fail(f"port {port}", f"needs {QUEUES} queue lines and a commit")
            # The program always has eight queues; those without a DSCP and without a limit are not the policy's.
            built.present = {q for q in built.present if q in used or q in built.random_detect or q == 0}
            built.dscp = dscp_map
        return {port: built.build() for port, built in ports.items()}

    def _queue(self, where: str, ports: dict[str, PortBuilder], m: re.Match[str]) -> None:
        number, low, limit = int(m[2]), int(m[3]), int(m[4])
        if m[1] not in ports or number in ports[m[1]].present or number != len(ports[m[1]].present):
            raise self.fail(where, "queue lines follow begin, numbered 0 to 7 in order")
        built = ports[m[1]]
        built.present.add(number)
        if low and limit and low >= limit:
            raise self.fail(where, f"S = {low} is not below L = {limit}")
        if low:
            built.random_detect[number] = RandomDetect(
                min_bytes=low, max_bytes=low, probability_percent=100, mark_ect=True, drop_not_ect=True
            )
        if limit:
            built.limits[number] = limit

    def parse_counters(self, text: str) -> list[QueueCounters]:
        """``bpftool map dump`` of ``counters``: key {ifindex, queue}, five 64-bit values per CPU (with BTF)."""
        rows, port, queue = [], "", -1
        totals: dict[str, int] = {}
        names = {"sent": "sent", "marked": "marked", "dropped_early": "dropped_early",
                 "dropped_at_limit": "dropped_at_limit"}  # fmt: skip
        for line in text.splitlines():
            if m := re.search(r'"ifindex": (\d+)', line):
                if queue >= 0:
                    rows.append(QueueCounters(port=port, queue=queue, **totals))
                port, queue, totals = f"ifindex {m[1]}", -1, {}
            elif m := re.search(r'"queue": (\d+)', line):
                queue = int(m[1])
            elif (m := re.search(r'"(\w+)": (\d+)', line)) and m[1] in names:
                totals[names[m[1]]] = totals.get(names[m[1]], 0) + int(m[2])
        if queue >= 0:
            rows.append(QueueCounters(port=port, queue=queue, **totals))
        return merge(rows)


TARGET = LinuxEbpf()
