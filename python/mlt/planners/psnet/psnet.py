"""Structure of a PSNet: modules (SuperNodes) with a circuit switch, ToR switches, workers and parameter servers.

Source: PSNet (Liu et al., 2020), section 3.1. Inside a module, an electrical circuit switch (ECS) with ``ecs_ports``
ports on each side connects workers to R = floor(ecs_ports / tor_downlinks) ToR switches. Every parameter server has R
NICs, one on each ToR. One SuperNode switch connects the R ToRs. SuperNode switches form an R-regular graph.

Interpretation of ambiguous points:

* ``W' x W'`` ports means W' ports towards workers and W' towards ToRs: its example of a 384-port ECS with 48 downlinks
    per ToR then has R = 4 and 192 worker hosts (1536 workers at 8 processors each), as printed.
* A ToR has ``tor_uplinks`` ports for the SuperNode switch (one) and the parameter servers (one each), so at most
    ``tor_uplinks - 1`` parameter servers fit. The same example then has 7 hosts with 4 NICs, not the 28 behind the
    printed 224: the paper counts NICs there.
  * A single module needs no SuperNode switch port but keeps it, so that growth never moves a server's cable.

Names carry the numbers of the addresses (section 3.2), all from 1: ``worker-m-t-w`` is 10.m.t.w whatever ToR its
circuit leads to; ``server-m-s`` is 10.m.0.s; ``tor-m-t`` is 10.m.t.0; ``supernode-m`` is 10.m.(R+1).0.

Deliberately absent: circuits (``circuits``), inter-module links (``wiring``), cables (``cluster_io``).
Units: bits per second in each direction, seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlt.planners.psnet.checks import (
    DEFAULT_BITS_PER_SECOND,
    DEFAULT_LATENCY_SECONDS,
    TopologyError,
    require_count,
    require_not_negative,
    require_positive,
)
from mlt.planners.psnet.wiring import Wiring, regular_wiring

#: 10.mid.swid.x: each number is one byte; 0 and 255 in the last one are the subnet's own addresses.
MAX_MODULES = 255
MAX_TORS = 254
MAX_HOSTS_PER_SUBNET = 254


@dataclass(frozen=True, kw_only=True)
class Module:
    """One SuperNode.

    ecs_ports: W', ports of the circuit switch on each side.
    tor_downlinks, tor_uplinks: M_d and M_u of a ToR.
    workers: worker hosts; by default (None) as many as the ToRs support.
    servers: parameter servers P'; by default (None) as many as the uplinks allow.
    worker_bits_per_second: B_w, of a worker's link and of every ToR downlink.
    server_ratio: K = B_s / B_w; B_s is the bandwidth of each of a server's R NICs and of every other uplink.
    """

    ecs_ports: int
    tor_downlinks: int
    tor_uplinks: int
    workers: int | None = None
    servers: int | None = None
    worker_bits_per_second: float = DEFAULT_BITS_PER_SECOND
    server_ratio: float = 1.0

    def __post_init__(self) -> None:
        for name in ("ecs_ports", "tor_downlinks"):
            require_count(name, getattr(self, name))
        require_count("tor_uplinks (one for the SuperNode switch, one per parameter server)", self.tor_uplinks)
        require_positive("worker_bits_per_second", self.worker_bits_per_second)
        require_positive("server_ratio", self.server_ratio)
        if self.tors < 1:
            raise TopologyError(
                f"ecs_ports = {self.ecs_ports} is less than tor_downlinks = {self.tor_downlinks}: not one ToR fits; "
                f"use an ECS with at least {self.tor_downlinks} ports on each side"
            )
        if self.tors > MAX_TORS:
            raise TopologyError(f"{self.tors} ToRs per module do not fit 10.mid.swid.x; at most {MAX_TORS} do")
        object.__setattr__(self, "workers", self._workers())
        object.__setattr__(self, "servers", self._servers())
        if max(self.home_sizes) > MAX_HOSTS_PER_SUBNET:
            raise TopologyError(
                f"{max(self.home_sizes)} workers per ToR do not fit 10.mid.swid.x; at most {MAX_HOSTS_PER_SUBNET} do"
            )

    def _workers(self) -> int:
        slots = self.tors * self.tor_downlinks
        count = slots if self.workers is None else require_count("workers", self.workers, minimum=0)
        if count > slots:
            raise TopologyError(
                f"{count} workers do not fit {self.tors} ToRs with {self.tor_downlinks} downlinks each: at most {slots}"
            )
        return count

    def _servers(self) -> int:
        maximum = min(self.tor_uplinks - 1, MAX_HOSTS_PER_SUBNET)
        count = maximum if self.servers is None else require_count("servers", self.servers, minimum=0)
        if count > maximum:
            raise TopologyError(
                f"{count} parameter servers need {count + 1} uplinks on every ToR (one goes to the SuperNode switch), "
                f"but tor_uplinks = {self.tor_uplinks}"
            )
        return count

    @property
    def tors(self) -> int:
        """R = floor(W' / M_d), also the number of NICs of a parameter server."""
        return self.ecs_ports // self.tor_downlinks

    @property
    def worker_count(self) -> int:
        """Number of worker hosts."""
        assert self.workers is not None
        return self.workers

    @property
    def server_count(self) -> int:
        """Number of parameter servers, P'."""
        assert self.servers is not None
        return self.servers

    @property
    def server_bits_per_second(self) -> float:
        """B_s = K * B_w, of one NIC."""
        return self.server_ratio * self.worker_bits_per_second

    @property
    def home_sizes(self) -> tuple[int, ...]:
        """Workers addressed under each ToR: as equal as possible (section 3.2)."""
        whole, rest = divmod(self.worker_count, self.tors)
        return tuple(whole + (t < rest) for t in range(self.tors))

    def home_of(self, worker: int) -> tuple[int, int]:
        """(swid, wid) of worker ``worker`` (from 0), both from 1."""
        if not 0 <= worker < self.worker_count:
            raise TopologyError(f"no worker {worker} in a module of {self.worker_count}")
        first = 0
        for tor, size in enumerate(self.home_sizes):
            if worker < first + size:
                return tor + 1, worker - first + 1
            first += size
        raise AssertionError("home sizes add up to the workers")


@dataclass(frozen=True, kw_only=True)
class PSNet:
    """A whole network: modules 1..H and the links between their SuperNode switches.

    Modules may differ in everything but R (section 3.4 allows heterogeneous equipment; a regular graph needs one R).
    Links between modules carry ``inter_bits_per_second`` each: B_s of module 1 when None (section 4.1, scenario 2).
    """

    modules: tuple[Module, ...]
    wiring: Wiring
    inter_bits_per_second: float | None = None
    latency_seconds: float = DEFAULT_LATENCY_SECONDS

    def __post_init__(self) -> None:
        if not self.modules:
            raise TopologyError("a PSNet needs at least one module")
        if len(self.modules) > MAX_MODULES:
            raise TopologyError(f"{len(self.modules)} modules do not fit 10.mid.x.x; at most {MAX_MODULES} do")
        for mid, module in enumerate(self.modules, start=1):
            if module.tors != self.tors:
                raise TopologyError(
                    f"module {mid} has R = {module.tors} ToRs but module 1 has {self.tors}; a regular graph needs one R"
                )
        if self.wiring.modules != len(self.modules) or self.wiring.ports != self.tors:
            raise TopologyError(
                f"the wiring is for {self.wiring.modules} modules of {self.wiring.ports} ports; "
                f"expected {len(self.modules)} modules of R = {self.tors}"
            )
        if self.inter_bits_per_second is not None:
            require_positive("inter_bits_per_second", self.inter_bits_per_second)
        require_not_negative("latency_seconds", self.latency_seconds)

    @property
    def tors(self) -> int:
        """R, the same in every module."""
        return self.modules[0].tors

    @property
    def mids(self) -> range:
        """Module numbers, from 1."""
        return range(1, len(self.modules) + 1)

    def module(self, mid: int) -> Module:
        """The module with number ``mid`` (from 1)."""
        if not 1 <= mid <= len(self.modules):
            raise TopologyError(f"no module {mid}; there are 1..{len(self.modules)}")
        return self.modules[mid - 1]

    @property
    def inter_rate(self) -> float:
        """Bandwidth of one inter-module link, bits per second."""
        return self.inter_bits_per_second or self.modules[0].server_bits_per_second

    def worker_name(self, mid: int, worker: int) -> str:
        """Name of worker ``worker`` (from 0) of module ``mid``."""
        swid, wid = self.module(mid).home_of(worker)
        return f"worker-{mid}-{swid}-{wid}"

    def server_name(self, mid: int, server: int) -> str:
        """Name of parameter server ``server`` (from 0) of module ``mid``."""
        if not 0 <= server < self.module(mid).server_count:
            raise TopologyError(f"no parameter server {server} in module {mid} of {self.module(mid).server_count}")
        return f"server-{mid}-{server + 1}"

    def workers(self, mid: int) -> list[str]:
        """Names of a module's workers, by index."""
        return [self.worker_name(mid, w) for w in range(self.module(mid).worker_count)]

    def servers(self, mid: int) -> list[str]:
        """Names of a module's parameter servers, by index."""
        return [self.server_name(mid, s) for s in range(self.module(mid).server_count)]


def tor_name(mid: int, tor: int) -> str:
    """Name of ToR ``tor`` (from 0) of module ``mid``."""
    return f"tor-{mid}-{tor + 1}"


def supernode_name(mid: int) -> str:
    """Name of a module's SuperNode switch."""
    return f"supernode-{mid}"


def ecs_name(mid: int) -> str:
    """Name of a module's circuit switch."""
    return f"ecs-{mid}"


def build_psnet(
    module: Module,
    *,
    modules: int = 1,
    seed: int = 0,
    inter_bits_per_second: float | None = None,
    latency_seconds: float = DEFAULT_LATENCY_SECONDS,
) -> PSNet:
    """``modules`` equal modules joined by a random R-regular graph drawn from ``seed``.

    Raises:
        TopologyError: the numbers do not make a PSNet; the message names the wrong one and a valid value.
    """
    return PSNet(
        modules=(module,) * require_count("modules", modules, maximum=MAX_MODULES),
        wiring=regular_wiring(modules, module.tors, seed=seed),
        inter_bits_per_second=inter_bits_per_second,
        latency_seconds=latency_seconds,
    )
