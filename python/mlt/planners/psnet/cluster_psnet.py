"""Recognises a PSNet in a cluster file, whatever the names of its nodes.

Rules (PSNet, section 3.1): every module number has one circuit switch. Hosts on it are workers, packet switches on it
are ToRs. Hosts on all the ToRs are parameter servers. The only other packet switch on all ToRs is the SuperNode switch.
Anything else is rejected, with the entry of the file that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mlt.planners._shared.documents import InputError, Location, Problem
from mlt.planners.cluster import Cluster, Job, Link, Switch
from mlt.planners.psnet.circuits import CircuitPort
from mlt.planners.psnet.jobs import PlacedJob
from mlt.planners.psnet.psnet import Module, PSNet, ecs_name, supernode_name, tor_name
from mlt.planners.psnet.wiring import Wiring

#: Relative difference below which two bandwidths are the same.
_SAME = 1e-9


@dataclass(frozen=True)
class NamedPSNet:
    """A PSNet and the file's names of its parts. Modules count from 1 in the order of their file numbers.

    worker_names, server_names, tor_names: by (module, index from 0). worker_ports, tor_ports: the circuit switch's port
    of each worker and of each downlink of each ToR.
    """

    network: PSNet
    file_module: Mapping[int, int]
    ecs_names: Mapping[int, str]
    supernode_names: Mapping[int, str]
    tor_names: Mapping[tuple[int, int], str]
    worker_names: Mapping[tuple[int, int], str]
    server_names: Mapping[tuple[int, int], str]
    worker_ports: Mapping[tuple[int, int], int]
    tor_ports: Mapping[tuple[int, CircuitPort], int]

    def file_names(self) -> dict[str, str]:
        """The file's name of every node, by its name in the network's graphs."""
        network = self.network
        names = {supernode_name(mid): name for mid, name in self.supernode_names.items()}
        names |= {ecs_name(mid): name for mid, name in self.ecs_names.items()}
        names |= {tor_name(mid, t): name for (mid, t), name in self.tor_names.items()}
        names |= {network.worker_name(mid, w): name for (mid, w), name in self.worker_names.items()}
        return names | {network.server_name(mid, s): name for (mid, s), name in self.server_names.items()}

    def placed(self, job: Job) -> PlacedJob:
        """A job of the file on this network.

        Raises:
            InputError: a worker is not on a circuit switch, a server is not on the ToRs, or there is no server.
        """
        problems = []
        found: dict[str, dict[int, tuple[int, ...]]] = {}
        for role, names, known, place in (
            ("workers", job.workers, self.worker_names, "a circuit switch"),
            ("servers", job.servers, self.server_names, "all ToRs of its module"),
        ):
            at = {name: where for where, name in known.items()}
            for n, name in enumerate(names):
                if name not in at:
                    message = f"job {job.name!r}: {name!r} is not linked to {place}, as PSNet's {role} are"
                    problems.append(Problem(where=("jobs", job.name, role, n), message=message))
            found[role] = _by_module(at[name] for name in names if name in at)
        if not job.servers:
            message = f"job {job.name!r} has no servers; PSNet is for jobs with parameter servers"
            problems.append(Problem(where=("jobs", job.name, "servers"), message=message))
        if problems:
            raise InputError(problems)
        return PlacedJob(name=job.name, size_bytes=job.model_size, workers=found["workers"], servers=found["servers"])


@dataclass(frozen=True)
class _Parts:
    """One module as found in the file."""

    module: Module
    inter_ports: int
    delay: float
    ecs: str
    supernode: str
    tors: tuple[str, ...]
    workers: tuple[str, ...]
    servers: tuple[str, ...]
    worker_ports: tuple[int, ...]
    tor_ports: Mapping[CircuitPort, int]


def read_psnet(cluster: Cluster) -> NamedPSNet:
    """The PSNet that ``cluster`` describes.

    Raises:
        InputError: it is not a PSNet; the message names the entry and the expected value.
    """
    circuit = [switch for switch in cluster.switches if switch.kind == "circuit"]
    if not circuit:
        _reject(("switches",), "no switch of kind 'circuit'; a PSNet has one in every module")
    numbers: dict[int, Switch] = {}
    for switch in circuit:
        if switch.module is None:
            _reject(("switches", switch.name, "module"), f"circuit switch {switch.name!r} belongs to no module")
        elif switch.module in numbers:
            message = f"module {switch.module} has two circuit switches, {numbers[switch.module].name!r} and this one"
            _reject(("switches", switch.name, "module"), message)
        else:
            numbers[switch.module] = switch
    parts = [_module(cluster, numbers[number]) for number in sorted(numbers)]
    _check_one_r(parts)
    wiring, rate = _wiring(cluster, parts)
    network = PSNet(
        modules=tuple(part.module for part in parts),
        wiring=wiring,
        inter_bits_per_second=rate,
        latency_seconds=max(part.delay for part in parts),
    )
    each = list(enumerate(parts, start=1))
    return NamedPSNet(
        network=network,
        file_module=dict(enumerate(sorted(numbers), start=1)),
        ecs_names={mid: part.ecs for mid, part in each},
        supernode_names={mid: part.supernode for mid, part in each},
        tor_names={(mid, t): name for mid, part in each for t, name in enumerate(part.tors)},
        worker_names={(mid, w): name for mid, part in each for w, name in enumerate(part.workers)},
        server_names={(mid, s): name for mid, part in each for s, name in enumerate(part.servers)},
        worker_ports={(mid, w): port for mid, part in each for w, port in enumerate(part.worker_ports)},
        tor_ports={(mid, end): port for mid, part in each for end, port in part.tor_ports.items()},
    )


def _module(cluster: Cluster, ecs: Switch) -> _Parts:
    links = sorted(cluster.links_of[ecs.name], key=lambda link: cluster.port(link, ecs.name))
    peers = [(cluster.peer(link, ecs.name), link) for link in links]
    workers = [(name, link) for name, link in peers if name in cluster.host_by_name]
    cables: dict[str, list[Link]] = {s.name: [] for s in cluster.switches if s.name in {name for name, _ in peers}}
    for name, link in peers:
        if name in cables:
            cables[name].append(link)
    tors = tuple(cables)
    if not tors:
        _reject(("switches", ecs.name), f"no packet switch is linked to circuit switch {ecs.name!r}")
    for name, _ in workers:
        if len(cluster.links_of[name]) != 1:
            _reject(
                ("hosts", name), f"worker {name!r} has {len(cluster.links_of[name])} links; expected one, to the ECS"
            )
    down = len(cables[tors[0]])
    for tor in tors:
        if len(cables[tor]) != down:
            message = f"{ecs.name!r} and {tor!r} share {len(cables[tor])} cables, but {down} go to {tors[0]!r}"
            _reject(("switches", tor), f"{message}; expected as many to every ToR")
    servers, supernode = _above(cluster, ecs, tors)
    server_links = [link for name in servers for link in cluster.links_of[name]]
    uplinks = [link for tor in tors for link in cluster.links_of[tor] if cluster.peer(link, tor) == supernode]
    worker_rate = _one_rate(
        "worker", cluster, [*(link for _, link in workers), *(c for t in tors for c in cables[t])], 1
    )
    module = Module(
        ecs_ports=len(tors) * down,
        tor_downlinks=down,
        tor_uplinks=len(servers) + 1,
        workers=len(workers),
        servers=len(servers),
        worker_bits_per_second=worker_rate,
        server_ratio=_one_rate("uplink", cluster, [*server_links, *uplinks], len(tors)) / worker_rate,
    )
    inter = sum(1 for link in cluster.links_of[supernode] if cluster.peer(link, supernode) not in tors)
    return _Parts(
        module=module,
        inter_ports=inter,
        delay=max(link.delay for link in (*links, *server_links, *uplinks)),
        ecs=ecs.name,
        supernode=supernode,
        tors=tors,
        workers=tuple(name for name, _ in workers),
        servers=servers,
        worker_ports=tuple(cluster.port(link, ecs.name) for _, link in workers),
        tor_ports={
            (t, n): cluster.port(link, ecs.name)
            for t, tor in enumerate(tors)
            for n, link in enumerate(sorted(cables[tor], key=lambda c, tor=tor: cluster.port(c, tor)))  # type: ignore[misc]
        },
    )


def _above(cluster: Cluster, ecs: Switch, tors: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """(servers in file order, SuperNode switch) of the module with these ToRs."""
    near = {cluster.peer(link, tor) for tor in tors for link in cluster.links_of[tor]} - {ecs.name}
    servers = tuple(name for name in cluster.host_by_name if name in near)
    switches = [switch.name for switch in cluster.switches if switch.name in near]
    for name in (*servers, *switches):
        ends = sorted(cluster.peer(link, name) for link in cluster.links_of[name] if cluster.peer(link, name) in tors)
        if ends != sorted(tors):
            what = "hosts" if name in cluster.host_by_name else "switches"
            message = f"{name!r} is linked to {ends or 'no ToR'}; expected one link to each of {sorted(tors)}"
            _reject((what, name), message)
    for name in servers:
        if len(cluster.links_of[name]) != len(tors):
            _reject(("hosts", name), f"parameter server {name!r} has links that lead to no ToR of its module")
    if len(switches) != 1:
        message = f"the ToRs of {ecs.name!r} share the switches {switches}; expected one, the SuperNode switch"
        _reject(("switches", ecs.name), message)
    return servers, switches[0]


def _one_rate(what: str, cluster: Cluster, links: Iterable[Link], nics: int) -> float:
    """The common bandwidth of these links; the bandwidth of a host, divided by its ``nics``, also limits it."""
    rates: dict[float, Link] = {}
    for link in links:
        hosts = [cluster.host_by_name[end] for end in (link.a, link.b) if end in cluster.host_by_name]
        rates.setdefault(min([link.bandwidth, *(host.bandwidth / nics for host in hosts)]), link)
    low, high = min(rates), max(rates)
    if high - low > _SAME * high:
        a, b = rates[low], rates[high]
        message = (
            f"{what} links of one module must have one bandwidth: {a.a} - {a.b} has {low:.6g} bit/s, "
            f"{b.a} - {b.b} has {high:.6g} bit/s"
        )
        _reject(("links",), message)
    return high


def _check_one_r(parts: Sequence[_Parts]) -> None:
    tors = len(parts[0].tors)
    for part in parts:
        if len(part.tors) != tors:
            message = f"{part.ecs!r} has {len(part.tors)} ToRs, {parts[0].ecs!r} has {tors}; expected one R everywhere"
            _reject(("switches", part.ecs), message)
        if part.inter_ports > tors:
            message = f"{part.supernode!r} has {part.inter_ports} links to other modules; expected R = {tors} at most"
            _reject(("switches", part.supernode), message)


def _wiring(cluster: Cluster, parts: Sequence[_Parts]) -> tuple[Wiring, float | None]:
    mid_of = {part.supernode: mid for mid, part in enumerate(parts, start=1)}
    pairs = []
    rates = []
    for part in parts:
        for link in cluster.links_of[part.supernode]:
            peer = cluster.peer(link, part.supernode)
            if peer in part.tors:
                continue
            if peer not in mid_of:
                message = f"SuperNode switch {part.supernode!r} is linked to {peer!r}, which is not another module's"
                _reject(("links",), message)
            if link.a == part.supernode:  # count each link once
                pairs.append((min(mid_of[link.a], mid_of[link.b]), max(mid_of[link.a], mid_of[link.b])))
                rates.append(link)
    wiring = Wiring(len(parts), len(parts[0].tors), tuple(sorted(pairs)))
    return wiring, _one_rate("inter-module", cluster, rates, 1) if rates else None


def _by_module(places: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    out: dict[int, list[int]] = {}
    for mid, member in places:
        out.setdefault(mid, []).append(member)
    return {mid: tuple(sorted(members)) for mid, members in out.items()}


def _reject(where: Location, message: str) -> None:
    raise InputError([Problem(where=where, message=message)])
