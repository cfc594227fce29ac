"""Where a rank is: the interface towards the others, its address and MTU, and TCP ports that are free there."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from dataclasses import dataclass
from pathlib import Path

from mlt import interfaces
from mlt.errors import ConfigError
from mlt.perf.problem import BadOptionError, PerfError

_FIRST_PORT, _LAST_PORT, _TRIALS = 10_000, 65_535, 200


@dataclass(frozen=True)
class Interface:
    """One IPv4 address of this machine, and the interface that has it."""

    name: str
    address: str
    mtu: int


def find_interface(wanted: str | None, towards: str) -> Interface:
    """The first interface with an IPv4 address of those that ``wanted`` chooses (``mlt.interfaces``), else the one
    whose address this machine uses ``towards`` a host.

    Raises BadOptionError for a choice that leaves none, PerfError where no route leads.
    """
    if wanted is not None:
        try:
            chosen = interfaces.select_interfaces(wanted, source="the interface (--interface or MLT_INTERFACE)")
        except ConfigError as error:
            raise BadOptionError(str(error)) from None
        for one in chosen:
            if ":" not in one.address:
                return Interface(one.interface.name, one.address, one.interface.mtu)
        raise BadOptionError(f"the interfaces that {wanted!r} chooses have no IPv4 address, which mlt perf needs")
    try:
        own = interfaces.source_towards(socket.gethostbyname(towards))
    except OSError as error:
        raise PerfError(
            f"no way to {towards!r} from here: {error.strerror or error}; check the name and the routes"
        ) from None
    found = interfaces.interface_of(own)
    if found is None:
        raise PerfError(f"this machine reaches {towards!r} from {own}, which none of its interfaces has")
    return Interface(found.name, own, found.mtu)


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
