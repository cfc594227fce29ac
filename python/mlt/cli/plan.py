"""``mlt plan``: from a cluster file to a plan file, and what the plan means."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mlt._shared.counts import count_of
from mlt._shared.structured_text import parse_json
from mlt._shared.text_files import read_text
from mlt._shared.units import format_time
from mlt.cli.delegate import Delegate
from mlt.cli.layout import print_lines
from mlt.cli.output import Output
from mlt.cli.output_option import PICTURE, TEXT_FILE
from mlt.cli.plan_file import plan_of, plan_to_extend, refusals
from mlt.cli.plan_simulate import notes as simulation_notes
from mlt.cli.plan_simulate import simulate as simulate_auto
from mlt.cli.plan_simulate import with_estimates
from mlt.cli.style import App, AppGroup, write_output
from mlt.planners._shared.documents import InputError, Problem, suggest
from mlt.planners.aleph.aggregation import plan_aggregation
from mlt.planners.auto.ranking import AutoResult, plan_auto
from mlt.planners.byteps.load_assignment import plan_assignment
from mlt.planners.cluster import Cluster, Job, read_cluster
from mlt.planners.plan import Plan, dump_plan
from mlt.planners.show.explain import explain_plan

if TYPE_CHECKING:
    from mlt.simulation.report import SimulationReport

F = TypeVar("F", bound=Callable[..., Any])
# Command -> (module with an ``app``, one-line help)
_ELSEWHERE = {
    "route": ("mlt.cli.plan_routing", "ARO: choose each worker's route and aggregators."),
    "topology": ("mlt.cli.plan_topology", "Network graphs: PSNet, fat-tree, leaf-spine, and plans on them."),
}


class Method(str, Enum):
    best = "best"
    m_wcha = "m-wcha"
    fastest = "fastest"
    greedy = "greedy"
    direct = "direct"


class Reach(str, Enum):
    rack = "rack"
    module = "module"
    cluster = "cluster"


class Kind(str, Enum):
    cluster = "cluster"
    plan = "plan"


ClusterFile = Annotated[Path, typer.Argument(metavar="CLUSTER", help="The cluster file (YAML).")]
JobOption = Annotated[
    str | None, typer.Option("--job", metavar="NAME", help="Plan this job only.", show_default="every job of the file")
]
Out = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE|-", parser=TEXT_FILE, help="Plan file to extend; -: standard output."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed; the same seed gives the same plan.")]


def _reporting(function: F) -> F:
    """Report what the command cannot do as text; see ``refusals``."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with refusals(out=kwargs.get("out")):
            return function(*args, **kwargs)

    return run  # type: ignore[return-value]


def _jobs(cluster: Cluster, source: Path, name: str | None) -> list[Job]:
    known = list(cluster.job_by_name)
    if name is not None and name not in known:
        message = f"no job is named {name!r}; {suggest(name, known)}"
        raise InputError([Problem(where=("jobs",), message=message)], source=str(source))
    if not known:
        raise InputError([Problem(where=("jobs",), message="no job to plan")], source=str(source))
    return [cluster.job_by_name[name]] if name is not None else list(cluster.jobs)


def _finish(cluster: Cluster, plan: Plan, out: Path | None) -> None:
    print_lines(explain_plan(cluster, plan))
    if out is not None:
        typer.echo()
        write_output(out, dump_plan(plan))


class _Group(AppGroup):
    """The commands below, and those of other modules that are installed (planners are separate extras)."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted([*super().list_commands(ctx), *(name for name in _ELSEWHERE if _is_there(name))])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in _ELSEWHERE and _is_there(cmd_name):
            module, text = _ELSEWHERE[cmd_name]
            return Delegate(cmd_name, module=module, short_help=text)
        return super().get_command(ctx, cmd_name)


def _is_there(name: str) -> bool:
    return find_spec(_ELSEWHERE[name][0]) is not None


def _is_plan(file: Path) -> bool:
    try:
        found = parse_json(read_text(file))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "cluster_digest" in found


app = App(cls=_Group, no_args_is_help=True)


@app.callback()
def _plan() -> None:
    """Plan placement, aggregation and routes: CLUSTER is the cluster file (YAML), a plan file is JSON."""


@app.command()
@_reporting
def assign(cluster_file: ClusterFile, job_name: JobOption = None, out: Out = None) -> None:
    """BytePS: assign bytes to summation services."""
    cluster = read_cluster(cluster_file)
    plan = plan_to_extend(cluster, out)
    for job in _jobs(cluster, cluster_file, job_name):
        plan = plan.with_job(plan.job(job.name).model_copy(update={"assignment": plan_assignment(cluster, job)}))
    _finish(cluster, plan, out)


@app.command()
@_reporting
def aggregate(
    cluster_file: ClusterFile,
    job_name: JobOption = None,
    method: Annotated[Method, typer.Option(help="Clustering method.")] = Method.best,
    reach: Annotated[Reach, typer.Option(help="Scope of aggregation.")] = Reach.cluster,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """ALEPH: choose the workers that aggregate for others."""
    cluster = read_cluster(cluster_file)
    plan = plan_to_extend(cluster, out, seed=seed)
    for job in _jobs(cluster, cluster_file, job_name):
        result = plan_aggregation(cluster, job, method=method.value, reach=reach.value, seed=seed)
        changes = {"aggregation": result.section, "estimates": result.estimates}
        plan = plan.with_job(plan.job(job.name).model_copy(update=changes))
    _finish(cluster, plan, out)


@app.command()
@_reporting
def show(
    cluster_file: ClusterFile,
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan file (JSON).")],
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=PICTURE,
            help="Image file (png, svg or pdf); with several jobs one each, its name added.",
        ),
    ] = None,
    job_name: JobOption = None,
) -> None:
    """Explain a plan and draw it: graph, aggregation tree, load of every link."""
    cluster = read_cluster(cluster_file)
    plan = plan_of(cluster, plan_file)
    print_lines(explain_plan(cluster, plan))
    if plot is None:
        return
    from mlt.planners.show.picture import draw_plan

    jobs = [job.name for job in _jobs(cluster, cluster_file, job_name)]
    for name in jobs:
        path = plot if len(jobs) == 1 else plot.with_name(f"{plot.stem}-{name}{plot.suffix}")
        draw_plan(cluster, plan, job=name, path=path)
        typer.echo(f"drawn in {path}")


@app.command()
@_reporting
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A cluster file, or with --against a plan file.")],
    against: Annotated[Path | None, typer.Option(help="Cluster file that the plan must match.")] = None,
) -> None:
    """Check a cluster file, or a plan file (.json with --against)."""
    if against is None:
        if _is_plan(file):
            message = "is a plan file, which only its cluster file can check; give --against CLUSTER"
            raise InputError([Problem(where=(), message=message)], source=str(file))
        cluster = read_cluster(file)
        parts = {"host": cluster.hosts, "switch": cluster.switches, "link": cluster.links, "job": cluster.jobs}
        typer.echo(f"{file}: {', '.join(count_of(len(some), one) for one, some in parts.items())}: fine")
        return
    plan_of(read_cluster(against), file)
    typer.echo(f"{file}: fits {against}")


@app.command()
@_reporting
def schema(kind: Annotated[Kind, typer.Argument(metavar="cluster|plan", help="File type.")]) -> None:
    """Print the JSON schema of the cluster or plan file."""
    model = Cluster if kind is Kind.cluster else Plan
    typer.echo(json.dumps(model.model_json_schema(by_alias=True), indent=2))


def _print_ranking(result: AutoResult, simulated: SimulationReport | None) -> None:
    from rich.table import Table

    more = ("simulated", "ratio") if simulated else ()
    table = Table(
        "#", "alternative", "iteration", *more, "slower by", "bound by", title="communication of one iteration"
    )
    best = result.ranked[0].time
    for place, alternative in enumerate(result.ranked, start=1):
        behind = f"{alternative.time / best:.2f} x" if best > 0 and place > 1 else ""
        cells = []
        if simulated:
            time = simulated.times[place - 1].time
            ratio = "" if time is None or alternative.time <= 0 else f"{time / alternative.time:.2f}"
            cells = ["-" if time is None else format_time(time), ratio]
        table.add_row(str(place), alternative.name, format_time(alternative.time), *cells, behind, alternative.reason)
    Output().print_table(table)
    for note in simulation_notes(simulated) if simulated else ():
        print_lines(note)
    for skipped in result.skipped:
        print_lines(f"not tried: {skipped.name}: {skipped.reason}")
    print_lines(result.reason)


@app.command()
@_reporting
def auto(
    cluster_file: ClusterFile,
    job_name: Annotated[str, typer.Argument(metavar="JOB", help="A job of the cluster file.")],
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Time the alternatives in the simulator as well.")
    ] = False,
    packet_hops: Annotated[
        float | None,
        typer.Option(
            "--packet-hops",
            metavar="MILLIONS",
            min=0.01,
            max=10_000,
            help="Max simulated packets times links per alternative, with --simulate; larger jobs are scaled down.",
            show_default="2",
        ),
    ] = None,
    layers: Annotated[Path | None, typer.Option(help="Layers of the model (JSON): plan queue thresholds too.")] = None,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Try every planner on JOB, rank the alternatives, keep the best."""
    cluster = read_cluster(cluster_file)
    (job,) = _jobs(cluster, cluster_file, job_name)
    before = plan_to_extend(cluster, out, seed=seed)
    result = plan_auto(cluster, job, seed=seed, layers_file=layers)
    report = simulate_auto(cluster, job, result, million_hops=packet_hops or 2.0, seed=seed) if simulate else None
    _print_ranking(result, report)
    plan = before.with_job(result.plan.job(job.name))
    for other in result.plan.jobs:  # circuits are shared, so the other jobs' placements change with them
        if other.job != job.name:
            plan = plan.with_job(plan.job(other.job).model_copy(update={"placement": other.placement}))
    if report is not None:
        plan = with_estimates(plan, job, report)
    for note in result.plan.notes:
        print_lines(note)
    changes = {
        "seed": seed,
        "circuits": result.plan.circuits or before.circuits,
        "thresholds": result.plan.thresholds or before.thresholds,
        "switch_policy": result.plan.switch_policy or before.switch_policy,
        "notes": result.plan.notes,
    }
    plan = plan.model_copy(update=changes)
    if out is not None:
        write_output(out, dump_plan(plan))
