"""Model of a reduction among the GPUs of one host, over PCIe and NVLink (BytePS, section 4.2), and the advice from it.

Pure functions. Rates are in bit/s, sizes in bytes, times in seconds; a GPU is its position in ``Host.gpus``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Strategy = Literal["none", "reduce-broadcast", "reduce-scatter-all-gather", "cpu-assisted"]


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU or NIC. ``switch`` identifies the PCIe link to the CPU that it uses; ``numa``: its NUMA node, None:
    unknown.

    >>> Device("GPU 0", switch="0000:17:00.0", numa=0).switch
    '0000:17:00.0'
    """

    name: str
    switch: str
    numa: int | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """The GPUs and NICs of a host. ``nvlinks``: pairs of GPUs with NVLink between them, the lower position first; None:
    unknown. ``gpu_link`` is the rate of the link from a GPU to its switch, ``cpu_link`` that from a switch to the CPU,
    ``cross_switch`` that of copies between GPUs of different switches, in bit/s (None: unknown).

    >>> Host((Device("GPU 0", "P0"), Device("GPU 1", "P1")), nvlinks=frozenset({(0, 1)})).is_nvlinked
    True
    """

    gpus: tuple[Device, ...]
    nics: tuple[Device, ...] = ()
    nvlinks: frozenset[tuple[int, int]] | None = frozenset()
    gpu_link: float | None = None
    cpu_link: float | None = None
    cross_switch: float | None = None

    @property
    def is_nvlinked(self) -> bool:
        """Whether NVLinks connect all GPUs, directly or through others."""
        return len(components(len(self.gpus), self.nvlinks or ())) == 1 and len(self.gpus) > 1

    @property
    def shared_switches(self) -> frozenset[str]:
        """Switches with GPUs and NICs: S_n of the paper."""
        return frozenset(one.switch for one in self.gpus) & frozenset(one.switch for one in self.nics)

    @property
    def gpu_switches(self) -> frozenset[str]:
        """Switches with GPUs but no NIC: S_g of the paper."""
        return frozenset(one.switch for one in self.gpus) - self.shared_switches


@dataclass(frozen=True, slots=True)
class Advice:
    """The best strategy. ``roots``: GPUs to reduce to and broadcast from, the best first; empty without roots.

    >>> Advice("reduce-broadcast", (2, 3)).root
    2
    """

    strategy: Strategy
    roots: tuple[int, ...] = ()

    @property
    def root(self) -> int | None:
        """The best root; None for a strategy without one."""
        return self.roots[0] if self.roots else None


def components(count: int, pairs: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """The connected sets of ``count`` numbered things, in ascending order.

    >>> components(4, [(0, 1), (1, 3)])
    [(0, 1, 3), (2,)]
    """
    parent = list(range(count))

    def find(one: int) -> int:
        while parent[one] != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        return one

    for first, second in pairs:
        low, high = sorted((find(first), find(second)))
        parent[high] = low
    members: dict[int, list[int]] = {}
    for one in range(count):
        members.setdefault(find(one), []).append(one)
    return [tuple(found) for found in members.values()]


def advise(host: Host) -> Advice:
    """The strategy by section 4.2.3: reduce and broadcast if only some of the switches with GPUs have a NIC, with roots
    that share no PCIe link with a NIC; else all GPUs alike, with sums in the CPU where neither NVLink nor one switch
    connects them.

    Roots on the NUMA node of a NIC come first: their copies to the CPU cross no link between CPUs.

    >>> gpus = tuple(Device(f"GPU {n}", switch=f"P{n // 2}", numa=n // 4) for n in range(8))
    >>> nvlinks = frozenset((a, b) for a in range(8) for b in range(a + 1, 8))
    >>> advise(Host(gpus, (Device("mlx5_0", "P0", 0),), nvlinks)).root  # figure 8 of the paper
    2
    """
    if len(host.gpus) < 2:
        return Advice("none")
    if host.shared_switches and host.gpu_switches:
        near = {nic.numa for nic in host.nics if nic.switch in host.shared_switches} - {None}
        free = [position for position, gpu in enumerate(host.gpus) if gpu.switch in host.gpu_switches]
        best = [position for position in free if host.gpus[position].numa in near]
        return Advice("reduce-broadcast", tuple(best or free))
    if host.is_nvlinked or len(host.shared_switches | host.gpu_switches) == 1:
        return Advice("reduce-scatter-all-gather")
    return Advice("cpu-assisted")


def gpus_per_switch(host: Host) -> int:
    """The most GPUs of one switch: n of the model, which assumes that all have as many; 0 without GPUs.

    >>> gpus_per_switch(Host((Device("a", "P0"), Device("b", "P0"), Device("c", "P1"))))
    2
    """
    return max(Counter(gpu.switch for gpu in host.gpus).values(), default=0)


def completion_seconds(x: float, *, gpus: int, size: float, gpu_link: float, cpu_link: float) -> float:
    """J(x), equations 8 and 9: the time in seconds to sum ``size`` bytes in the CPU, a part ``x`` of them in [0, 1] by
    brute-force copies and the rest by CPU-assisted aggregation.

    ``gpus``: those of each switch, 1 or more; ``gpu_link`` and ``cpu_link`` in bit/s.

    >>> round(completion_seconds(0, gpus=4, size=1e9, gpu_link=99.2e9, cpu_link=99.2e9), 3)
    0.141
    """
    of_gpu = ((2 * gpus - 1) / gpus * (1 - x) + x) * size * 8 / gpu_link
    of_switch = (gpus * x + 1 - x) * size * 8 / cpu_link
    return max(of_gpu, of_switch)


def best_part(*, gpus: int, gpu_link: float, cpu_link: float) -> float:
    """x*: the part of the data in [0, 1] that brute-force copies take where J(x) is least.

    The time of a GPU's link falls with x and that of a switch's rises, so that the least maximum is where both are
    equal, or at an end. Arguments as of ``completion_seconds``.

    >>> best_part(gpus=4, gpu_link=105e9, cpu_link=105e9)
    0.2
    """
    if gpus == 1:
        return 0.0  # the two strategies are the same
    ratio = gpu_link / cpu_link
    crossing = ((2 * gpus - 1) / gpus - ratio) / ((gpus - 1) * (1 / gpus + ratio))
    return min(max(crossing, 0.0), 1.0)


def ring_seconds(*, gpus: int, size: float, rate: float) -> float:
    """Time in seconds of an all-reduce of ``size`` bytes around a ring of ``gpus`` GPUs, all of the host's, where the
    slowest copy runs at ``rate`` bit/s.

    >>> ring_seconds(gpus=8, size=1e9, rate=80e9)
    0.175
    """
    return 2 * (gpus - 1) / gpus * size * 8 / rate
