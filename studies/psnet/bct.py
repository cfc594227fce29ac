"""Batch completion time (BCT) of a parameter-server job on PSNet and on a fat-tree.

Source: equations 1 to 7 of PSNet, section 4.

Push and pull are each the time in which the slowest worker-server flow moves S/P bytes, plus latency; a flow's rate is
the smallest of its shares of the links it crosses. Bandwidths are bits per second, sizes bytes, so S/P is multiplied by
8 where the paper leaves the unit to the reader.

Repairs, where the print does not say what it must mean:

* Equation 6 prints ``P - 1`` for the servers of the second module; with P1 in the first module it is ``P - P1``.
  (Table 1 puts P1 in the second module, the text and the equation's other term in the first; the first is used.)
* Equation 5's share R * B_s / W supposes that R divides W. Given the workers on each ToR (``spread``), the share is
  B_s / max(spread), which is the same when it does and lower otherwise.
* Equation 7 writes B_s for a fat-tree server's NIC although all NICs there are equal: it is the host's bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mlt.planners.psnet.checks import (
    DEFAULT_LATENCY_SECONDS,
    TopologyError,
    require_count,
    require_not_negative,
    require_positive,
)

#: Links between a worker and a server: in one module (section 3.1), and to an adjacent one (worker, ToR, SuperNode
#: switch, SuperNode switch, ToR, server). Each further module on the way adds one.
HOPS_ONE_MODULE = 2
HOPS_ADJACENT_MODULES = 5


@dataclass(frozen=True, kw_only=True)
class JobProfile:
    """A job as equations 1 to 7 see it (table 1). ``size_bytes`` is S.

    batch_samples (BS), worker_samples_per_second (P_w), server_bytes_per_second (P_s) and sync_seconds (T_sync) enter
    only the parts of the BCT that no topology changes; left out, those parts are zero.
    """

    workers: int
    servers: int
    size_bytes: float
    batch_samples: float = 0.0
    worker_samples_per_second: float | None = None
    server_bytes_per_second: float | None = None
    sync_seconds: float = 0.0

    def __post_init__(self) -> None:
        require_count("workers", self.workers)
        require_count("servers", self.servers)
        require_positive("size_bytes", self.size_bytes)
        require_not_negative("batch_samples", self.batch_samples)
        require_not_negative("sync_seconds", self.sync_seconds)
        for name in ("worker_samples_per_second", "server_bytes_per_second"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))

    @property
    def compute_seconds(self) -> float:
        """T_compute, equation 3."""
        if self.worker_samples_per_second is None:
            return 0.0
        return self.batch_samples / (self.workers * self.worker_samples_per_second)

    @property
    def update_seconds(self) -> float:
        """T_ps_update, equation 4."""
        if self.server_bytes_per_second is None:
            return 0.0
        return self.workers * self.size_bytes / (self.servers * self.server_bytes_per_second)

    @property
    def fixed_seconds(self) -> float:
        """T_compute + T_ps_update + T_sync: the same on every topology."""
        return self.compute_seconds + self.update_seconds + self.sync_seconds


@dataclass(frozen=True)
class TransferTime:
    """T_push = T_pull, seconds. ``shares``: what each kind of link leaves to one flow, bits per second."""

    seconds: float
    shares: Mapping[str, float]

    @property
    def bottleneck(self) -> str:
        """The kind of link that decides (the first one named, when several are equal)."""
        return min(self.shares, key=lambda name: self.shares[name])

    @property
    def communication_seconds(self) -> float:
        """T_push + T_pull, what figures 6 and 7 show."""
        return 2 * self.seconds


@dataclass(frozen=True)
class BatchTime:
    """Bounds of the BCT, seconds: everything overlaps (equation 2), nothing does (equation 1)."""

    least: float
    most: float


def one_module_time(
    job: JobProfile,
    *,
    tors: int,
    worker_bits_per_second: float,
    server_ratio: float,
    latency_seconds: float = DEFAULT_LATENCY_SECONDS,
    spread: Sequence[int] | None = None,
) -> TransferTime:
    """Equation 5: all of the job in one module. ``spread``: its workers per ToR; perfectly even when None."""
    rate = _server_rate(tors, worker_bits_per_second, server_ratio)
    shares = {
        "server NICs": _nic_share(job, rate, tors, spread),
        "worker link": worker_bits_per_second / job.servers,
    }
    return _transfer(job, shares, HOPS_ONE_MODULE, latency_seconds)


def two_module_time(
    job: JobProfile,
    *,
    first_workers: int,
    first_servers: int,
    tors: int,
    worker_bits_per_second: float,
    server_ratio: float,
    hops: int = HOPS_ADJACENT_MODULES,
    latency_seconds: float = DEFAULT_LATENCY_SECONDS,
) -> TransferTime:
    """Equation 6: W1 = ``first_workers`` and P1 = ``first_servers`` in one module, the rest in another.

    ``hops`` is alpha, the longest worker-server path. An unused direction imposes no limit; with the whole job
    in one module the result is equation 5's but for the latency.
    """
    if not (0 <= first_workers <= job.workers and 0 <= first_servers <= job.servers):
        raise TopologyError(
            f"{first_workers} workers and {first_servers} servers in the first module, "
            f"but the job has {job.workers} and {job.servers}"
        )
    rate = _server_rate(tors, worker_bits_per_second, server_ratio)
    shares = {
        "server NICs": _nic_share(job, rate, tors, None),
        "worker link": worker_bits_per_second / job.servers,
    }
    forth = first_workers * (job.servers - first_servers)
    back = (job.workers - first_workers) * first_servers
    if forth:
        shares["inter-module, first to second"] = tors * rate / forth
    if back:
        shares["inter-module, second to first"] = tors * rate / back
    return _transfer(job, shares, hops, latency_seconds)


def fat_tree_time(
    job: JobProfile,
    *,
    host_bits_per_second: float,
    oversubscription: float,
    concurrency: float,
    hops: int,
    latency_seconds: float = DEFAULT_LATENCY_SECONDS,
) -> TransferTime:
    """Equation 7. ``concurrency`` is C, the most flows on an aggregation or core link (``flows.max_concurrent``);
    0 when no flow leaves its rack. ``oversubscription`` is r: fabric links run at B_w / r."""
    require_positive("host_bits_per_second", host_bits_per_second)
    require_positive("oversubscription", oversubscription)
    require_not_negative("concurrency", concurrency)
    shares = {
        "server link": host_bits_per_second / job.workers,
        "worker link": host_bits_per_second / job.servers,
    }
    if concurrency:
        shares["fabric link"] = host_bits_per_second / oversubscription / concurrency
    return _transfer(job, shares, hops, latency_seconds)


def batch_time(job: JobProfile, transfer: TransferTime) -> BatchTime:
    """Equations 1 (most) and 2 (least)."""
    return BatchTime(
        least=max(job.fixed_seconds, transfer.seconds),
        most=job.fixed_seconds + transfer.communication_seconds,
    )


def _server_rate(tors: int, worker_bits_per_second: float, server_ratio: float) -> float:
    require_count("R (tors)", tors)
    require_positive("worker_bits_per_second", worker_bits_per_second)
    return require_positive("K (server_ratio)", server_ratio) * worker_bits_per_second


def _nic_share(job: JobProfile, rate: float, tors: int, spread: Sequence[int] | None) -> float:
    if spread is None:
        return tors * rate / job.workers
    if len(spread) != tors or sum(spread) != job.workers or min(spread) < 0:
        raise TopologyError(f"spread {tuple(spread)} does not place {job.workers} workers on {tors} ToRs")
    return rate / max(spread)


def _transfer(job: JobProfile, shares: dict[str, float], hops: int, latency_seconds: float) -> TransferTime:
    require_count("hops", hops)
    require_not_negative("latency_seconds", latency_seconds)
    bits_per_flow = 8 * job.size_bytes / job.servers
    seconds = bits_per_flow / min(shares.values()) + hops * latency_seconds
    return TransferTime(seconds=seconds, shares=MappingProxyType(shares))
