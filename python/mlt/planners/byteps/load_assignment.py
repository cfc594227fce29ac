"""BytePS load assignment: bytes per summation service, and the communication time of an iteration.

Paper: BytePS (OSDI 2020), section 4.1. n workers each run a service, and so do k further CPU hosts. Equal bandwidths
have the closed form of equations 1, 2 and 6; unequal ones the linear programme below. Absent on purpose: the service of
each partition (``partition_hash``) and the network inside a host (section 4.2).

Two readings of the print:

* Equation 4 (``t_c = M_cpu / B``) lacks a factor n: a CPU host receives its part from each of the n workers, as the
  text before it says, and only ``t_c = n * M_cpu / B`` makes equations 1, 2 and 6 agree with each other.
* The gain 1.46 printed for n = 32, k = 16 is equation 7's 1.469 truncated, not rounded.

Units: sizes in bytes, bandwidths in bits per second (each direction), times in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlt._shared.counts import count_of
from mlt.planners.byteps.partition_hash import DEFAULT_PARTITION_BYTES, closed_form_hash_space, hash_ranges
from mlt.planners.cluster import Cluster, Job
from mlt.planners.plan import Assignment, ServiceLoad

Loads = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class LoadAssignment:
    """Bytes per service and the resulting times.

    ``worker_loads`` has one entry per worker, ``server_loads`` one per CPU host; together they sum to the model size.
    ``time`` is the model's communication time of one iteration; a baseline that cannot run (without a server) has the
    time None.
    """

    worker_loads: Loads
    server_loads: Loads
    time: float
    time_all_reduce: float
    time_parameter_server: float | None
    method: str


def ring_all_reduce_time(*, model_bytes: float, worker_bandwidths: Sequence[float]) -> float:
    """Bandwidth-optimal ring: 2 (n - 1) / n of the model through the slowest worker's link."""
    n = len(worker_bandwidths)
    return 2 * (n - 1) / n * model_bytes * 8 / min(worker_bandwidths)


def parameter_server_time(
    *, model_bytes: float, worker_bandwidths: Sequence[float], server_bandwidths: Sequence[float]
) -> float | None:
    """Servers that are not workers share the model in proportion to their bandwidth; None without servers.

    The maximum of two times: the servers together (n copies of the model), and the slowest worker (one copy).
    """
    if not server_bandwidths:
        return None
    bits = model_bytes * 8
    return max(len(worker_bandwidths) * bits / sum(server_bandwidths), bits / min(worker_bandwidths))


def closed_form_loads(*, workers: int, servers: int, model_bytes: float) -> tuple[float, float]:
    """Bytes per worker's service and per server (equations 2 and 1), for any n >= 1 and k >= 0.

    Outside 1 <= k <= n and n >= 2, as in the paper: k > n is a plain parameter server, k = 0 is all-reduce; a single
    worker sums for itself.

    Raises:
        ValueError: fewer than one worker or fewer than zero servers.
    """
    n, k = workers, servers
    if n < 1 or k < 0:
        raise ValueError(f"{count_of(n, 'worker')} and {count_of(k, 'server')}; expected at least 1 and 0")
    if n == 1:
        return model_bytes, 0.0
    if k > n:
        return 0.0, model_bytes / k
    denominator = n * n + k * n - 2 * k
    return (n - k) / denominator * model_bytes, (2 * (n - 1) / denominator * model_bytes if k else 0.0)


def communication_time(
    *,
    model_bytes: float,
    worker_bandwidths: Sequence[float],
    server_bandwidths: Sequence[float],
    worker_loads: Sequence[float] | Loads,
    server_loads: Sequence[float] | Loads,
) -> float:
    """Time of one iteration under given loads: the slowest host of equations 3 and 4 (with its n)."""
    n = len(worker_bandwidths)
    workers = (model_bytes + (n - 2) * np.asarray(worker_loads, dtype=float)) / np.asarray(worker_bandwidths)
    servers = n * np.asarray(server_loads, dtype=float) / np.asarray(server_bandwidths, dtype=float)
    return float(8 * max(workers.max(), servers.max(initial=0.0)))


def _linear_programme_time(bits: float, workers: Loads, servers: Loads) -> float:
    """Least t such that loads x_i, y_j >= 0 summing to M exist with M + (n-2) x_i <= t B_i and n y_j <= t B_j.

    Solved in units of the model and of the fastest link, so that the solver's tolerances are relative.
    """
    from scipy import sparse  # extra plan; equal bandwidths need no scipy
    from scipy.optimize import linprog

    n, k = len(workers), len(servers)
    scale = max(workers.max(), servers.max(initial=0.0))
    traffic = np.concatenate([np.full(n, n - 2.0), np.full(k, float(n))])
    links = np.concatenate([workers, servers]) / scale
    rows = sparse.hstack([sparse.diags(traffic), sparse.csr_matrix(-links[:, None])], format="csr")
    limits = np.concatenate([-np.ones(n), np.zeros(k)])
    objective = np.zeros(n + k + 1)
    objective[-1] = 1.0
    total = 1.0 - objective[None, :]
    result = linprog(objective, A_ub=rows, b_ub=limits, A_eq=total, b_eq=[1.0], method="highs")
    if not result.success or result.x is None:  # a feasible point always exists: one service holding everything
        raise ArithmeticError(f"the load-assignment programme was not solved: {result.message}")
    return float(result.x[-1]) * bits / float(scale)


def _loads_within(time: float, bits: float, workers: Loads, servers: Loads) -> tuple[Loads, Loads]:
    """Loads that finish in ``time``: each service's limit, scaled down together so that they sum to the model.

    The programme's optimum is not unique if the slowest worker alone decides the time. This choice is unique, and gives
    equal hosts equal loads.
    """
    n = len(workers)
    room = np.maximum(time * workers - bits, 0.0)
    worker_limits = room / (n - 2) if n > 2 else np.full(n, bits)
    server_limits = time * servers / n
    scale = bits / (worker_limits.sum() + server_limits.sum())
    return worker_limits * scale / 8, server_limits * scale / 8


def assign_loads(
    *, model_bytes: float, worker_bandwidths: Sequence[float], server_bandwidths: Sequence[float] = ()
) -> LoadAssignment:
    """The loads with the least communication time.

    Args:
        model_bytes: Gradient bytes of one worker and iteration.
        worker_bandwidths: n >= 1 entries, bits per second.
        server_bandwidths: k >= 0 entries, bits per second.

    Raises:
        ValueError: no worker, or a size or bandwidth that is not above zero.
    """
    if not worker_bandwidths:
        raise ValueError("no worker; expected at least one worker bandwidth")
    if model_bytes <= 0 or min(*worker_bandwidths, *server_bandwidths, 1.0) <= 0:
        raise ValueError("expected a model size and bandwidths above zero")
    n, k = len(worker_bandwidths), len(server_bandwidths)
    workers, servers = np.asarray(worker_bandwidths, dtype=float), np.asarray(server_bandwidths, dtype=float)
    if n == 1 or len({*worker_bandwidths, *server_bandwidths}) == 1:
        per_worker, per_server = closed_form_loads(workers=n, servers=k, model_bytes=model_bytes)
        worker_loads, server_loads, method = np.full(n, per_worker), np.full(k, per_server), "closed-form"
    else:
        time = _linear_programme_time(model_bytes * 8, workers, servers)
        worker_loads, server_loads = _loads_within(time, model_bytes * 8, workers, servers)
        method = "linear-programme"
    return LoadAssignment(
        worker_loads=worker_loads,
        server_loads=server_loads,
        time=communication_time(
            model_bytes=model_bytes,
            worker_bandwidths=worker_bandwidths,
            server_bandwidths=server_bandwidths,
            worker_loads=worker_loads,
            server_loads=server_loads,
        ),
        time_all_reduce=ring_all_reduce_time(model_bytes=model_bytes, worker_bandwidths=worker_bandwidths),
        time_parameter_server=parameter_server_time(
            model_bytes=model_bytes, worker_bandwidths=worker_bandwidths, server_bandwidths=server_bandwidths
        ),
        method=method,
    )


def plan_assignment(cluster: Cluster, job: Job) -> Assignment:
    """The plan section for one job: loads, and the hash ranges of each service (section 4.1)."""
    hosts = cluster.host_by_name
    result = assign_loads(
        model_bytes=job.model_size,
        worker_bandwidths=[hosts[name].bandwidth for name in job.workers],
        server_bandwidths=[hosts[name].bandwidth for name in job.servers],
    )
    loads = [*map(float, result.worker_loads), *map(float, result.server_loads)]
    exact = closed_form_hash_space(workers=len(job.workers), servers=len(job.servers))
    hash_space = exact if result.method == "closed-form" else None
    space, ranges = hash_ranges(loads, hash_space=hash_space)
    services = tuple(
        ServiceLoad(host=name, colocated=i < len(job.workers), load_bytes=load, hash_begin=begin, hash_end=end)
        for i, (name, load, (begin, end)) in enumerate(zip((*job.workers, *job.servers), loads, ranges, strict=True))
    )
    return Assignment(
        method="closed-form" if result.method == "closed-form" else "linear-programme",
        hash_space=space,
        partition_bytes=DEFAULT_PARTITION_BYTES,
        services=services,
        time=result.time,
        time_all_reduce=result.time_all_reduce,
        time_parameter_server=result.time_parameter_server,
    )
