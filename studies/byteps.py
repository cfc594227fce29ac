"""BytePS's numbers again: gains over both baselines, and what hashing parts costs against the planned loads.

Run: ``python -m studies.byteps --out docs/results/byteps`` (seconds).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from mlt.planners.byteps.load_assignment import LoadAssignment, assign_loads, plan_assignment
from mlt.planners.cluster import Cluster, Host, Job
from mlt.planners.plan import Assignment
from studies.byteps_placement import achieved_loads, overload, partitions, place_evenly

GOODPUT = 90e9  # bit/s between two machines, measured by the paper for its figure 12
MIB = 2**20
VGG16_BYTES = 528 * 10**6
LAYERS = 16


def gain_over_all_reduce(result: LoadAssignment) -> float | None:
    """gamma_a of equation 7; None if nothing is sent (one worker)."""
    return result.time_all_reduce / result.time if result.time > 0 else None


def gain_over_parameter_server(result: LoadAssignment) -> float | None:
    """gamma_p of equation 7; None without servers or if nothing is sent."""
    if result.time_parameter_server is None or result.time == 0:
        return None
    return result.time_parameter_server / result.time


def gains(pairs: Sequence[tuple[int, int]]) -> list[dict[str, float | int | None]]:
    """Equation 7 for each (n, k)."""
    rows: list[dict[str, float | int | None]] = []
    for n, k in pairs:
        result = assign_loads(model_bytes=1e9, worker_bandwidths=[GOODPUT] * n, server_bandwidths=[GOODPUT] * k)
        rows.append(
            {
                "n": n,
                "k": k,
                "over_all_reduce": gain_over_all_reduce(result),
                "over_parameter_server": gain_over_parameter_server(result),
            }
        )
    return rows


def optimal_goodput(*, workers: int, servers: Sequence[int]) -> list[dict[str, float]]:
    """Figure 12's "optimal" line: model bits over communication time (equation 6), bit/s."""
    out = []
    for k in servers:
        result = assign_loads(model_bytes=1e9, worker_bandwidths=[GOODPUT] * workers, server_bandwidths=[GOODPUT] * k)
        out.append({"k": k, "gbit_per_second": 8e9 / result.time / 1e9})
    return out


def equal_assignment(*, workers: int, servers: int, model_bytes: float) -> Assignment:
    """The plan section for machines of equal bandwidth."""
    hosts = tuple(Host(name=f"h{i}", bandwidth=GOODPUT) for i in range(workers + servers))
    names = tuple(host.name for host in hosts)
    job = Job(name="j", workers=names[:workers], servers=names[workers:], model_size=model_bytes)
    return plan_assignment(Cluster(hosts=hosts, jobs=(job,)), job)


def overloads(*, workers: int, servers: int, partition_bytes: int, models: int = 20) -> dict[str, float | int]:
    """Mean overload of the fullest service over ``models`` sets of layer names, hashed and placed evenly."""
    section = equal_assignment(workers=workers, servers=servers, model_bytes=VGG16_BYTES)
    hashed, even, count = [], [], 0
    for model in range(models):
        tensors = {f"model{model}.layer{i}": VGG16_BYTES // LAYERS for i in range(LAYERS)}
        parts = list(partitions(tensors, partition_bytes=partition_bytes))
        count = len(parts)
        placed, loads = place_evenly(section, parts), [0.0] * len(section.services)
        for part in parts:
            loads[placed[part.tensor, part.index]] += part.size
        hashed.append(overload(section, achieved_loads(section, parts)))
        even.append(overload(section, loads))
    return {
        "n": workers,
        "k": servers,
        "parts": count,
        "partition_bytes": partition_bytes,
        "hashed": round(statistics.mean(hashed), 3),
        "hashed_worst": round(max(hashed), 3),
        "placed_evenly": round(statistics.mean(even), 3),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder for byteps.json")
    options = parser.parse_args(arguments)
    sizes = [(32, 16), (8, 4)]
    result = {
        "gains": gains([(32, 16), *((8, k) for k in range(9)), (128, 128)]),
        "figure_12_optimal": optimal_goodput(workers=8, servers=range(9)),
        "overload_of_the_fullest_service": [
            overloads(workers=n, servers=k, partition_bytes=size) for n, k in sizes for size in (4 * MIB, MIB)
        ],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=2) + "\n"
    (options.out / "byteps.json").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
