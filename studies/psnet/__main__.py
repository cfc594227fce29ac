"""``python -m studies.psnet``: regenerate the paper's figures as JSON, CSV and PNG."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer

from mlt._shared.units import format_rate, format_time
from mlt.cli.unit_option import RATE, SIZE, UnitOption
from mlt.planners._shared.documents import InputError
from mlt.planners.cluster import read_cluster
from mlt.planners.psnet.checks import TopologyError
from mlt.planners.psnet.cluster_psnet import NamedPSNet, read_psnet
from studies.psnet import figures, study, testbed
from studies.psnet.bct import JobProfile, fat_tree_time, one_module_time
from studies.psnet.faults import Element, reach, unreached
from studies.psnet.survey import Kind, survey

app = typer.Typer(add_completion=False, no_args_is_help=True)
Out = Annotated[Path, typer.Option(help="Folder for the results; created if missing")]
Pictures = Annotated[bool, typer.Option(help="Draw PNG files too (needs matplotlib)")]
Draws = Annotated[int, typer.Option(min=1, help="Number of random cases if there are too many to try all")]
Seeds = Annotated[int, typer.Option(min=2, help="Number of random draws for the confidence intervals")]
_DEFAULT_OUT = Path("docs/results/psnet")


@app.command("figures")
def figures_command(out: Out = _DEFAULT_OUT, pictures: Pictures = True) -> None:
    """Figures 6(a), 6(b) and 7: communication time by equations 5, 6 and 7."""
    out.mkdir(parents=True, exist_ok=True)
    drawn = (
        ("figure6a", "Figure 6(a): one PSNet module, bandwidth ratio K", figures.figure_6a(), False),
        ("figure6b", "Figure 6(b): one module and two modules, K = 1", figures.figure_6b(), True),
        ("figure7", "Figure 7: PSNet (K = 1) and fat-tree", figures.figure_7(), True),
    )
    for name, title, series, log in drawn:
        _write_series(out / f"{name}.csv", series)
        if pictures:
            from studies.psnet.draw import draw_series

            draw_series(out / f"{name}.png", title, series, log=log)
        for line in series:
            typer.echo(f"{name}: {line.label}: {line.seconds[-1]:.4f} s at {line.x[-1]:g} Gbit/s; {line.note}")


@app.command("testbed")
def figure_13_command(out: Out = _DEFAULT_OUT, pictures: Pictures = True, seeds: Seeds = 1000) -> None:
    """Figure 13, and the parameters implied by the printed 1.89 x and 1.92 x."""
    out.mkdir(parents=True, exist_ok=True)
    at_mbits = min(testbed.MBITS)
    rate = testbed.common_server_rate(at_mbits)
    rows = testbed.figure_13(rate)
    c, hops = testbed.concurrency()
    hashed, half_width = testbed.hashed_concurrency(range(seeds))
    transfers = testbed.transfers("VGG-16", at_mbits, oversubscription=1)
    report: dict[str, Any] = {
        "concurrency_balanced": c,
        "hops": hops,
        "concurrency_hashed": {"mean": hashed, "half_width_95": half_width, "draws": seeds},
        "communication_ratio": transfers[1].seconds / transfers[0].seconds,
        "calibrated_at_mbits": at_mbits,
        "server_bytes_per_second": rate,
        "predicted_ratio": {
            row.model: row.ratio_most for row in rows if row.mbits == at_mbits and row.oversubscription == 1
        },
        "printed_ratio": testbed.PRINTED,
        "inversions": [asdict(testbed.invert(model)) for model in testbed.MODELS],
    }
    (out / "testbed.json").write_text(json.dumps(report, indent=1) + "\n")
    with (out / "figure13.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        bounds = ("psnet_least", "psnet_most", "fat_tree_least", "fat_tree_most", "ratio_least", "ratio_most")
        writer.writerow(["model", "mbits", "r", *bounds])
        for row in rows:
            numbers = (*asdict(row.psnet).values(), *asdict(row.fat_tree).values(), row.ratio_least, row.ratio_most)
            writer.writerow([row.model, f"{row.mbits:g}", row.oversubscription, *(f"{n:.6g}" for n in numbers)])
    if pictures:
        from studies.psnet.draw import draw_figure_13

        draw_figure_13(out / "figure13.png", rows)
    typer.echo(f"communication alone: {report['communication_ratio']:.3f} x; C = {c:g}, hashed {hashed:.2f}")
    for model, ratio in report["predicted_ratio"].items():
        typer.echo(f"{model}: one P_s = {rate / 1e6:.1f} MB/s gives {ratio:.3f} x, printed {testbed.PRINTED[model]} x")


@app.command("time")
def time_command(
    workers: Annotated[int, typer.Option(help="Number of workers of the job")],
    servers: Annotated[int, typer.Option(help="Number of servers of the job")],
    size: Annotated[float, typer.Option(parser=UnitOption(SIZE, above=0), help="Model size, such as 528MB")],
    tors: Annotated[int, typer.Option(help="Number of ToRs in the module, R")] = 3,
    bandwidth: Annotated[
        float, typer.Option(parser=UnitOption(RATE, above=0), help="Bandwidth of a worker's link, such as 25gbit")
    ] = 10e9,
    ratio: Annotated[
        float, typer.Option(help="K = B_s / B_w, rate of a server's NIC over that of a worker link")
    ] = 1.0,
) -> None:
    """Push time of a job in one PSNet module (equation 5) and on a plain tree with one NIC per server (equation 7)."""
    job = JobProfile(workers=workers, servers=servers, size_bytes=size)
    module = one_module_time(job, tors=tors, worker_bits_per_second=bandwidth, server_ratio=ratio)
    tree = fat_tree_time(job, host_bits_per_second=bandwidth, oversubscription=1.0, concurrency=0, hops=6)
    share = format_rate(min(module.shares.values()))
    typer.echo(f"PSNet: {format_time(module.seconds)}, limited by {module.bottleneck} ({share} per flow)")
    typer.echo(f"fat-tree, not oversubscribed: {format_time(tree.seconds)}, limited by {tree.bottleneck}")


@app.command("reach")
def reach_command(
    cluster_file: Annotated[Path, typer.Argument(help="Cluster file (YAML) that describes a PSNet")],
    failed: Annotated[
        list[str], typer.Option(help="Node or cable that fails: NAME, A,B, or A,B,N of parallel ones; repeatable")
    ],
) -> None:
    """Worker-server pairs that still reach each other when parts fail, before and after setting circuits again."""
    try:
        for line in reach_report(read_psnet(read_cluster(cluster_file)), failed):
            typer.echo(line)
    except (InputError, TopologyError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


def reach_report(named: NamedPSNet, texts: Sequence[str]) -> list[str]:
    """Counts and unreachable pairs for the failed parts, by the file's names.

    Raises:
        TopologyError: the network has no such part.
    """
    names = named.file_names()
    own = {name: node for node, name in names.items()}
    elements: list[Element] = []
    for text in texts:
        parts = [part.strip() for part in text.split(",")]
        unknown = [part for part in parts[:2] if part not in own]
        if unknown or len(parts) > 3 or (len(parts) == 3 and not parts[2].isdigit()):
            why = f"no node is named {unknown[0]!r}" if unknown else "expected NODE, A,B or A,B,N"
            raise TopologyError(f"--failed {text!r}: {why}")
        if len(parts) == 1:
            elements.append(own[parts[0]])
        else:
            elements.append((own[parts[0]], own[parts[1]], int(parts[2]) if len(parts) == 3 else 0))
    result = reach(named.network, elements)
    lines = [
        f"of {result.pairs} worker-server pairs, directly: {result.as_is} by the old circuits, {result.repaired} "
        f"by new ones ({result.circuits_moved} moved); by any route: {result.any_way}; "
        f"modules joined: {result.modules_joined} of {result.module_pairs} pairs"
    ]
    lost = unreached(named.network, elements)
    lines += [
        f"{names[worker]} no longer reaches {', '.join(names[server] for server in servers)}"
        for worker, servers in lost.items()
    ]
    return lines


@app.command("survey")
def survey_command(
    cluster_file: Annotated[Path, typer.Argument(help="Cluster file (YAML) that describes a PSNet")],
    kind: Annotated[str, typer.Option(help=f"Kind of the failed parts: {', '.join(get_args(Kind))}")],
    failures: Annotated[int, typer.Option("-k", "--failures", min=0, help="Number of simultaneous failures")] = 1,
    draws: Draws = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random cases")] = 0,
) -> None:
    """Fraction of worker-server pairs that can still reach each other when K parts of a kind fail."""
    if kind not in get_args(Kind):
        raise typer.BadParameter(f"{kind!r}: expected one of {', '.join(get_args(Kind))}", param_hint="--kind")
    network = read_psnet(read_cluster(cluster_file)).network
    result = survey(network, cast(Kind, kind), failures, draws=draws, seed=seed)
    how = "all" if result.exhaustive else "random"
    typer.echo(f"{failures} failed of kind {kind}, {result.cases} {how} cases; mean (worst) share of pairs:")
    for label, shares in (
        ("reached directly by the old circuits", result.as_is),
        ("reached directly by new circuits", result.repaired),
        ("reached by any way after that", result.any_way),
        ("pairs of modules joined", result.modules_joined),
    ):
        typer.echo(f"  {label}: {shares[0]:.2%} ({shares[1]:.2%})")


@app.command("faults")
def faults_command(out: Out = _DEFAULT_OUT, draws: Draws = 100) -> None:
    """Fraction of worker-server pairs that survive failures, before and after setting the circuits again."""
    out.mkdir(parents=True, exist_ok=True)
    shares = ("as_is", "repaired", "any_way", "modules_joined")
    rows = [
        [name, found.kind, found.failures, found.cases, "all" if found.exhaustive else "random"]
        + [f"{value:.4f}" for share in shares for value in getattr(found, share)]
        for name, found in study.fault_study(draws=draws)
    ]
    columns = [f"{share}_{end}" for share in shares for end in ("mean", "worst")]
    _write_rows(out / "faults.csv", ["ports", "kind", "failures", "cases", "drawn", *columns], rows)
    typer.echo(f"{len(rows)} surveys in {out / 'faults.csv'}")


@app.command("growth")
def growth_command(out: Out = _DEFAULT_OUT) -> None:
    """A PSNet grown module by module, compared with new ones of the same size."""
    out.mkdir(parents=True, exist_ok=True)
    ages = [age for ports in (3, 4, 6) for age in study.growth_study(ports=ports)]
    names = [field.name for field in fields(study.Age)]
    _write_rows(out / "growth.csv", names, [[f"{value:.6g}" for value in asdict(age).values()] for age in ages])
    for ports in (3, 4, 6):
        last = [age for age in ages if age.ports == ports][-1]
        typer.echo(
            f"R = {ports}: {last.links_cut} links cut per step; at {last.modules} modules {last.connectivity} disjoint "
            f"paths, mean distance {last.mean_hops:.3f} grown, {last.fresh_mean_hops:.3f} fresh"
        )


@app.command("routing")
def routing_command(out: Out = _DEFAULT_OUT, seeds: Seeds = 20) -> None:
    """Cross-module routing, compared with the best of all paths, one path, and the circuits as cabled."""
    out.mkdir(parents=True, exist_ok=True)
    gains = study.routing_study(seeds=range(seeds))
    names = [field.name for field in fields(study.Gain)]
    _write_rows(out / "routing.csv", names, [[f"{value:.6g}" for value in asdict(gain).values()] for gain in gains])
    for label, values in (
        ("as cabled / planned", [gain.as_cabled / gain.planned for gain in gains]),
        ("planned / proven bound", [gain.planned / gain.bound for gain in gains]),
        ("planned / best of any paths", [gain.planned / gain.any_path for gain in gains]),
        ("with 16 more paths / best of any paths", [gain.with_extra_paths / gain.any_path for gain in gains]),
        ("one path / best of any paths", [gain.one_path / gain.any_path for gain in gains]),
    ):
        middle, half = study.interval(values)
        typer.echo(f"{label}: {middle:.3f} +- {half:.3f} (worst {max(values):.3f})")


@app.command("all")
def all_command(out: Out = _DEFAULT_OUT, pictures: Pictures = True, seeds: Seeds = 1000) -> None:
    """The paper's figures: ``figures`` and ``testbed``."""
    figures_command(out, pictures)
    figure_13_command(out, pictures, seeds)


def _write_rows(path: Path, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)


def _write_series(path: Path, series: list[figures.Series]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["gbits", *(line.label for line in series)])
        for n, x in enumerate(series[0].x):
            writer.writerow([f"{x:g}", *(f"{line.seconds[n]:.6g}" for line in series)])


if __name__ == "__main__":
    app()
