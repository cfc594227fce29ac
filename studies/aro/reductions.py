"""Cost and savings of SRO, APP and QSR (figures 12 and 13), for this package's search and for whole-model solvers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mlt.planners.aro.bounds import Objective
from mlt.planners.aro.graph import IntArray, TaskGraph
from mlt.planners.aro.instance import Instance
from mlt.planners.aro.single import NoRoutesError, solve_task
from studies.aro.accelerate import (
    ALL,
    Accelerations,
    drop_unused,
    only_programmable,
    plan_accelerated,
    prune_aggregators,
    task_graphs,
)
from studies.aro.cpsat import Question, plain, solve_quantised
from studies.aro.generate import Hardware, leaf_spine
from studies.aro.quantisation import Quantisation
from studies.aro.records import Row, lines_figure, summarise, write_json
from studies.aro.whole import solve_whole


def run(out: Path, *, seeds: int, progress: Callable[[str], None]) -> None:
    """Loss and time of each reduction in the exact search, one task of 200 workers; alpha and N swept."""
    variants = {
        "exact": Accelerations(),
        "SRO": Accelerations(sro=True),
        "APP 0.6": Accelerations(app_share=0.6),
        "QSR 100": Accelerations(qsr_levels=100),
        "ACC": ALL,
    }
    variants |= {f"alpha {a}": Accelerations(app_share=a) for a in (0.2, 0.4, 0.6, 0.8, 1.0)}
    variants |= {f"N {n}": Accelerations(qsr_levels=n) for n in (10, 20, 50, 100, 200, 500)}
    found: dict[str, Any] = {}
    for name, variant in variants.items():
        rates, seconds = [], []
        for seed in range(seeds):
            solution = plan_accelerated(leaf_spine(seed=seed, hardware=Hardware(share=0.4)), accelerations=variant)
            rates.append(solution.plans[0].rate)
            seconds.append(solution.seconds)
        found[name] = {"rate": summarise(rates), "seconds": summarise(seconds)}
        exact = found["exact"]["rate"]["mean"]
        found[name]["loss"] = round(1 - found[name]["rate"]["mean"] / exact, 4)
        progress(f"{name}: loss {100 * found[name]['loss']:.2f} %, {found[name]['seconds']['median']} s")
    for figure, prefix, label in (("figure12", "alpha ", "alpha (APP)"), ("figure13", "N ", "N (QSR)")):
        points = [
            (float(name.removeprefix(prefix)), entry["rate"]["mean"], entry["rate"]["ci95"])
            for name, entry in found.items()
            if name.startswith(prefix)
        ]
        title = f"SJST, 40 % programmable, {seeds} seeds"
        lines_figure(out / f"{figure}.png", {"ARO": points}, x=label, y="Gbit/s", title=title)
    write_json(out / "reductions.json", {"seeds": seeds, "share": 0.4, "results": found})


def _reduced(instance: Instance) -> dict[str, TaskGraph]:
    (graph,) = task_graphs(instance, Accelerations())
    (pruned,) = prune_aggregators(instance, [graph], 0.6)
    stage = only_programmable(instance, graph)
    staged = graph
    if stage is not None:
        try:
            staged = drop_unused(instance, graph, stage, solve_task(stage).y)
        except NoRoutesError:
            staged = graph
    return {"whole": graph, "APP": pruned, "SRO": staged}


def run_solvers(out: Path, *, seeds: int, seconds: float, progress: Callable[[str], None]) -> None:
    """The paper's model given whole to HiGHS and CP-SAT, beside the search, on the same instances."""
    rows: dict[str, list[Row]] = {}

    def note(name: str, rate: float, bound: float, begin: float) -> None:
        proven = rate >= bound * (1 - 1e-6)
        rows.setdefault(name, []).append({"rate": rate, "proven": proven, "seconds": time.monotonic() - begin})

    for seed in range(seeds):
        instance = leaf_spine(seed=seed)
        graphs = _reduced(instance)
        graph = graphs["whole"]
        begin = time.monotonic()
        best = solve_task(graph)
        note("search", best.rate, best.bound, begin)
        for name, options in {
            "HiGHS": {"symmetry": False, "cuts": False},
            "HiGHS, cuts": {"symmetry": False, "cuts": True},
            "HiGHS, cuts, symmetry": {"symmetry": True, "cuts": True},
        }.items():
            _try_whole(note, name, graph, seconds, **options)
        begin = time.monotonic()
        warm = solve_whole(graph, seconds=seconds, start=best.y, symmetry=False)
        note("HiGHS, cuts, warm start", warm.rate, warm.bound, begin)
        _try_whole(note, "HiGHS, cuts, APP", graphs["APP"], seconds, symmetry=False)
        _try_whole(note, "HiGHS, cuts, SRO", graphs["SRO"], seconds, symmetry=False)
        for levels in (20, 100, 1000):
            _try_cpsat(note, f"CP-SAT, QSR {levels}", instance, graph, levels, seconds, warm_start=None)
        flows = best.y
        _try_cpsat(note, "CP-SAT, QSR 100, warm start", instance, graph, 100, seconds, warm_start=(best.rate, flows))
        progress(f"seed {seed}: " + ", ".join(f"{name} {found[-1]['seconds']:.2f} s" for name, found in rows.items()))
        write_json(
            out / "solvers.json",
            {
                "seconds allowed": seconds,
                "results": {
                    name: {
                        "rate": summarise([row["rate"] for row in found]),
                        "seconds": summarise([row["seconds"] for row in found]),
                        "proven": sum(row["proven"] for row in found),
                        "of": len(found),
                    }
                    for name, found in rows.items()
                },
            },
        )


def _try_whole(
    note: Callable[[str, float, float, float], None],
    name: str,
    graph: TaskGraph,
    seconds: float,
    *,
    symmetry: bool = True,
    cuts: bool = True,
) -> None:
    begin = time.monotonic()
    try:
        solution = solve_whole(graph, seconds=seconds, symmetry=symmetry, cuts=cuts)
    except NoRoutesError:
        note(name, 0.0, float("inf"), begin)
    else:
        note(name, solution.rate, solution.bound, begin)


def _try_cpsat(
    note: Callable[[str, float, float, float], None],
    name: str,
    instance: Instance,
    graph: TaskGraph,
    levels: int,
    seconds: float,
    *,
    warm_start: tuple[float, IntArray] | None,
) -> None:
    begin = time.monotonic()
    start = None if warm_start is None else (np.array([warm_start[0]]), [warm_start[1]])
    outcome = solve_quantised(
        Question(
            instance=instance,
            bundled=plain([graph]),
            objective=Objective(mu=0.0),
            quantisation=Quantisation(levels, instance.fastest_gbps),
            alone=[graph.access_gbps],
            seconds=seconds,
            start=start,
        )
    )
    rate = 0.0 if outcome.rates is None else float(outcome.rates[0])
    note(name, rate, outcome.bound, begin)
