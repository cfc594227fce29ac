"""One task of 200 workers (figures 7 and 8): proven optima beside the baselines, and which reading gives which mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, get_args

from mlt.planners.aro.instance import Instance
from mlt.planners.aro.multiple import plan_routes
from mlt.planners.aro.verify import verify
from studies.aro.accelerate import Accelerations, plan_accelerated
from studies.aro.baselines import plan_aggtree, plan_random
from studies.aro.generate import MAPPINGS, Hardware, Workload, leaf_spine
from studies.aro.grid import Reading, plan_grid
from studies.aro.grid_rounding import Rounding
from studies.aro.records import Row, lines_figure, summarise, violins_figure, write_csv, write_json

PAPER = {"ARO": 26.33, "RANDOM": 7.92, "AggTree": 8.76, "GRID": 1.75}


def measure(instance: Instance, seed: int) -> Row:
    """Rates of one instance under every scheme, each plan verified; seconds of the exact search, unfolding included.

    Raises:
        RuntimeError: routes failed their check, or the optimum was not proven.
    """
    solution = plan_routes(instance)
    plans = {
        "RANDOM": plan_random(instance, seed=seed),
        "AggTree": plan_aggtree(instance, seed=seed),
        "GRID rate": plan_grid(instance, seed=seed, reading="rate"),
        "GRID line-rate": plan_grid(instance, seed=seed, reading="line-rate"),
    }
    for name, routed in {"ARO": solution.plans, **plans}.items():
        report = verify(instance, routed)
        if not report.ok:
            raise RuntimeError(f"{name}, seed {seed}: {report.faults[0]}")
    if not solution.proven:
        raise RuntimeError(f"seed {seed}: optimum not proven, gap {solution.gap}")
    quantised = plan_accelerated(instance, accelerations=Accelerations(qsr_levels=100))
    row: Row = {"seed": seed, "ARO": solution.plans[0].rate, "ARO quantised": quantised.plans[0].rate}
    row |= {name: routed[0].rate for name, routed in plans.items()}
    return {**row, "seconds": solution.seconds, "programmable spines": _spines(instance)}


def _spines(instance: Instance) -> int:
    return sum(switch.programmable and switch.tier == 1 for switch in instance.switches)


def run(out: Path, *, seeds: int, other_seeds: int, progress: Callable[[str], None]) -> None:
    """Figure 7a: ``seeds`` instances in the default reading, ``other_seeds`` in each of the others."""
    readings: dict[str, Any] = {}
    for mapping in MAPPINGS:
        for inside in (True, False):
            count = seeds if mapping == "class" else other_seeds
            hardware = Hardware(mapping=mapping, ps_leaf_in_share=inside)
            rows = [measure(leaf_spine(seed=seed, hardware=hardware), seed) for seed in range(count)]
            name = f"{mapping}, PS leaf {_where(inside)} the 20 %"
            readings[name] = {key: summarise([row[key] for row in rows]) for key in rows[0] if key != "seed"}
            progress(
                f"{name}: ARO {readings[name]['ARO']['mean']} Gbit/s, median {readings[name]['seconds']['median']} s"
            )
            if mapping == "class" and inside:
                write_csv(out / "sjst.csv", rows)
                series = {key: [row[key] for row in rows] for key in rows[0] if key in PAPER or key.startswith("GRID")}
                violins_figure(out / "figure7a.png", series, y="Gbit/s", title=f"SJST, 200 workers, {count} seeds")
    write_json(out / "sjst.json", {"paper": PAPER, "readings": readings})


def run_grid(out: Path, *, seeds: int, progress: Callable[[str], None]) -> None:
    """GRID's mean rate in every reading of its programme, of its rounding and of its switches' capacity."""
    found: dict[str, Any] = {}
    for inside in (True, False):
        instances = [leaf_spine(seed=seed, hardware=Hardware(ps_leaf_in_share=inside)) for seed in range(seeds)]
        for reading, rounding, enforce in product(get_args(Reading), get_args(Rounding), (False, True)):
            options: dict[str, Any] = {"reading": reading, "rounding": rounding, "enforce": enforce}
            rates = [plan_grid(instance, seed=s, **options)[0].rate for s, instance in enumerate(instances)]
            runs = [mean(rates[first : first + 30]) for first in range(0, max(1, seeds - 29), 30)]
            name = f"{reading}, {rounding}{', enforced' if enforce else ''}, PS leaf {_where(inside)} the 20 %"
            found[name] = {**summarise(rates), "means of 30": [round(min(runs), 2), round(max(runs), 2)]}
            progress(f"{name}: {found[name]['mean']} +- {found[name]['ci95']} Gbit/s")
    write_json(out / "grid.json", {"paper": PAPER["GRID"], "seeds": seeds, "readings": found})


def _where(inside: bool) -> str:
    return "among" if inside else "on top of"


def _curve(
    settings: Sequence[tuple[float, Hardware, Workload]], seeds: int
) -> dict[str, list[tuple[float, float, float]]]:
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for x, hardware, workload in settings:
        rows = [measure(leaf_spine(seed=s, hardware=hardware, workload=workload), s) for s in range(seeds)]
        for key in ("ARO", "RANDOM", "AggTree", "GRID rate", "GRID line-rate"):
            values = summarise([row[key] for row in rows])
            curves.setdefault(key, []).append((x, values["mean"], values["ci95"]))
    return curves


def run_curves(out: Path, *, seeds: int, progress: Callable[[str], None]) -> None:
    """Figures 7b (share of aggregators), 7c (workers) and 8 (pipelines)."""
    base = Hardware()
    sweeps = {
        "figure7b": (
            "programmable share of switches",
            [(x, replace(base, share=x), Workload()) for x in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)],
        ),
        "figure7c": ("workers", [(float(n), base, Workload(workers=n)) for n in (100, 200, 300, 400)]),
        "figure8": ("pipelines", [(float(p), replace(base, pipelines=p), Workload()) for p in (1, 2, 4, 6, 8)]),
    }
    found = {}
    for name, (label, settings) in sweeps.items():
        curves = _curve(settings, seeds)
        found[name] = {"x": label, "curves": curves}
        lines_figure(out / f"{name}.png", curves, x=label, y="Gbit/s", title=f"SJST, {seeds} seeds")
        progress(f"{name}: ARO {[round(point[1], 2) for point in curves['ARO']]}")
    write_json(out / "sjst_curves.json", {"seeds": seeds, "figures": found})
