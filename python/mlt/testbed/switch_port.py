"""Switch ports: the output of ``mlt switch`` for Linux, applied to the testbed's interfaces.

The generated script is the only source. It runs here with ``tc``, ``bpftool`` and ``clang`` replaced by shell functions
that print their arguments. The printed tc lines go to tc in the switch's namespace, the printed table entries to the
loaded program, so neither bpftool nor a bpf file system is needed. A switch without a policy has a policy without
classes: one queue that drops at its limit.
"""

from __future__ import annotations

import struct
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlt.testbed.errors import BadTopologyError, TestbedError
from mlt.testbed.topology import QueueKind, Topology

QUEUES = 8
DEFAULT_BUFFER = 256 * 1024
_TARGETS = {"ebpf": "linux-ebpf", "red": "linux"}
_PLACEHOLDER = "PORT"
_SHADOWS = """
mkdir() { :; }
clang() { :; }
ip() { echo "0: $5"; }
tc() { echo "tc $*"; }
bpftool() { echo "bpftool $*"; }
"""
# struct port of switch_port.bpf.c: lock, pad, rate, time, 8 backlogs, 8 x (threshold, limit).
_PORT = struct.Struct(f"=IIQQ{QUEUES}Q{2 * QUEUES}Q")
_COUNTER = struct.Struct("=4Q")


@dataclass(frozen=True)
class PortSettings:
    """One egress port of a switch. ``rate`` in bit/s, ``buffer`` in bytes."""

    interface: str
    index: int
    rate: int
    buffer: int


@dataclass(frozen=True)
class Commands:
    """Setup of one switch: tc lines (without "tc"), and table name -> key -> value."""

    tc: list[str]
    tables: dict[str, dict[bytes, bytes]]


@dataclass(frozen=True, kw_only=True)
class QueueCounters:
    """One queue of a port, in packets; ``backlog`` in bytes. ``dropped_full``: by the real queue below the program."""

    switch: str
    port: str
    queue: int
    name: str
    sent: int = 0
    marked: int = 0
    dropped_early: int = 0
    dropped_at_limit: int = 0
    dropped_full: int = 0
    backlog: int = 0


class Classes:
    """The policy of a testbed: the name of each queue, and the script for a port."""

    def __init__(self, topology: Topology) -> None:
        """Read and check the policy; raises BadTopologyError with the policy checker's text."""
        from mlt.switch_configs.errors import SwitchConfigError
        from mlt.switch_configs.policy import load

        self.kind: QueueKind = topology.queue
        self._policy = None
        try:
            if topology.policy is not None:
                self._policy = load(topology.policy)
                self.plan(PortSettings("switch", 1, topology.rate, topology.buffer or self.buffer))
        except SwitchConfigError as error:
            raise BadTopologyError(f"policy: {error}") from None

    @property
    def buffer(self) -> int:
        """Bytes of a port's buffer if the topology gives none."""
        return DEFAULT_BUFFER if self._policy is None else int(self._policy.switch.shared_buffer_bytes)

    def plan(self, port: PortSettings) -> Any:
        """The policy at this port's rate and buffer, resolved for the Linux target."""
        from mlt.switch_configs import generator
        from mlt.switch_configs.behaviour import QueueBehaviour
        from mlt.switch_configs.plan import Plan, PlannedQueue
        from mlt.switch_configs.policy import DataClass, Policy, Switch, Wred
        from mlt.switch_configs.registry import target
        from mlt.switch_configs.semantics import require_sound

        switch = Switch(
            shared_buffer_bytes=port.buffer, link_rate_bits_per_second=port.rate, ports=(port.interface,), queues=QUEUES
        )
        if self._policy is None:
            unused = DataClass(name="unused", dscp=1, wred=Wred(min_threshold_bytes=1), limit_bytes=2)
            behaviour = QueueBehaviour(queue=0, limit_bytes=port.buffer if self.kind == "ebpf" else None)
            only = PlannedQueue(number=0, role="default", name="all", dscp=(), behaviour=behaviour)
            policy = Policy(switch=switch, data=(unused,))
            return Plan(
                policy=policy, ports=(port.interface,), labels=(), queues=(only,), group_weights={}, accepted=()
            )
        own = self._policy.switch
        switch = switch.model_copy(update={"queues": own.queues, "packet_bytes": own.packet_bytes})
        policy = self._policy.model_copy(update={"switch": switch})
        require_sound(policy, source=f"policy {policy.name} at buffer {port.buffer} B")
        return generator.plan(policy, target(_TARGETS[self.kind]), ports=(port.interface,))

    def queue_names(self) -> dict[int, str]:
        """Queue number -> class name. Address resolution uses the control queue, even without a policy."""
        plan = self.plan(PortSettings("switch", 1, 10**9, self.buffer))
        return {QUEUES - 1: "control"} | {queue.number: queue.name for queue in plan.queues}

    def commands(self, ports: list[PortSettings]) -> Commands:
        """All commands that set up ``ports`` of one switch."""
        from mlt.switch_configs.registry import target

        if self.kind == "fifo":
            return Commands([line for port in ports for line in _fifo(port)], {})
        found = Commands([], {})
        expanded: dict[tuple[int, int], list[str]] = {}
        for port in ports:
            # Ports with the same rate and buffer share one run of the script.
            key = (port.rate, port.buffer)
            if key not in expanded:
                files = target(_TARGETS[self.kind]).render(self.plan(replace(port, interface=_PLACEHOLDER, index=0)))
                expanded[key] = _expand(next(text for name, text in files.items() if name.endswith(".sh")))
            _read(expanded[key], port, found)
            if self.kind == "red":
                found.tc.append(f"qdisc add dev {port.interface} clsact")
        return found


def _fifo(port: PortSettings) -> list[str]:
    burst = max(16_384, port.rate // 8000)
    return [
        f"qdisc add dev {port.interface} root handle 1: htb default 10",
        f"class add dev {port.interface} parent 1: classid 1:10 htb rate {port.rate}bit burst {burst} cburst {burst} "
        "quantum 1514",
        f"qdisc add dev {port.interface} parent 1:10 handle 20: bfifo limit {port.buffer}",
        f"qdisc add dev {port.interface} clsact",
    ]


def _expand(script: str) -> list[str]:
    done = subprocess.run(["sh", "-c", _SHADOWS + script], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TestbedError(f"the generated switch script failed: {done.stderr.strip()}")
    return done.stdout.splitlines()


def _read(lines: list[str], port: PortSettings, into: Commands) -> None:
    for line in lines:
        words = [port.interface if word == _PLACEHOLDER else word for word in line.split()]
        if words[0] == "tc" and words[1] == "filter" and "pinned" in words:
            continue  # attached by its number instead
        if words[0] == "tc":
            into.tc.append(" ".join(words[1:]))
        elif words[:4] == ["bpftool", "map", "update", "pinned"]:
            at_key, at_value = words.index("key"), words.index("value")
            name = Path(words[4]).name
            key = bytes.fromhex("".join(words[at_key + 2 : at_value]))
            if name == "port_of_ifindex":
                key = struct.pack("=I", port.index)
            into.tables.setdefault(name, {})[key] = bytes.fromhex("".join(words[at_value + 2 :]))
        elif words[:3] != ["bpftool", "prog", "loadall"]:
            raise TestbedError(f"the generated switch script does something unexpected: {line!r}")


def as_change(lines: list[str]) -> list[str]:
    """The same tc lines for ports that are set up; classes and queues keep their packets."""
    changed = []
    for line in lines:
        if line.startswith("class add") or (line.startswith("qdisc add") and " parent " in line):
            changed.append(line.replace(" add ", " change ", 1))
    return changed


def as_policy_change(kind: QueueKind, lines: list[str]) -> list[str]:
    """The same tc lines for ports that had other classes. The program always has eight queues, which change in place;
    prio's bands are created again. The program that marks and drops stays attached."""
    if kind != "red":
        return as_change(lines)
    return [line for line in lines if not line.endswith(" clsact")]


def decode_counters(values: list[bytes]) -> dict[str, int]:
    """Sum of one queue's counters over all CPUs."""
    rows = [_COUNTER.unpack(value) for value in values] or [(0, 0, 0, 0)]
    names = ("sent", "marked", "dropped_early", "dropped_at_limit")
    return dict(zip(names, (sum(column) for column in zip(*rows, strict=True)), strict=True))


@dataclass(frozen=True)
class PortState:
    """A port's state in the program: bytes per second, the time of its last packet, and the fluid queues at that
    time."""

    rate_bytes_per_second: int
    drained_at_ns: int
    backlog_bytes: tuple[int, ...]
    thresholds: tuple[int, ...]
    limits: tuple[int, ...]


def decode_port(value: bytes) -> PortState:
    """Unpack ``struct port``."""
    fields = _PORT.unpack(value)
    queues = fields[4 + QUEUES :]
    return PortState(fields[2], fields[3], fields[4 : 4 + QUEUES], queues[::2], queues[1::2])
