"""``mlt plan topology``: build network graphs, set PSNet's circuits, place jobs, and grow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlt._shared.counts import count_of
from mlt.cli.layout import print_lines
from mlt.cli.output_option import TEXT_FILE
from mlt.cli.plan_file import plan_to_extend, refusals
from mlt.cli.style import App, write_output
from mlt.cli.unit_option import RATE, SIZE, UnitOption
from mlt.planners.cluster import Cluster, dump_cluster, read_cluster
from mlt.planners.plan import dump_plan
from mlt.planners.psnet.checks import TopologyError

app = App(no_args_is_help=True, help="Network graphs: PSNet, fat-tree, leaf-spine, and plans on them.")
build = App(no_args_is_help=True, help="Build a network and write it as a cluster file.")
app.add_typer(build, name="build")

ClusterFile = Annotated[Path, typer.Argument(metavar="CLUSTER", help="Cluster file (YAML) that describes a PSNet.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE|-", parser=TEXT_FILE, help="Cluster file (YAML or .json); -: standard output."
    ),
]
PlanOut = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE|-", parser=TEXT_FILE, help="Plan file to extend; -: standard output."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed; the same seed gives the same result.")]
Rate = Annotated[
    float,
    typer.Option(
        parser=UnitOption(RATE, above=0), show_default="10gbit", help="Rate of a host's link, such as 25gbit."
    ),
]
_TEN_GIGABIT = 10e9
Over = Annotated[
    float, typer.Option(min=1e-9, help="Oversubscription: links between switches are this many times slower.")
]


def _write(out: Path | None, cluster: Cluster) -> None:
    if out is not None:
        text = cluster.model_dump_json(indent=2, exclude_none=True) + "\n"
        write_output(out, text if out.suffix == ".json" else dump_cluster(cluster))


def _built(out: Path | None, cluster: Cluster) -> None:
    parts = {"host": cluster.hosts, "switch": cluster.switches, "link": cluster.links}
    typer.echo(", ".join(count_of(len(some), one) for one, some in parts.items()))
    _write(out, cluster)


@build.command("fat-tree")
def build_fat_tree(
    k: Annotated[int, typer.Argument(help="Ports per switch, even.")],
    hosts_per_edge: Annotated[
        int | None, typer.Option(min=1, help="Hosts per edge switch.", show_default="k/2")
    ] = None,
    rate: Rate = _TEN_GIGABIT,
    oversubscription: Over = 1.0,
    out: Out = None,
) -> None:
    """The k-ary fat-tree."""
    with refusals(out=out):
        from mlt.planners.psnet.clos import fat_tree

        fabric = rate / oversubscription
        _built(
            out,
            fat_tree(k, hosts_per_edge=hosts_per_edge, host_bits_per_second=rate, fabric_bits_per_second=fabric),
        )


@build.command("leaf-spine")
def build_leaf_spine(
    leaves: Annotated[int, typer.Argument()],
    spines: Annotated[int, typer.Argument()],
    hosts_per_leaf: Annotated[int, typer.Argument()],
    rate: Rate = _TEN_GIGABIT,
    oversubscription: Over = 1.0,
    out: Out = None,
) -> None:
    """Every leaf joined to every spine."""
    with refusals(out=out):
        from mlt.planners.psnet.clos import leaf_spine

        fabric = rate / oversubscription
        _built(
            out,
            leaf_spine(
                leaves,
                spines,
                hosts_per_leaf=hosts_per_leaf,
                host_bits_per_second=rate,
                fabric_bits_per_second=fabric,
            ),
        )


@build.command("psnet")
def build_psnet_command(
    modules: Annotated[int, typer.Argument(help="Number of SuperNodes, H.")],
    ecs_ports: Annotated[int, typer.Option(min=1, help="Ports on each side of the circuit switch (W').")] = 12,
    tor_downlinks: Annotated[int, typer.Option(min=1, help="Downlinks per ToR, M_d; R = W' / M_d ToRs.")] = 4,
    tor_uplinks: Annotated[
        int, typer.Option(min=1, help="Uplinks per ToR, M_u; one for the SuperNode switch, one per server.")
    ] = 4,
    workers: Annotated[int | None, typer.Option(help="Workers per module.", show_default="all that fit")] = None,
    servers: Annotated[int | None, typer.Option(help="Servers per module.", show_default="all that fit")] = None,
    rate: Rate = _TEN_GIGABIT,
    ratio: Annotated[
        float, typer.Option(min=1e-9, help="K = B_s / B_w, rate of a server's NIC over that of a worker link.")
    ] = 1.0,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """PSNet: modules with a circuit switch, joined into an R-regular graph."""
    with refusals(out=out):
        from mlt.planners.psnet.cluster_io import psnet_cluster
        from mlt.planners.psnet.psnet import Module, build_psnet

        module = Module(
            ecs_ports=ecs_ports,
            tor_downlinks=tor_downlinks,
            tor_uplinks=tor_uplinks,
            workers=workers,
            servers=servers,
            worker_bits_per_second=rate,
            server_ratio=ratio,
        )
        network = build_psnet(module, modules=modules, seed=seed)
        typer.echo(
            f"{count_of(modules, 'module')} of R = {count_of(module.tors, 'ToR')}, "
            f"{count_of(module.worker_count, 'worker')}, {count_of(module.server_count, 'server')}"
        )
        if modules > 1:
            paths = count_of(network.wiring.edge_connectivity(), "link-disjoint path")
            typer.echo(f"{paths} between any two modules")
        _built(out, psnet_cluster(network))


@app.command()
def circuits(
    cluster_file: ClusterFile,
    extra_paths: Annotated[
        int, typer.Option(min=0, help="Shortest paths to use between modules besides the R link-disjoint ones.")
    ] = 0,
    out: PlanOut = None,
) -> None:
    """Set the circuits and routes for all jobs of a cluster file that describes a PSNet."""
    with refusals(cluster_file, out):
        from mlt.planners.psnet.plan_section import plan_topology, with_topology

        cluster = read_cluster(cluster_file)
        plan = plan_to_extend(cluster, out)
        made = plan_topology(cluster, extra_paths=extra_paths)
        plan = with_topology(plan, made)
        for job in made.jobs:
            print_lines(f"{job.name}: {plan.job(job.name).notes[-1]}")
        moved = sum(len(of_module.moved) for of_module in made.circuits.values())
        print_lines(f"{moved} of {len(plan.circuits)} circuits change; fullest link: {' to '.join(made.fullest)}")
        if made.routes.gap > 1e-6:
            typer.echo(f"not proven optimal: up to {made.routes.gap:.2%} faster may be possible")
        if out is not None:
            write_output(out, dump_plan(plan))


@app.command()
def place(
    cluster_file: ClusterFile,
    job: Annotated[
        list[str],
        typer.Option(metavar="NAME=WORKERS,SERVERS,SIZE", help="Job to place, such as vgg=24,4,528MB; repeatable."),
    ],
    out: Out = None,
) -> None:
    """Place new jobs on hosts: inside one module where possible, else on adjacent ones."""
    with refusals(cluster_file, out):
        from mlt.planners.psnet.cluster_psnet import read_psnet
        from mlt.planners.psnet.jobs import JobRequest, PlacedJob
        from mlt.planners.psnet.placement import place_jobs

        cluster = read_cluster(cluster_file)
        named = read_psnet(cluster)
        requests = []
        for text in job:
            name, _, numbers = text.partition("=")
            parts = numbers.split(",")
            if not name or len(parts) != 3 or not (parts[0].strip().isdigit() and parts[1].strip().isdigit()):
                raise TopologyError(f"--job {text!r}: expected NAME=WORKERS,SERVERS,SIZE such as vgg=24,4,528MB")
            try:
                size = SIZE.read(parts[2], above=0)
            except ValueError as error:
                raise TopologyError(f"--job {text!r}: {error}") from None
            requests.append(JobRequest(name=name, workers=int(parts[0]), servers=int(parts[1]), size_bytes=size))
        running = [named.placed(old) for old in cluster.jobs]
        result = place_jobs(named.network, requests, placed=running)
        for placed in result.jobs:
            parts = [
                f"{named.file_module[mid]} ({count_of(placed.workers_in(mid), 'worker')}, "
                f"{count_of(placed.servers_in(mid), 'server')})"
                for mid in placed.modules
            ]
            print_lines(f"{placed.name}: module {', '.join(parts)}")
        if out is not None:
            from mlt.planners.cluster import Job

            def entry(placed: PlacedJob) -> Job:
                return Job(
                    name=placed.name,
                    workers=tuple(named.worker_names[m, w] for m, ws in placed.workers.items() for w in ws),
                    servers=tuple(named.server_names[m, s] for m, ss in placed.servers.items() for s in ss),
                    model_size=placed.size_bytes,
                )

            jobs = (*cluster.jobs, *(entry(placed) for placed in result.jobs))
            fields = {name: getattr(cluster, name) for name in ("version", "name", "hosts", "switches", "links")}
            _write(out, Cluster(**fields, jobs=jobs))


@app.command()
def grow(cluster_file: ClusterFile, seed: Seed = 0, out: Out = None) -> None:
    """Add a module like the first one, and list the inter-module cables to unplug and plug in."""
    with refusals(cluster_file, out):
        from mlt.planners.psnet.growth import grow_cluster

        grown = grow_cluster(read_cluster(cluster_file), seed=seed)
        for link in grown.unplug:
            typer.echo(f"unplug {link.a} port {link.a_port} - {link.b} port {link.b_port}")
        for link in grown.plug:
            typer.echo(f"plug   {link.a} port {link.a_port} - {link.b} port {link.b_port}")
        jobs = ", ".join(grown.growth.disturbed_jobs) or "none"
        print_lines(f"jobs with traffic on an unplugged cable: {jobs}")
        _write(out, grown.cluster)
