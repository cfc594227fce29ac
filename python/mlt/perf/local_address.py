"""A rank's place: the interface towards the others, its address and MTU, and TCP ports that are free there."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from mlt._shared import ports
from mlt.errors import ConfigError
from mlt.job import interfaces
from mlt.perf.problem import BadOptionError, PerfError

# Bytes of the headers of IP and UDP, and of mlt's own header of a data packet.
_UDP_HEADER, _DATA_HEADER = 8, 40
_IP_HEADER = {socket.AF_INET: 20, socket.AF_INET6: 40}
# PROTOCOL 3.2.7: the largest payload derived from the MTU.
_MAX_PAYLOAD = 8_960


@dataclass(frozen=True)
class Interface:
    """One address of this host, and the interface that has it."""

    name: str
    address: str
    mtu: int


def find_interface(wanted: str | None, own: str) -> Interface:
    """The interface of ``own``, this host's address towards the others, or the first of those that ``wanted`` selects
    (``mlt.job.interfaces``), with an address of the same IP version if it has one.

    Raises BadOptionError for a selection without a match.
    """
    if wanted is not None:
        try:
            source = "the interface (--interface or MLT_INTERFACE)"
            choice = interfaces.select_interfaces(wanted, towards=own, source=source)[0]
        except ConfigError as error:
            raise BadOptionError(str(error)) from None
        return Interface(choice.interface.name, choice.address, choice.interface.mtu)
    if interfaces.is_link_local(own):
        raise PerfError(interfaces.link_local_text(own))
    found = interfaces.interface_of(own)
    if found is None:
        raise PerfError(f"this host uses {own} towards the other ranks, which none of its interfaces has")
    return Interface(found.name, own, found.mtu)


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def where(host: str, port: int) -> str:
    """An address and a port as text."""
    return f"[{host}]:{port}" if ":" in host else f"{host or '*'}:{port}"


def fitting_payload(address: str, mtu: int) -> int:
    """Payload of a data packet that fits ``mtu`` together with all headers."""
    return (mtu - _IP_HEADER[family_of(address)] - _UDP_HEADER - _DATA_HEADER) // 8 * 8


def usual_payload(address: str, mtu: int) -> int:
    """mlt's default payload of a data packet."""
    return min(fitting_payload(address, mtu), _MAX_PAYLOAD)


def listen(host: str, port: int) -> socket.socket:
    """A TCP listener at ``host``; "": at all addresses, of each IP version that the host has.

    Raises PerfError; the OSError is its cause.
    """
    try:
        if host:
            return socket.create_server((host, port), family=family_of(host))
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PerfError(
                f"port {where(host, port)} is in use by another process; choose another one with --port (in a job: "
                "MLT_PERF_PORT, else the rendezvous port + 1000)"
            ) from error
        if error.errno == errno.EACCES:
            raise PerfError(
                f"port {where(host, port)}: permission denied; choose a port above 1023, or run as root"
            ) from error
        raise PerfError(
            f"cannot listen at {where(host, port)}: {error.strerror or error}; give an address of this host"
        ) from error


def free_port(host: str) -> int:
    """A TCP and UDP port that is free on ``host``, outside the range that the kernel assigns by itself."""
    try:
        return ports.free_port(host)
    except LookupError as error:
        raise PerfError(str(error)) from None


def network_id() -> str:
    """Identifies the network stack: ranks that share one also share its counters."""
    return f"{socket.gethostname()}:{os.stat('/proc/self/ns/net').st_ino}"


def retransmitted_segments() -> int:
    """Number of TCP segments that this network stack has retransmitted since it started."""
    lines = [line.split() for line in Path("/proc/self/net/snmp").read_text(encoding="ascii").splitlines()]
    names, numbers = [line for line in lines if line[0] == "Tcp:"]
    return int(numbers[names.index("RetransSegs")])
