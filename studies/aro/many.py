"""Several tasks and jobs (figures 9 to 11): rates beside the baselines, proofs, gaps and times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mlt.planners.aro.bounds import job_totals
from mlt.planners.aro.instance import Instance
from mlt.planners.aro.multiple import Effort, Solution, plan_routes
from mlt.planners.aro.routes import TaskPlan
from mlt.planners.aro.verify import verify
from studies.aro.accelerate import ALL, Accelerations, plan_accelerated
from studies.aro.baselines import plan_aggtree, plan_random
from studies.aro.generate import Hardware, Workload, leaf_spine
from studies.aro.grid import plan_grid
from studies.aro.records import Row, lines_figure, summarise, write_csv, write_json

SHAPES = {"SJMT": [(1, 1), (1, 2), (1, 3), (1, 4)], "MJMT": [(2, 1), (1, 2), (2, 2), (3, 2), (4, 2)]}
VARIANTS = {
    "exact": Accelerations(),
    "QSR": Accelerations(qsr_levels=100),
    "SRO": Accelerations(sro=True),
    "APP": Accelerations(app_share=0.6),
    "ACC": ALL,
}


def checked(instance: Instance, plans: Sequence[TaskPlan]) -> list[float]:
    """Job totals of plans that the verifier accepts.

    Raises:
        RuntimeError: it does not.
    """
    report = verify(instance, plans)
    if not report.ok:
        raise RuntimeError(report.faults[0])
    return job_totals(instance, [plan.rate for plan in plans])


def _row(instance: Instance, seed: int, solution: Solution) -> Row:
    row: Row = {"seed": seed}
    schemes = {
        "ARO": solution.plans,
        "AggTree": plan_aggtree(instance, seed=seed),
        "RANDOM": plan_random(instance, seed=seed),
        "GRID": plan_grid(instance, seed=seed, reading="line-rate", enforce=True),
    }
    for name, plans in schemes.items():
        totals = checked(instance, plans)
        row |= {f"{name} total": sum(totals), f"{name} least": min(totals)}
        row[f"{name} least task"] = min(plan.rate for plan in plans)
    return {**row, "gap": solution.gap, "seconds": solution.seconds, "found by": solution.found_by}


def run(out: Path, *, seeds: int, effort: Effort, progress: Callable[[str], None], only: Sequence[str] = ()) -> None:
    """Figures 9 and 10: tasks per job and jobs, 100 workers each, in both readings of the 20 %.

    Args:
        only: shapes to run, such as "3J2T"; all if empty. Figures are then left out.
    """
    summary: dict[str, Any] = {}
    rows: list[Row] = []
    for inside in (True, False):
        for scenario, shapes in SHAPES.items():
            curves: dict[str, list[tuple[float, float, float]]] = {}
            for jobs, tasks in shapes:
                if only and f"{jobs}J{tasks}T" not in only:
                    continue
                workload = Workload(jobs=jobs, tasks=tasks, workers=100)
                hardware = Hardware(ps_leaf_in_share=inside)
                found = []
                for seed in range(seeds):
                    instance = leaf_spine(seed=seed, hardware=hardware, workload=workload)
                    found.append(_row(instance, seed, plan_routes(instance, effort=effort)))
                name = f"{scenario} {jobs}J{tasks}T, PS leaves {'among' if inside else 'on top of'} the 20 %"
                summary[name] = _summary(found)
                rows += [{"scenario": name, **row} for row in found]
                progress(f"{name}: {summary[name]['ratio to AggTree']} x AggTree, {summary[name]['proven']} proven")
                x = float(tasks if scenario == "SJMT" else jobs * tasks)
                for scheme in ("ARO", "AggTree", "RANDOM", "GRID"):
                    point = summarise([row[f"{scheme} total"] for row in found])
                    curves.setdefault(scheme, []).append((x, point["mean"], point["ci95"]))
            if rows:
                write_json(out / "many.json", {"seeds": seeds, "results": summary})
                write_csv(out / "many.csv", rows)
            if only:
                continue
            figure = ("figure9" if scenario == "SJMT" else "figure10") + ("" if inside else "_on_top")
            if scenario == "MJMT":
                curves = {name: points[1:] for name, points in curves.items()}
            lines_figure(out / f"{figure}.png", curves, x="tasks", y="total Gbit/s", title=f"{scenario}, {seeds} seeds")


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    keys = [key for key in rows[0] if key not in ("seed", "found by")]
    found: dict[str, Any] = {key: summarise([row[key] for row in rows]) for key in keys}
    for scheme in ("AggTree", "RANDOM", "GRID"):
        ratio = found["ARO total"]["mean"] / found[f"{scheme} total"]["mean"]
        found[f"ratio to {scheme}"] = round(ratio, 3)
    found["ratio of least to AggTree"] = round(found["ARO least"]["mean"] / found["AggTree least"]["mean"], 3)
    found["proven"] = sum(row["gap"] <= 1e-6 for row in rows)
    found["within 1 %"] = sum(row["gap"] <= 0.01 for row in rows)
    found["found by"] = dict(Counter(row["found by"] for row in rows))
    return found


def run_scale(out: Path, *, seeds: int, scales: Sequence[int], effort: Effort, progress: Callable[[str], None]) -> None:
    """Figure 11: 48 lambda switches, 5 jobs, 100 lambda workers each (and 500 in all for the largest)."""
    summary: dict[str, Any] = {}
    for scale, workers in ((5, 500), (5, 100), (4, 400), (3, 300), (2, 200), (1, 100)):
        if scale not in scales:
            continue
        for inside in (True, False):
            hardware, workload = Hardware(ps_leaf_in_share=inside), Workload(jobs=5, workers=workers)
            rows: dict[str, list[Row]] = {name: [] for name in VARIANTS}
            for seed in range(seeds):
                instance = leaf_spine(
                    leaves=24 * scale, spines=24 * scale, seed=seed, hardware=hardware, workload=workload
                )
                best = plan_routes(instance, effort=effort)
                for name, variant in VARIANTS.items():
                    solution = (
                        best if name == "exact" else plan_accelerated(instance, accelerations=variant, effort=effort)
                    )
                    totals = checked(instance, solution.plans)
                    gap = max(0.0, 1 - solution.value / best.bound)
                    rows[name].append({"total": sum(totals), "least": min(totals), "gap": gap, "s": solution.seconds})
            label = f"{48 * scale} switches, 5 jobs of {workers} workers, PS leaves {_where(inside)} the 20 %"
            summary[label] = {
                name: {
                    "total": summarise([row["total"] for row in found]),
                    "least": summarise([row["least"] for row in found]),
                    "gap to the bound without accelerations": summarise([row["gap"] for row in found]),
                    "seconds": summarise([row["s"] for row in found]),
                    "within 1 %": sum(row["gap"] <= 0.01 for row in found),
                }
                for name, found in rows.items()
            }
            exact = summary[label]["exact"]
            progress(f"{label}: {exact['within 1 %']}/{seeds} within 1 %, at most {exact['seconds']['max']} s")
            write_json(out / "scale.json", {"seeds": seeds, "results": summary})


def _where(inside: bool) -> str:
    return "among" if inside else "on top of"
