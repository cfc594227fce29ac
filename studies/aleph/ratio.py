"""The distance of M-WCHA from the optimum: ALEPH's theorem 7, measured over random graphs.

Run: ``python -m studies.aleph.ratio --out docs/results/aleph`` (1,000 graphs, some minutes).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlt.planners.aleph.clustering import AS_PRINTED, best_of_seeds, cluster_workers
from mlt.planners.aleph.clustering_greedy import greedy_clustering
from studies.aleph.baselines import exact_clustering
from studies.aleph.listed_graph import random_graph


@dataclass(frozen=True, kw_only=True)
class RatioRow:
    """Streams found on one random graph; ``bound`` is theorem 7's 8 H_Delta |OPT|."""

    seed: int
    workers: int
    edge_probability: float
    optimum: int
    proven: bool
    streams: int
    best_of_8: int
    printed: int
    greedy: int
    bound: float


def measure_graph(seed: int, *, max_workers: int) -> RatioRow:
    """One Erdos-Renyi graph with random size, density and capacities, all from ``seed``."""
    rng = np.random.default_rng(seed)
    workers = int(rng.integers(10, max_workers + 1))
    density = float(rng.uniform(0.05, 0.6))
    graph = random_graph(workers, edge_probability=density, rng=rng)
    capacity = rng.integers(0, int(rng.integers(2, 10)), workers)
    exact, proven = exact_clustering(graph=graph, capacity=capacity, time_limit=120)
    degrees = [len(graph.neighbours(worker)) for worker in range(workers)]
    delta = max(*capacity.tolist(), *degrees) + 1
    harmonic = sum(1 / i for i in range(1, delta + 1))
    return RatioRow(
        seed=seed,
        workers=workers,
        edge_probability=round(density, 4),
        optimum=exact.streams,
        proven=proven,
        streams=cluster_workers(graph=graph, capacity=capacity, seed=seed).streams,
        best_of_8=best_of_seeds(graph=graph, capacity=capacity, seed=seed).streams,
        printed=cluster_workers(graph=graph, capacity=capacity, seed=seed, reading=AS_PRINTED).streams,
        greedy=greedy_clustering(graph=graph, capacity=capacity).streams,
        bound=8 * harmonic * exact.streams,
    )


def measure_ratios(*, graphs: int, seed: int = 0, max_workers: int = 60) -> list[RatioRow]:
    """``graphs`` rows, seeds ``seed`` and up."""
    return [measure_graph(seed + i, max_workers=max_workers) for i in range(graphs)]


def summarise(rows: Sequence[RatioRow]) -> dict[str, object]:
    """Means, 95 % confidence half-widths and maxima of each algorithm's ratio to the optimum."""
    out: dict[str, object] = {
        "graphs": len(rows),
        "proven_optima": sum(row.proven for row in rows),
        "within_theorem_7": sum(row.streams <= row.bound for row in rows),
        "largest_ratio_over_natural_log_n": max(row.streams / row.optimum / math.log(row.workers) for row in rows),
    }
    for name in ("streams", "best_of_8", "printed", "greedy"):
        ratios = np.array([getattr(row, name) / row.optimum for row in rows])
        half = 1.96 * ratios.std(ddof=1) / math.sqrt(len(rows)) if len(rows) > 1 else 0.0
        label = "m_wcha" if name == "streams" else name
        out[label] = {
            "mean_ratio": round(float(ratios.mean()), 4),
            "ci95": round(float(half), 4),
            "p99": round(float(np.quantile(ratios, 0.99)), 4),
            "max_ratio": round(float(ratios.max()), 4),
            "optimal": int((ratios == 1).sum()),
        }
    return out


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder for ratio.json")
    parser.add_argument("--graphs", type=int, default=1000, help="number of random graphs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the graphs (default: %(default)s)")
    options = parser.parse_args(arguments)
    result = summarise(measure_ratios(graphs=options.graphs, seed=options.seed))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "ratio.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
