"""The job's network and its faults: a testbed of two spines that forward by mlt's own program.

The wire (wire.cc) injects delay, duplication, reordering and corruption, because the kernel may lack netem. Partitions
are the testbed's loss of 100 %; slow links are its rates. Counts every dropped packet.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
import subprocess
from pathlib import Path
from typing import Any

from mlt.testbed import Testbed, namespaces
from mlt.testbed.layout import HOST_INTERFACE

RATE = "100mbit"
TRICKLE = 0.002  # of the rate
BUFFER = "8MiB"  # more than the max backlog of a link at this rate
SIOCETHTOOL, ETHTOOL_STXCSUM = 0x8946, 0x17
KEEP_ADDRESSES = Path("/proc/sys/net/ipv6/conf/all/keep_addr_on_down")
UDP_ERRORS = ("InErrors", "RcvbufErrors", "SndbufErrors", "InCsumErrors")


class Network:
    """Two leaves, two spines, and a host for each rank. A context manager; owned by one thread."""

    def __init__(self, ranks: int, wire: Path) -> None:
        self.bed = Testbed(hosts=ranks, spines=2, rate=RATE, buffer=BUFFER)
        self.program = wire
        self.wires: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Network:
        self.bed.up()
        try:
            for host in self.bed.hosts:
                # The wire forwards frames unchanged, so hosts must send them with a complete checksum.
                self.bed.inside(host, _checksums_by_the_stack)
                # Otherwise an interface that goes down loses its IPv6 addresses, and the testbed its routes.
                self.bed.inside(host, lambda: KEEP_ADDRESSES.write_text("1", encoding="ascii"))
            for spine in self.bed.layout.segments:
                self._start_wire(spine)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for wire in self.wires.values():
            wire.kill()
            wire.wait()
        self.bed.down()

    def _start_wire(self, spine: str) -> None:
        path = self.bed.path(spine)
        namespaces.inside(path, lambda: Path("/proc/sys/net/ipv4/ip_forward").write_text("0", encoding="ascii"))
        words = [*namespaces.enter_command(path), str(self.program)]
        for link in self.bed.layout.links:
            if link.upper.node == spine:
                words += [link.upper.interface, self._mac(link.lower.node, link.lower.interface)]
        self.wires[spine] = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _mac(self, node: str, interface: str) -> str:
        from pyroute2 import IPRoute  # type: ignore[import-untyped]

        def ask() -> str:
            with IPRoute() as ip:
                (index,) = ip.link_lookup(ifname=interface)
                return str(ip.get_links(index)[0].get_attr("IFLA_ADDRESS"))

        return namespaces.inside(self.bed.path(node), ask)

    # Faults

    def tell(self, spine: str, command: str) -> None:
        wire = self.wires[spine]
        assert wire.stdin is not None
        wire.stdin.write(command + "\n")
        wire.stdin.flush()

    def begin(self, kind: str, target: str, values: dict[str, float], seed: int) -> None:
        """Start a fault of the network."""
        if kind in ("slow_path", "burst", "damage"):
            pairs = " ".join(f"{name}={value:g}" for name, value in values.items())
            self.tell(target, f"set {pairs} seed={seed}")
        elif kind in ("partition", "long_partition"):
            self.bed.set_loss(1.0, link=target)
        elif kind == "one_way":
            self.bed.set_loss(1.0, link=target, direction="up" if values["up"] else "down")
        elif kind == "trickle":
            self.bed.set_rate(round(self.bed.topology.rate * TRICKLE), link=target)
        elif kind == "interface":
            self.bed.inside(target, lambda: _interface("down"))
        elif kind == "unplug":
            self.bed.break_link(target)

    def end(self, kind: str, target: str) -> None:
        """End the fault."""
        if kind in ("slow_path", "burst", "damage"):
            self.tell(target, "set")
        elif kind in ("partition", "long_partition", "one_way"):
            self.bed.set_loss(0.0, link=target)
        elif kind == "trickle":
            self.bed.set_rate(self.bed.topology.rate, link=target)
        elif kind == "interface":
            gateway = self.bed.layout.bridges[self.bed.layout.leaf_of[target]][0].split("/")[0]
            self.bed.inside(target, lambda: _interface("up", gateway))
        elif kind == "unplug":
            self.bed.heal_link(target)

    # Counting

    def drops(self) -> dict[str, int]:
        """Number of packets that each part of the network has dropped, damaged or reordered so far."""
        found = {
            "queues": sum(one.dropped_early + one.dropped_at_limit + one.dropped_full for one in self.bed.counters()),
            "links": sum(one.lost for one in self.bed.link_counters()),
        }
        for spine, wire in self.wires.items():
            self.tell(spine, "counters")
            assert wire.stdout is not None
            _, dropped, _, reordered, corrupted = map(int, wire.stdout.readline().split())
            found[f"{spine}-wire"] = dropped + reordered + corrupted
        for host in self.bed.hosts:
            found[host] = self.bed.inside(host, _host_drops)
        for switch in self.bed.layout.switches:
            found[switch] = namespaces.inside(self.bed.path(switch), _interface_drops)
        softnet = Path("/proc/net/softnet_stat").read_text(encoding="ascii").splitlines()
        found["softnet"] = sum(int(line.split()[1], 16) for line in softnet)
        return found


def _checksums_by_the_stack() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        value = ctypes.create_string_buffer(struct.pack("=II", ETHTOOL_STXCSUM, 0))
        request = struct.pack("@16sP16x", HOST_INTERFACE.encode(), ctypes.addressof(value))
        fcntl.ioctl(sock, SIOCETHTOOL, request)


def _interface(state: str, gateway: str = "") -> None:
    from pyroute2 import IPRoute

    with IPRoute() as ip:
        (index,) = ip.link_lookup(ifname=HOST_INTERFACE)
        ip.link("set", index=index, state=state)
        if state == "up":
            ip.route("replace", dst="0.0.0.0/0", gateway=gateway)


def _thread_file(name: str) -> list[str]:
    return Path("/proc/thread-self/net", name).read_text(encoding="ascii").splitlines()


def _interface_drops() -> int:
    """Receive and transmit drops of every interface."""
    rows = [line.partition(":")[2].split() for line in _thread_file("dev")[2:]]
    return sum(int(row[3]) + int(row[11]) for row in rows)


def _host_drops() -> int:
    names, values = (line.split()[1:] for line in _thread_file("snmp") if line.startswith("Udp:"))
    udp: dict[str, Any] = dict(zip(names, values, strict=True))
    return sum(int(udp[name]) for name in UDP_ERRORS if name in udp) + _interface_drops()
