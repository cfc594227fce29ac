"""A topology with names and numbers: namespaces, interfaces, addresses, routes. Pure arithmetic.

Hosts of leaf L: 10.77.L.1 and up; the leaf is .254; likewise fd77:0:0:L::/64. A leaf's link to spine S: 10.78.S.2L
(leaf) and the address after it (spine). Spine S has the SID fd79::(S+1). Interface numbers are unique in a testbed,
because they are keys of the programs' tables.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from ipaddress import ip_interface

from mlt.testbed.topology import Topology

HOST_INTERFACE = "mlt0"
DIRECTIONS = ("up", "down")
BRIDGE = "bridge"
# The node between the two ends of every link with a delay line.
LINES = "lines"
FIRST_INDEX = 1000


@dataclass(frozen=True)
class End:
    """One end of a link: an interface in a node. ``addresses`` with prefix; a leaf's host ports have none."""

    node: str
    interface: str
    index: int
    is_switch: bool
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Link:
    """``lower`` is the host or leaf, ``upper`` the switch above it. Direction "up" is lower to upper."""

    name: str
    lower: End
    upper: End

    # The ends of a delay line between them, in the node LINES: joined to ``lower`` and to ``upper``.
    line: tuple[End, End] | None = None

    def receiver(self, direction: str) -> End:
        return self.upper if direction == "up" else self.lower

    def pairs(self) -> tuple[tuple[End, End], ...]:
        """The interfaces joined by a cable: the lower and the upper of each."""
        if self.line is None:
            return ((self.lower, self.upper),)
        return ((self.lower, self.line[0]), (self.line[1], self.upper))

    def ports(self) -> tuple[End, ...]:
        """The ends that are switch ports."""
        return tuple(end for end in (self.lower, self.upper) if end.is_switch)


@dataclass(frozen=True)
class Route:
    """``gateways``: address, and the links that must be up for it to lead there. More than one means ECMP."""

    node: str
    destination: str
    gateways: tuple[tuple[str, tuple[str, ...]], ...]

    def alive(self, broken: frozenset[str]) -> list[str]:
        """The gateways that a routing protocol would keep."""
        return [gateway for gateway, links in self.gateways if not broken.intersection(links)]


@dataclass(frozen=True)
class Layout:
    """``bridges``: leaf -> gateway addresses (none without spines). ``hosts``: name -> IPv4 address.

    ``segments``: spine -> its IPv6 SID, which a packet's routing header (SRv6) can name.
    """

    nodes: tuple[str, ...]
    links: tuple[Link, ...]
    bridges: dict[str, tuple[str, ...]]
    hosts: dict[str, str]
    segments: dict[str, str]
    leaf_of: dict[str, str]
    routes: tuple[Route, ...]

    def link(self, name: str) -> Link:
        return next(link for link in self.links if link.name == name)

    def ports(self, switch: str) -> list[End]:
        """The switch's ports, in the order of links."""
        return [end for link in self.links for end in link.ports() if end.node == switch]

    def link_of(self, end: End) -> str:
        """The name of the link that ``end`` belongs to."""
        return next(link.name for link in self.links if end in (link.lower, link.upper))

    @property
    def switches(self) -> tuple[str, ...]:
        return tuple(node for node in self.nodes if node not in self.hosts and node != LINES)

    @property
    def lines(self) -> tuple[Link, ...]:
        """The links with a delay line."""
        return tuple(link for link in self.links if link.line is not None)


def _subnet(leaf: int, host: int) -> tuple[str, str]:
    return f"10.77.{leaf}.{host}/24", f"fd77:0:0:{leaf:x}::{host:x}/64"


def _uplink(spine: int, leaf: int, upper: bool) -> tuple[str, str]:
    return f"10.78.{spine}.{2 * leaf + upper}/31", f"fd78:0:0:{spine:x}::{4 * leaf + 1 + upper:x}/126"


def _segment(spine: int) -> str:
    return f"fd79::{spine + 1:x}"


def _bare(address: str) -> str:
    return str(ip_interface(address).ip)


def lay_out(topology: Topology) -> Layout:
    """Number everything; the same topology always gives the same layout."""
    hosts, leaves, spines = topology.host_names(), topology.leaf_names(), topology.spine_names()
    index = iter(range(FIRST_INDEX, FIRST_INDEX + 10_000))
    links: list[Link] = []
    addresses: dict[str, str] = {}
    leaf_of: dict[str, str] = {}
    per_leaf = [0] * len(leaves)
    for number, host in enumerate(hosts):
        leaf = number * len(leaves) // len(hosts)
        per_leaf[leaf] += 1
        given = _subnet(leaf, per_leaf[leaf])
        addresses[host], leaf_of[host] = _bare(given[0]), leaves[leaf]
        lower = End(host, HOST_INTERFACE, next(index), False, given)
        links.append(Link(host, lower, End(leaves[leaf], host, next(index), True)))
    for leaf, leaf_name in enumerate(leaves):
        for spine, spine_name in enumerate(spines):
            lower = End(leaf_name, spine_name, next(index), True, _uplink(spine, leaf, False))
            upper = End(spine_name, leaf_name, next(index), True, _uplink(spine, leaf, True))
            links.append(Link(f"{leaf_name}-{spine_name}", lower, upper))
    for number, link in enumerate(links):
        if topology.settings(link.name).has_delay_line:
            low, high = (End(LINES, f"{side}{number}", next(index), False) for side in ("low", "high"))
            links[number] = replace(link, line=(low, high))
    lines = (LINES,) if any(link.line for link in links) else ()
    gateways: dict[str, tuple[str, ...]] = {leaf: _subnet(i, 254) if spines else () for i, leaf in enumerate(leaves)}
    return Layout(
        nodes=(*hosts, *leaves, *spines, *lines),
        links=tuple(links),
        bridges=gateways,
        hosts=addresses,
        segments={name: _segment(spine) for spine, name in enumerate(spines)},
        leaf_of=leaf_of,
        routes=tuple(_routes(hosts, leaf_of, leaves, spines)),
    )


def _routes(hosts: list[str], leaf_of: dict[str, str], leaves: list[str], spines: list[str]) -> list[Route]:
    if not spines:
        return []
    found = []
    for host in hosts:
        own = _subnet(leaves.index(leaf_of[host]), 254)
        found += [
            Route(host, any_, ((_bare(via), (host,)),)) for any_, via in zip(("0.0.0.0/0", "::/0"), own, strict=True)
        ]
    for leaf, name in enumerate(leaves):
        for s, spine in enumerate(spines):
            way = (_bare(_uplink(s, leaf, True)[1]), (f"{name}-{spine}",))
            found.append(Route(name, f"{_segment(s)}/128", (way,)))
    for target, target_name in enumerate(leaves):
        nets = [str(ip_interface(address).network) for address in _subnet(target, 1)]
        for family, net in enumerate(nets):
            for leaf, name in enumerate(leaves):
                if leaf != target:
                    ways = tuple(
                        (_bare(_uplink(s, leaf, True)[family]), (f"{name}-{spine}", f"{target_name}-{spine}"))
                        for s, spine in enumerate(spines)
                    )
                    found.append(Route(name, net, ways))
            for s, spine in enumerate(spines):
                way = (_bare(_uplink(s, target, False)[family]), (f"{target_name}-{spine}",))
                found.append(Route(spine, net, (way,)))
    return found
