"""Where a rank is: the interface towards the others, its address and MTU, and TCP ports that are free there."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import random
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from mlt.perf.problem import BadOptionError, PerfError

_FIRST_PORT, _LAST_PORT, _TRIALS = 10_000, 65_535, 200
_SIOCGIFCONF, _SIOCGIFMTU = 0x8912, 0x8921
_IFREQ = struct.Struct("@16s24s")
_MOST_ADDRESSES = 128


@dataclass(frozen=True)
class Interface:
    """One IPv4 address of this machine, and the interface that has it."""

    name: str
    address: str
    mtu: int

    @property
    def is_loopback(self) -> bool:
        return self.address.startswith("127.")

    def __str__(self) -> str:
        return f"{self.name} {self.address} (MTU {self.mtu})"


def interfaces() -> list[Interface]:
    """Those that are up and have an IPv4 address. Asked of the kernel: /sys shows another namespace's."""
    buffer = array.array("B", bytes(_IFREQ.size * _MOST_ADDRESSES))
    address, length = buffer.buffer_info()
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        used = struct.unpack("@iP", fcntl.ioctl(sock, _SIOCGIFCONF, struct.pack("@iP", length, address)))[0]
        for at in range(0, used, _IFREQ.size):
            raw, rest = _IFREQ.unpack_from(buffer, at)
            mtu = struct.unpack_from("@16si", fcntl.ioctl(sock, _SIOCGIFMTU, struct.pack("@16s24x", raw)))[1]
            found.append(Interface(raw.split(b"\0")[0].decode(errors="replace"), socket.inet_ntoa(rest[4:8]), mtu))
    return found


def find_interface(name: str | None, towards: str) -> Interface:
    """The interface called ``name``, else the one whose address this machine uses ``towards`` a host.

    Raises BadOptionError for a name that is not there or has no IPv4 address, PerfError where no route leads.
    """
    known = interfaces()
    if name is not None:
        for one in known:
            if one.name == name:
                return one
        there = ", ".join(str(one) for one in known) or "none"
        raise BadOptionError(f"no interface {name!r} with an IPv4 address on this machine; there are: {there}")
    try:
        address = socket.getaddrinfo(towards, 9, socket.AF_INET, socket.SOCK_DGRAM)[0][4]
        # Connecting a UDP socket sends nothing: it only asks the routing table.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            own = str(probe.getsockname()[0])
    except OSError as error:
        raise PerfError(
            f"no way to {towards!r} from here: {error.strerror or error}; check the name and the routes"
        ) from None
    for one in known:
        if one.address == own:
            return one
    # All of 127.0.0.0/8 is loopback's, whichever of them it lists.
    for one in known:
        if own.startswith("127.") and one.is_loopback:
            return Interface(one.name, own, one.mtu)
    raise PerfError(f"this machine reaches {towards!r} from {own}, which none of its interfaces has")


def free_port(host: str) -> int:
    """A TCP and UDP port that is free on ``host``, and that the kernel gives to nobody by itself meanwhile."""
    least, greatest = _kernel_ports()
    outside: list[int] = [*range(_FIRST_PORT, least), *range(greatest + 1, _LAST_PORT)] or list(
        range(_FIRST_PORT, _LAST_PORT)
    )
    for port in random.Random(os.urandom(8)).sample(outside, min(_TRIALS, len(outside))):
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        ):
            tcp.bind((host, port))
            udp.bind((host, port))
            return port
    raise PerfError(f"no free port on {host}; end the programs that hold them")


def _kernel_ports() -> tuple[int, int]:
    least, greatest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    return least, greatest


def network_id() -> str:
    """Tells apart the network stacks of ranks on one machine: those that share one also share its counters."""
    return f"{socket.gethostname()}:{os.stat('/proc/self/ns/net').st_ino}"


def retransmitted_segments() -> int:
    """TCP segments that this network stack has sent again since it began."""
    lines = [line.split() for line in Path("/proc/self/net/snmp").read_text(encoding="ascii").splitlines()]
    names, numbers = [line for line in lines if line[0] == "Tcp:"]
    return int(numbers[names.index("RetransSegs")])
