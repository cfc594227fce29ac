"""A cluster's graph for the simulator: numbered nodes, and cables with rates.

Packets take shortest routes, spread over equal ones, unless ``with_routes`` gives a pair's routes. An ``Aggregator`` (a
switch pipeline that sums) is a separate host beside its switch. Its cable is as fast as the switch's other cables
together, so it limits nothing. Absent on purpose: other jobs' traffic, the time of summing. A cluster file without
links becomes one ideal switch. Only participating hosts are simulated.

Units: bytes, bytes per second, nanoseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mlt import _core
from mlt.planners.cluster import Cluster

MAX_HOSTS = 256  # of one simulation: every endpoint keeps state for every other
BUFFER_BYTES = 16_000_000  # of switches whose memory is not in the cluster file
QUEUE_THRESHOLD_BYTES = 200_000
SEGMENT_BYTES = 1_432
_HEADER_BYTES = 40  # mlt's; the protocol's rates include it
_OVERHEAD_BYTES = 66  # UDP header to Ethernet's interframe gap; the protocol's rates exclude them
MAX_PATHS = 16  # over which a transfer can be spread
_PATHS = 4
_IDEAL_DELAY_NS = 1_000
_LIMIT_NS = 600 * 1_000_000_000
_MAX_RATE = 1e12


@dataclass(frozen=True)
class Transfer:
    """``size`` bytes from one host to another, once the transfers ``after`` (by index) have arrived at ``source``."""

    source: str
    destination: str
    size: int
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Aggregator:
    """A host in ``switch`` that receives streams, sums them and sends one on; ``name`` is unique."""

    name: str
    switch: str


@dataclass(frozen=True)
class Ways:
    """The routes from ``source`` to ``destination``, in reverse for replies: lists of nodes, both ends included.

    Path p of a transfer takes route p modulo their number, so a route that is listed twice carries twice as much.
    """

    source: str
    destination: str
    ways: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Arrival time of each transfer (seconds), and the network's counters."""

    finish: tuple[float, ...]
    data_packets: int
    drops: int
    hops: int
    events: int
    digest: int

    @property
    def duration(self) -> float:
        return max(self.finish, default=0.0)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The graph of a simulation: hosts are numbered first, then switches."""

    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    cables: tuple[tuple[int, int, float, int], ...]
    buffers: tuple[int, ...] = ()
    paths: int = _PATHS
    seed: int = 1
    loss: float = 0.0
    loss_bound: float = 0.0
    ways: tuple[Ways, ...] = ()
    line_rates: tuple[float, ...] = ()  # bytes per second to one peer; 0: as the cable; empty: all 0

    def with_routes(
        self, aggregators: Sequence[Aggregator], ways: Sequence[Ways], rates: Mapping[str, float] | None = None
    ) -> Scenario:
        """The same graph with ``aggregators`` in its switches, and ``ways`` instead of the shortest routes.

        Args:
            rates: planned max send rates to one peer, in bits per second on the wire, by host or aggregator. Other
                hosts are limited by their NIC, other aggregators by the fastest cable of their switch.

        Raises:
            ValueError: too many hosts and aggregators, too many routes of a pair, or an unknown node.
        """
        count = len(self.hosts) + len(aggregators)
        if count > MAX_HOSTS:
            raise ValueError(f"{count} hosts and places that sum take part; the simulator takes {MAX_HOSTS}")
        maximum = max((len(pair.ways) for pair in ways), default=1)
        if maximum > MAX_PATHS:
            raise ValueError(f"{maximum} ways between two hosts; the simulator takes {MAX_PATHS}")
        known = {*self._number, *(place.name for place in aggregators)}
        unknown = {place.switch for place in aggregators} - set(self.switches)
        unknown |= {node for pair in ways for way in pair.ways for node in way if node not in known}
        if unknown:
            raise ValueError(f"routes pass {sorted(unknown)[0]!r}, which is not in the network")
        first = len(self.hosts)
        shift = [n if n < first else n + len(aggregators) for n in range(len(self._number))]
        cables = [(shift[a], shift[b], rate, delay) for a, b, rate, delay in self.cables]
        line_rates = [0.0] * first
        part = (SEGMENT_BYTES + _HEADER_BYTES) / (SEGMENT_BYTES + _HEADER_BYTES + _OVERHEAD_BYTES)
        planned = {name: rate / 8 * part for name, rate in (rates or {}).items()}
        for number, place in enumerate(aggregators, start=first):
            switch = shift[self._number[place.switch]]
            speeds = [rate for a, b, rate, _ in cables if switch in (a, b) and not first <= min(a, b) < count]
            cables.append((number, switch, min(sum(speeds), _MAX_RATE), 0))
            line_rates.append(max(speeds))
        hosts = (*self.hosts, *(place.name for place in aggregators))
        line_rates = [planned.get(name, rate) for name, rate in zip(hosts, line_rates, strict=True)]
        return replace(
            self,
            hosts=hosts,
            cables=tuple(cables),
            paths=max(self.paths, maximum),
            ways=tuple(ways),
            line_rates=tuple(line_rates),
        )

    @cached_property
    def _planned_hops(self) -> dict[tuple[str, str], int]:
        out = {}
        for pair in self.ways:
            hops = min(len(way) - 1 for way in pair.ways)
            out[pair.source, pair.destination] = hops
            out.setdefault((pair.destination, pair.source), hops)
        return out

    @cached_property
    def _number(self) -> dict[str, int]:
        return {name: number for number, name in enumerate((*self.hosts, *self.switches))}

    @cached_property
    def _neighbours(self) -> list[list[int]]:
        out: list[list[int]] = [[] for _ in self._number]
        for a, b, _, _ in self.cables:
            out[a].append(b)
            out[b].append(a)
        return out

    @cached_property
    def _distances(self) -> dict[int, list[int]]:
        return {}

    def hops(self, source: str, destination: str) -> int:
        """Cables on the shortest route, or on the shortest planned one; 0 if none exists."""
        planned = self._planned_hops.get((source, destination))
        if planned is not None:
            return planned
        start = self._number[source]
        if start not in self._distances:
            distance = [0] * len(self._number)
            queue = deque([start])
            while queue:
                node = queue.popleft()
                if node < len(self.hosts) and node != start:
                    continue  # hosts do not forward
                for near in self._neighbours[node]:
                    if near != start and not distance[near]:
                        distance[near] = distance[node] + 1
                        queue.append(near)
            self._distances[start] = distance
        return self._distances[start][self._number[destination]]

    def packet_hops(self, transfers: Iterable[Transfer]) -> int:
        """Data packets times cables that ``transfers`` take on shortest routes."""
        return sum(-(-t.size // SEGMENT_BYTES) * self.hops(t.source, t.destination) for t in transfers)

    def run(self, transfers: Sequence[Transfer], *, progress: Callable[[int], object] | None = None) -> Outcome:
        """Run ``transfers`` to their end. ``progress`` receives the number that has arrived, at intervals; it may raise
        to stop.

        Raises:
            ValueError: a transfer or cable is wrong; the message names it.
            RuntimeError: a transfer failed, or had not arrived after ten minutes of virtual time.
        """
        number = self._number
        result = _core.simulate_transfers(
            hosts=len(self.hosts),
            switches=len(self.switches),
            cables=list(self.cables),
            transfers=[(number[t.source], number[t.destination], t.size, 0, list(t.after)) for t in transfers],
            ways=[
                (number[p.source], number[p.destination], [[number[name] for name in way] for way in p.ways])
                for p in self.ways
            ],
            line_rates=list(self.line_rates),
            paths=self.paths,
            buffers=list(self.buffers),
            queue_limit_bytes=max(self.buffers, default=BUFFER_BYTES),
            queue_threshold_bytes=QUEUE_THRESHOLD_BYTES,
            loss=self.loss,
            loss_bound=self.loss_bound,
            seed=self.seed,
            segment_bytes=SEGMENT_BYTES,
            limit_ns=_LIMIT_NS,
            progress=progress,
        )
        return Outcome(
            finish=tuple(ns * 1e-9 for ns in result["finish_ns"]),
            data_packets=result["data_packets"],
            drops=result["drops"],
            hops=result["hops"],
            events=result["events"],
            digest=result["digest"],
        )


def scenario_of(cluster: Cluster, hosts: Sequence[str], *, seed: int = 1) -> Scenario:
    """The graph between ``hosts`` (names) of ``cluster``; ``bandwidth`` limits the sum over a host's cables.

    Raises:
        ValueError: too many hosts, a host without a link, or a circuit switch whose circuits are not planned.
    """
    if len(hosts) > MAX_HOSTS:
        raise ValueError(f"{len(hosts)} hosts take part; the simulator takes {MAX_HOSTS}")
    if not cluster.links:
        return Scenario(
            hosts=tuple(hosts),
            switches=("network",),
            cables=tuple(
                (index, len(hosts), cluster.host_by_name[name].bandwidth / 8, _IDEAL_DELAY_NS)
                for index, name in enumerate(hosts)
            ),
            buffers=(BUFFER_BYTES,),
            paths=1,
            seed=seed,
        )
    circuit = [switch.name for switch in cluster.switches if switch.kind == "circuit"]
    if circuit:
        raise ValueError(f"{circuit[0]!r} is a circuit switch; plan its circuits first (effective_cluster)")
    switches = tuple(switch.name for switch in cluster.switches)
    number = {name: index for index, name in enumerate((*hosts, *switches))}
    shares = {}
    for name in hosts:
        total = sum(link.bandwidth for link in cluster.links_of[name])
        if not total:
            raise ValueError(f"no link leads to host {name!r}; add one to the cluster file")
        shares[name] = min(1.0, cluster.host_by_name[name].bandwidth / total)
    cables = [
        (
            number[link.a],
            number[link.b],
            link.bandwidth / 8 * min(shares.get(link.a, 1.0), shares.get(link.b, 1.0)),
            round(link.delay * 1e9),
        )
        for link in cluster.links
        if link.a in number and link.b in number
    ]
    buffers = tuple(BUFFER_BYTES if s.buffer is None else round(s.buffer) for s in cluster.switches)
    return Scenario(hosts=tuple(hosts), switches=switches, cables=tuple(cables), buffers=buffers, seed=seed)
