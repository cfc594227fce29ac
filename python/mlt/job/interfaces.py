"""Network interfaces of this host, and the selection of those that carry the job.

The address is the first that applies: ``host=`` and ``interface=`` of the call, then MLT_HOST, then MLT_INTERFACE, else
that of the interface that routes to rank 0. MLT_INTERFACE and ``interface=`` are a comma-separated list:

    eth1              interfaces whose name begins with eth1
    =eth1             exactly this interface
    10.1.0.0/16       interfaces with an address in this network, IPv4 or IPv6; a single address is a network of one
    ^docker,lo        all but these; an exclusion takes precedence over the rest of the list

``=``, ``^`` and ``^=`` at the start of the list apply to all of it, as in NCCL_SOCKET_IFNAME. The first entry that
matches is used, and within it the interface that routes to rank 0, then the system's order. Loopback is used only if it
is named or rank 0 is reached over it on purpose; link-local IPv6 never, because fe80::... is a different interface on
every host. Plain Python: it must run where the native library does not load. Nothing here sends anything.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from mlt._shared.addresses import is_address
from mlt.errors import ConfigError

VARIABLE = "MLT_INTERFACE"
# Reserved for documentation: no host has them, so the default route decides.
SOMEWHERE = "192.0.2.1", "2001:db8::1"

_SIOCGIFMTU, _SIOCETHTOOL, _ETHTOOL_GSET = 0x8921, 0x8946, 0x1
_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8
_UNKNOWN_SPEEDS = (0, 0xFFFF, 0xFFFFFFFF)


@dataclass(frozen=True)
class Interface:
    """``addresses``: IPv4 and IPv6, without link-local ones unless there are no others. ``speed``: Mbit/s as the driver
    reports it, else None."""

    name: str
    addresses: tuple[str, ...]
    mtu: int
    speed: int | None = None
    is_up: bool = True
    is_loopback: bool = False

    def __str__(self) -> str:
        speed = f", {self.speed} Mbit/s" if self.speed else ""
        state = "" if self.is_up else ", down"
        return f"{self.name} {' '.join(self.addresses) or 'without address'} (MTU {self.mtu}{speed}{state})"

    def usable(self) -> tuple[str, ...]:
        """Addresses that are valid on every host."""
        return tuple(one for one in self.addresses if not is_link_local(one))


@dataclass(frozen=True)
class Choice:
    """A selected interface, and the address of it to bind and announce."""

    interface: Interface
    address: str


def interfaces() -> list[Interface]:
    """All interfaces, in the system's order."""
    found: dict[str, list[str]] = {}
    flags: dict[str, int] = {}
    for name, flag, address in _addresses():
        found.setdefault(name, [])
        flags[name] = flag
        if address is not None:
            found[name].append(address)
    order = [name for _, name in socket.if_nameindex() if name in found]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return [
            Interface(
                name=name,
                addresses=tuple([one for one in found[name] if not is_link_local(one)] or found[name]),
                mtu=_mtu(sock, name),
                speed=_speed(sock, name),
                is_up=bool(flags[name] & _IFF_UP),
                is_loopback=bool(flags[name] & _IFF_LOOPBACK),
            )
            for name in order
        ]


def candidates_text(every: Sequence[Interface] | None = None) -> str:
    """The selectable interfaces, for an error: loopback last."""
    known = interfaces() if every is None else every
    usable = [one for one in known if one.is_up and one.usable()]
    return ", ".join(str(one) for one in sorted(usable, key=lambda one: one.is_loopback)) or "none"


def is_link_local(address: str) -> bool:
    """Whether ``address`` is in fe80::/10: it is only valid with an interface, and each host has its own."""
    return ":" in address and ipaddress.ip_address(address.partition("%")[0]).is_link_local


def is_loopback(address: str) -> bool:
    """Whether the numeric ``address`` reaches this host only; False for names."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def is_own_address(address: str) -> bool:
    """Whether a socket of this host can be bound to the numeric ``address``."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((address, 0))
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL)
    return True


def source_towards(address: str, port: int = 9) -> str:
    """The address that this host uses towards ``address``. Raises OSError if no route leads there."""
    family, kind, protocol, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as sock:
        # Connecting a UDP socket sends nothing: it only queries the routing table.
        sock.connect(target)
        return str(sock.getsockname()[0])


def interface_of(address: str, every: Sequence[Interface] | None = None) -> Interface | None:
    """The interface that has ``address``; all of 127.0.0.0/8 belongs to loopback."""
    known = interfaces() if every is None else every
    for one in known:
        if address in one.addresses:
            return one
    return next((one for one in known if one.is_loopback), None) if is_loopback(address) else None


@dataclass(frozen=True)
class _Entry:
    """One item of the list: a name, exact or as a prefix, or a network."""

    text: str
    exact: bool
    excludes: bool
    network: ipaddress.IPv4Network | ipaddress.IPv6Network | None = None

    def matches_name(self, name: str) -> bool:
        return self.network is None and (name == self.text if self.exact else name.startswith(self.text))

    def addresses_of(self, interface: Interface) -> tuple[str, ...]:
        """The addresses of ``interface`` that match the entry."""
        if self.network is None:
            return interface.usable() if self.matches_name(interface.name) else ()
        return tuple(one for one in interface.usable() if ipaddress.ip_address(one) in self.network)


@dataclass(frozen=True)
class Selection:
    """A parsed value of MLT_INTERFACE. ``source``: name of the variable or argument in errors."""

    text: str
    source: str

    @cached_property
    def entries(self) -> tuple[_Entry, ...]:
        body = self.text.strip()
        all_excluded = body.startswith("^")
        body = body.removeprefix("^")
        all_exact = body.startswith("=")
        return tuple(self._entry(item, all_excluded, all_exact) for item in body.removeprefix("=").split(","))

    def _entry(self, item: str, excludes: bool, exact: bool) -> _Entry:
        item = item.strip()
        if item.startswith("^"):
            item, excludes = item[1:], True
        if item.startswith("="):
            item, exact = item[1:], True
        if not item:
            raise ConfigError(
                f"{self.source} is {self.text!r}: an entry is empty; write names, =names, networks such as "
                f"10.1.0.0/16, or ^names to leave out, with commas between; candidates: {candidates_text()}"
            )
        network = None
        if "/" in item or is_address(item):
            try:
                network = ipaddress.ip_network(item, strict=False)
            except ValueError as error:
                raise ConfigError(
                    f"{self.source} is {self.text!r}: {item!r} is not a network ({error}); "
                    f"candidates: {candidates_text()}"
                ) from None
            if ":" in item and is_link_local(item.partition("/")[0]):
                raise ConfigError(f"{self.source} is {self.text!r}: {link_local_text(item)}")
        return _Entry(item, exact, excludes, network)

    def pick(self, every: Sequence[Interface], towards: str | None) -> list[Choice]:
        """All matching interfaces, the best first; ``towards``: this host's address on the route to rank 0."""
        excluded = [entry for entry in self.entries if entry.excludes]
        wanted = [entry for entry in self.entries if not entry.excludes]
        left = [
            one
            for one in every
            if one.is_up and not any(entry.matches_name(one.name) or entry.addresses_of(one) for entry in excluded)
        ]
        left.sort(key=lambda one: towards not in one.addresses and not (one.is_loopback and is_loopback(towards or "")))
        chosen: dict[str, Choice] = {}
        for entry in wanted:
            for one in left:
                if addresses := entry.addresses_of(one):
                    chosen.setdefault(one.name, Choice(one, _best(addresses, towards)))
        if not wanted:
            # Loopback was not selected, unless rank 0 is reached over it.
            for one in left:
                if one.usable() and (not one.is_loopback or is_loopback(towards or "")):
                    chosen.setdefault(one.name, Choice(one, _best(one.usable(), towards)))
        return list(chosen.values())


def select_interfaces(
    wanted: str,
    *,
    towards: str | None = None,
    source: str = VARIABLE,
    every: Sequence[Interface] | None = None,
) -> list[Choice]:
    """All interfaces that ``wanted`` (a value of MLT_INTERFACE) selects, the one to use first.

    ``towards``: the address that this host would use towards rank 0; its interface and its IP version are preferred
    within an entry. Raises ConfigError, which lists the candidates, if the value is invalid or nothing matches.
    """
    known = interfaces() if every is None else every
    selection = Selection(wanted, source)
    if chosen := selection.pick(known, towards):
        return chosen
    raise ConfigError(
        f"{source} is {wanted!r}, which leaves no interface{_why_none(selection, known)}; candidates: "
        f"{candidates_text(known)}"
    )


def check_host(host: str, *, source: str) -> str:
    """``host`` if it is an address of this host that peers can use; else raises ConfigError."""
    if not is_address(host):
        if ":" in host and "%" in host:
            raise ConfigError(f"{source} is {host!r}: {link_local_text(host)}")
        raise ConfigError(f"{source} is {host!r}; it is an address of this host in numbers: {candidates_text()}")
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        raise ConfigError(f"{source} is {host!r}, which peers cannot connect to; give one of: {candidates_text()}")
    if is_link_local(host):
        raise ConfigError(f"{source} is {host!r}: {link_local_text(host)}")
    if not is_own_address(host):
        raise ConfigError(f"{source} is {host!r}, which no interface of this host has; candidates: {candidates_text()}")
    return host


def link_local_text(address: str) -> str:
    """Why a link-local address cannot be used, and what to use instead."""
    return (
        f"{address} is link-local: it is a different interface on every host; use an IPv4 address, or give the "
        "interfaces unique local ones (ip -6 address add fd00::1/64 dev ...)"
    )


def machine_address() -> str | None:
    """The address for other hosts if rank 0 is known only by this host's own name: that of the default route, else of
    the first interface that is up and not loopback; None if there is only loopback."""
    for target in SOMEWHERE:
        try:
            source = source_towards(target)
        except OSError:
            continue
        if not is_loopback(source) and not is_link_local(source):
            return source
    return next((one.usable()[0] for one in interfaces() if one.is_up and not one.is_loopback and one.usable()), None)


def _best(addresses: Sequence[str], towards: str | None) -> str:
    """The one on the route to rank 0, else the first of its IP version, else the first."""
    if towards in addresses:
        return str(towards)
    same = [one for one in addresses if (":" in one) == (":" in (towards or ""))]
    return (same or list(addresses))[0]


def _why_none(selection: Selection, every: Sequence[Interface]) -> str:
    """The interfaces that would have matched, and why they cannot be used."""
    reasons = []
    for one in every:
        named = any(entry.matches_name(one.name) for entry in selection.entries if not entry.excludes)
        if named and not one.is_up:
            reasons.append(f"{one.name} is down")
        elif named and not one.usable():
            reasons.append(f"{one.name} has no address" + (" but link-local ones" if one.addresses else ""))
    return f" ({', '.join(reasons)})" if reasons else ""


# # ---- system calls
# ------------------------------------------------------------------------------------------------------


class _SocketAddress(ctypes.Structure):
    # Long enough for IPv6; IPv4 uses a part of it.
    _fields_ = [("family", ctypes.c_uint16), ("data", ctypes.c_uint8 * 26)]  # noqa: RUF012


class _IfAddrs(ctypes.Structure):
    pass


_IfAddrs._fields_ = [
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_SocketAddress)),
    ("netmask", ctypes.POINTER(_SocketAddress)),
    ("broadcast", ctypes.POINTER(_SocketAddress)),
    ("data", ctypes.c_void_p),
]


def _addresses() -> Iterator[tuple[str, int, str | None]]:
    """(name, flags, address) of getifaddrs(3); None for an entry other than IP."""
    libc = ctypes.CDLL(None, use_errno=True)
    head = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(head)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot list the network interfaces: {os.strerror(code)}")
    try:
        entry = head
        while entry:
            one = entry.contents
            address = None
            if one.address:
                family = one.address.contents.family
                # After the port (and, in IPv6, the flow label).
                start, size = (2, 4) if family == socket.AF_INET else (6, 16)
                if family in (socket.AF_INET, socket.AF_INET6):
                    raw = ctypes.string_at(ctypes.addressof(one.address.contents) + 2 + start, size)
                    address = socket.inet_ntop(family, raw)
            # The entry of an address may have a label instead: the name, a colon, a suffix.
            yield one.name.decode(errors="replace").partition(":")[0], int(one.flags), address
            entry = one.next
    finally:
        libc.freeifaddrs(head)


def _mtu(sock: socket.socket, name: str) -> int:
    # By ioctl, not from /sys, which shows the network namespace in which it was mounted.
    reply = fcntl.ioctl(sock, _SIOCGIFMTU, struct.pack("@16s24x", name.encode()))
    return int(struct.unpack_from("@16si", reply)[1])


def _speed(sock: socket.socket, name: str) -> int | None:
    command = ctypes.create_string_buffer(struct.pack("=I", _ETHTOOL_GSET), 64)
    request = struct.pack("@16sP16x", name.encode(), ctypes.addressof(command))
    try:
        fcntl.ioctl(sock, _SIOCETHTOOL, request)
    except OSError:
        return None
    low, high = struct.unpack_from("=H", command, 12)[0], struct.unpack_from("=H", command, 28)[0]
    speed = int(high << 16 | low)
    return None if speed in _UNKNOWN_SPEEDS else speed
