"""Links: pairs of veth interfaces between namespaces, bridges, addresses, routes, offloads.

Segmentation offload is off on every interface. Otherwise a queue that counts packets, and an injector that drops them,
would take a 64 KB super-packet for one packet.

Packets of a flow keep their order, as in a cable. A veth pair alone does not promise that: it queues what arrives with
the CPU that sent it, and a shaped port sends from whatever CPU its timer expired on. Receive packet steering queues a
flow with one CPU. Linux has had a default per namespace since version 6.3; before, packets of a flow may overtake each
other when CPUs are busy.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mlt.testbed import namespaces
from mlt.testbed.layout import BRIDGE, LINES, End, Layout, Link, Route

_SIOCETHTOOL = 0x8946
# ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO. UDP segmentation has no such call; gso_max_segs covers it.
_OFFLOADS = (0x1F, 0x24, 0x2C)
# ETHTOOL_STXCSUM: a delay line forwards frames unchanged, so they must leave with a complete checksum.
_CHECKSUM_OFFLOAD = 0x17
_IFA_F_NODAD = 0x02
# Link-local addresses must be usable at once: neighbour solicitations are sent from them.
# The kernel processes routing headers (SRv6) only if both "all" and the interface, made from "default", enable it.
_NODE_SYSCTLS = {
    "net/ipv6/conf/all/accept_dad": "0",
    "net/ipv6/conf/default/accept_dad": "0",
    "net/ipv6/conf/all/seg6_enabled": "1",
    "net/ipv6/conf/default/seg6_enabled": "1",
}
# The interfaces of a delay line send nothing of their own.
_LINES_SYSCTLS = {"net/ipv6/conf/all/disable_ipv6": "1", "net/ipv6/conf/default/disable_ipv6": "1"}
_SWITCH_SYSCTLS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv6/conf/all/forwarding": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    # ECMP hashes addresses and ports, so source ports choose paths.
    "net/ipv4/fib_multipath_hash_policy": "1",
    "net/ipv6/fib_multipath_hash_policy": "1",
    "net/ipv6/conf/all/keep_addr_on_down": "1",
}

Paths = Callable[[str], Path]


def _socket() -> Any:
    from pyroute2 import IPRoute  # type: ignore[import-untyped]

    return IPRoute()


def connect(layout: Layout, path: Paths, mtus: Mapping[str, int]) -> None:
    """Create every link and configure both ends; ``mtus``: by link, in bytes.

    Raises TestbedError or pyroute2's NetlinkError.
    """
    for node in layout.nodes:
        namespaces.inside(path(node), lambda node=node: _prepare(layout, node))  # type: ignore[misc]
    for upper in dict.fromkeys(pair[1].node for link in layout.links for pair in link.pairs()):
        namespaces.inside(path(upper), lambda upper=upper: _make_pairs(layout, upper, path))  # type: ignore[misc]
    for node in layout.nodes:
        namespaces.inside(path(node), lambda node=node: _configure(layout, node, mtus))  # type: ignore[misc]
    converge(layout, path, frozenset())


def _prepare(layout: Layout, node: str) -> None:
    if node == LINES:
        _set_sysctls({"net/core/rps_default_mask": _all_cpus(), **_LINES_SYSCTLS})
        return
    _set_sysctls({"net/core/rps_default_mask": _all_cpus(), **_NODE_SYSCTLS})
    if node not in layout.hosts:
        _set_sysctls(_SWITCH_SYSCTLS)
    with _socket() as ip:
        ip.link("set", index=1, state="up")
        if node in layout.segments:
            _add_address(ip, 1, f"{layout.segments[node]}/128")
        if node in layout.bridges:
            ip.link("add", ifname=BRIDGE, kind="bridge", br_mcast_snooping=0)


def _set_sysctls(values: dict[str, str]) -> None:
    for name, value in values.items():
        # A kernel without IPv6 has neither its files nor IPv6 addresses.
        if (path := Path("/proc/sys", name)).exists():
            path.write_text(value, encoding="ascii")


def _all_cpus() -> str:
    """Every CPU as a mask of the kernel: groups of 32 bits, the highest first."""
    cpus = os.cpu_count() or 1
    mask = f"{(1 << cpus) - 1:x}"
    mask = mask.zfill(-(-len(mask) // 8) * 8)
    return ",".join(mask[i : i + 8] for i in range(0, len(mask), 8))


def _make_pairs(layout: Layout, node: str, path: Paths) -> None:
    with _socket() as ip:
        for lower, upper in (pair for link in layout.links for pair in link.pairs()):
            if upper.node != node:
                continue
            ip.link("add", kind="veth", ifname=upper.interface, index=upper.index, peer={"ifname": "mlt-peer"})
            (peer,) = ip.link_lookup(ifname="mlt-peer")
            fd = os.open(path(lower.node), os.O_RDONLY | os.O_CLOEXEC)
            try:
                ip.link("set", index=peer, ifname=lower.interface, net_ns_fd=fd, new_ifindex=lower.index)
            finally:
                os.close(fd)


def _configure(layout: Layout, node: str, mtus: Mapping[str, int]) -> None:
    own = [(end, link) for link in layout.links for pair in link.pairs() for end in pair if end.node == node]
    with _socket() as ip:
        bridge = None
        if node in layout.bridges:
            (bridge,) = ip.link_lookup(ifname=BRIDGE)
            for address in layout.bridges[node]:
                _add_address(ip, bridge, address)
            ip.link("set", index=bridge, state="up")
        for end, link in own:
            _offloads_off(end.interface, _OFFLOADS if link.line is None else (*_OFFLOADS, _CHECKSUM_OFFLOAD))
            # One segment per packet also disables UDP segmentation offload; the stack then segments before the queue.
            ip.link("set", index=end.index, gso_max_segs=1, mtu=mtus[link.name])
            if bridge is not None and not end.addresses:
                ip.link("set", index=end.index, master=bridge)
            ip.link("set", index=end.index, state="up")
            for address in end.addresses:
                _add_address(ip, end.index, address)


def _add_address(ip: Any, index: int, address: str) -> None:
    bare, prefix = address.split("/")
    # Without duplicate detection an IPv6 address is usable at once.
    flags = {"flags": _IFA_F_NODAD} if ":" in bare else {}
    ip.addr("add", index=index, address=bare, prefixlen=int(prefix), **flags)


def _offloads_off(interface: str, commands: Iterable[int]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for command in commands:
            value = ctypes.create_string_buffer(struct.pack("=II", command, 0))
            request = struct.pack("@16sP16x", interface.encode(), ctypes.addressof(value))
            # A driver without the offload returns an error when it is switched off.
            with contextlib.suppress(OSError):
                fcntl.ioctl(sock, _SIOCETHTOOL, request)


def converge(layout: Layout, path: Paths, broken: frozenset[str]) -> None:
    """Set every route to the remaining gateways, as a routing protocol would."""
    for node in dict.fromkeys(route.node for route in layout.routes):
        routes = [route for route in layout.routes if route.node == node]
        namespaces.inside(path(node), lambda routes=routes: _set_routes(routes, broken))  # type: ignore[misc]


def _set_routes(routes: list[Route], broken: frozenset[str]) -> None:
    from pyroute2.netlink.exceptions import NetlinkError  # type: ignore[import-untyped]

    with _socket() as ip:
        for route in routes:
            alive = route.alive(broken)
            if ":" in route.destination or not alive:
                # IPv6 adds a gateway to a route where IPv4 replaces the route.
                with contextlib.suppress(NetlinkError):
                    ip.route("del", dst=route.destination)
            if not alive:
                continue
            way: dict[str, Any] = {"gateway": alive[0]}
            if len(alive) > 1:
                way = {"multipath": [{"gateway": gateway} for gateway in alive]}
            with contextlib.suppress(NetlinkError) if broken else contextlib.nullcontext():
                ip.route("replace", dst=route.destination, **way)


def set_carrier(link: Link, path: Paths, up: bool) -> None:
    """Set the upper end of every cable of a link down or up; the lower end loses or regains its carrier."""
    for _, end in link.pairs():

        def change(end: End = end) -> None:
            with _socket() as ip:
                ip.link("set", index=end.index, state="up" if up else "down")

        namespaces.inside(path(end.node), change)


def attach(end: End, path: Paths, fd: int, name: str, *, ingress: bool) -> None:
    """Attach a loaded program to an interface's existing clsact qdisc."""

    def add() -> None:
        with _socket() as ip:
            ip.tc(
                "add-filter", "bpf", end.index, fd=fd, name=name, classid=1, direct_action=True,
                parent=0xFFFFFFF2 if ingress else 0xFFFFFFF3, protocol=3, prio=1,
            )  # fmt: skip

    namespaces.inside(path(end.node), add)
