"""A plan as a picture: the graph with its link loads, the aggregation tree, and the busiest links.

matplotlib is imported only when something is drawn; it belongs to the extra ``plan``.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mlt._shared.counts import count_of
from mlt._shared.output_files import write_figure
from mlt._shared.units import format_time
from mlt.planners.cluster import Cluster
from mlt.planners.plan import JobPlan, Plan
from mlt.planners.plan.link_load import Loads, arc_bandwidths
from mlt.planners.show.explain import job_loads, planned_network, planned_time

_LABELS_UP_TO = 40  # nodes in a row above which names would overlap
_BARS = 12
_CHARACTER = 4.2  # points, of a label
_NAMED = 1  # links of a bar that its label names
_COLOURS = {"worker": "#4c78a8", "aggregator": "#e45756", "server": "#54a24b", "idle": "#bab0ac"}


def roles(cluster: Cluster, entry: JobPlan) -> dict[str, str]:
    """Each host's role in the job: worker, aggregator, server or idle."""
    job = cluster.job_by_name[entry.job]
    out = dict.fromkeys(cluster.host_by_name, "idle")
    out.update(dict.fromkeys(job.workers, "worker"))
    out.update(dict.fromkeys(job.servers, "server"))
    if entry.aggregation is not None:
        out.update(dict.fromkeys((group.aggregator for group in entry.aggregation.clusters), "aggregator"))
    return out


def positions(cluster: Cluster) -> dict[str, tuple[float, float]]:
    """Hosts in a row at the bottom, in order of their rack; each tier of switches in a row above."""
    rack: dict[str, int] = {}
    order = {switch.name: index for index, switch in enumerate(cluster.switches)}
    last_of: dict[int | None, int] = {s.module: order[s.name] for s in cluster.switches if s.module is not None}
    for name in cluster.host_by_name:
        above = [order[peer] for link in cluster.links_of[name] if (peer := cluster.peer(link, name)) in order]
        # A host without a link (a worker without a circuit) has the place of its module's last switch.
        rack[name] = min(above, default=last_of.get(cluster.host_by_name[name].module, len(order)))
    rows: dict[int, list[str]] = {0: sorted(cluster.host_by_name, key=lambda name: rack[name])}
    for switch in cluster.switches:
        rows.setdefault(switch.tier, []).append(switch.name)
    return {
        name: ((index + 0.5) / len(names), float(tier))
        for tier, names in rows.items()
        for index, name in enumerate(names)
    }


def utilisations(cluster: Cluster, loads: Loads) -> dict[tuple[str, str], float]:
    """Load over bandwidth of each directed link with load."""
    bandwidths = arc_bandwidths(cluster)
    return {arc: load / bandwidths[arc] for arc, load in loads.items() if arc in bandwidths}


def _annotate(axes: Any, place: dict[str, tuple[float, float]], *, is_above: bool = False) -> None:
    """The names of nodes under (or above) them; upright in a row that is too narrow for them side by side."""
    rows: dict[float, list[str]] = {}
    for name, (_, y) in place.items():
        rows.setdefault(y, []).append(name)
    points = 72 * axes.figure.get_figwidth() * axes.get_position().width
    for y, names in rows.items():
        lefts = sorted(place[name][0] for name in names)
        gap = min((b - a for a, b in pairwise(lefts)), default=1.0)
        is_upright = max(map(len, names)) * _CHARACTER > gap * points
        for name in names:
            axes.annotate(
                name, (place[name][0], y), textcoords="offset points", xytext=(0, 6 if is_above else -6), ha="center",
                va="bottom" if is_above else "top", rotation=90 if is_upright else 0, fontsize=6,
            )  # fmt: skip


def _draw_graph(axes: Any, cluster: Cluster, entry: JobPlan, used: dict[tuple[str, str], float]) -> Any:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = ScalarMappable(norm=Normalize(0, 1), cmap="turbo")
    place, part = positions(cluster), roles(cluster, entry)
    for link in cluster.links:
        load: float = max(used.get((link.a, link.b), 0.0), used.get((link.b, link.a), 0.0))
        (x0, y0), (x1, y1) = place[link.a], place[link.b]
        colour = scale.to_rgba(np.array([min(load, 1.0)]))[0] if load > 0 else "#dddddd"
        across = np.linspace(0, 1, 2 if y0 != y1 else 25)
        # A link within a tier is an arc above it: straight ones would lie on each other.
        height = y0 + (y1 - y0) * across + (y0 == y1) * (0.1 + abs(x1 - x0)) * 4 * across * (1 - across)
        axes.plot(
            x0 + (x1 - x0) * across,
            height,
            color=colour,
            linewidth=0.6 + 1.6 * min(load, 1.0),
            zorder=1 if load > 0 else 0,
        )
    for name, (x, y) in place.items():
        switch = cluster.switch_by_name.get(name)
        colour = ("#f2cf5b" if switch.aggregates else "#ffffff") if switch else _COLOURS[part[name]]
        marker = "s" if switch else "o"
        axes.scatter([x], [y], color=colour, edgecolors="#333333", marker=marker, s=60 if switch else 28, zorder=3)
    if max(len(cluster.hosts), len(cluster.switches)) <= _LABELS_UP_TO:
        # Links leave a switch downwards, so its name stands above it.
        _annotate(axes, {name: at for name, at in place.items() if name in cluster.switch_by_name}, is_above=True)
        _annotate(axes, {name: at for name, at in place.items() if name in cluster.host_by_name})
    for role, colour in _COLOURS.items():
        if role in part.values():
            axes.scatter([], [], color=colour, edgecolors="#333333", label=role)
    if any(switch.aggregates for switch in cluster.switches):
        axes.scatter([], [], color="#f2cf5b", edgecolors="#333333", marker="s", label="aggregating switch")
    # Outside the plot: no link or node is there.
    axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6, frameon=False)
    axes.set_axis_off()
    axes.margins(0.03, 0.12)
    return scale


def _draw_tree(axes: Any, cluster: Cluster, entry: JobPlan) -> None:
    """Servers on top, aggregators and direct workers below, members below their aggregators."""
    tree = entry.aggregation
    job = cluster.job_by_name[entry.job]
    groups: list[tuple[str, tuple[str, ...]]]
    groups = [(g.aggregator, g.members) for g in tree.clusters] + [(w, ()) for w in tree.direct] if tree else []
    if not groups:
        groups = [(worker, ()) for worker in job.workers]
    width = sum(max(1, len(members)) for _, members in groups)
    left, place = 0.0, {name: ((i + 0.5) / len(job.servers), 2.0) for i, name in enumerate(job.servers)}
    for head, members in groups:
        span = max(1, len(members)) / width
        place[head] = (left + span / 2, 1.0)
        for index, member in enumerate(members):
            place[member] = (left + (index + 0.5) * span / len(members), 0.0)
            axes.plot([place[member][0], place[head][0]], [0, 1], color="#999999", linewidth=0.7, zorder=1)
        for server in job.servers:
            axes.plot([place[head][0], place[server][0]], [1, 2], color="#cccccc", linewidth=0.6, zorder=0)
        left += span
    part = roles(cluster, entry)
    for name, (x, y) in place.items():
        axes.scatter([x], [y], color=_COLOURS[part[name]], edgecolors="#333333", s=30, zorder=3)
    if len(place) <= _LABELS_UP_TO:
        _annotate(axes, place)
    axes.set_title("aggregation tree" if tree else "no aggregation tree: every worker sends straight", fontsize=9)
    axes.set_axis_off()
    axes.margins(0.05, 0.2)


def bars_of(used: dict[tuple[str, str], float]) -> list[tuple[str, float, int]]:
    """(links, utilisation, their number), busiest first: links of equal utilisation, to a percent, share a bar."""
    groups: dict[int, list[tuple[str, str]]] = {}
    for arc, value in sorted(used.items(), key=lambda item: (-item[1], item[0])):
        groups.setdefault(round(100 * value), []).append(arc)
    found = []
    for arcs in list(groups.values())[:_BARS]:
        named = ", ".join(f"{a} → {b}" for a, b in arcs[:_NAMED])
        more = len(arcs) - _NAMED
        text = f"{named}\nand {more} more" if more > 0 else named
        found.append((text, max(used[arc] for arc in arcs), len(arcs)))
    return found


def _draw_bars(axes: Any, used: dict[tuple[str, str], float]) -> None:
    bars = bars_of(used)[::-1]
    axes.barh([text for text, _, _ in bars], [100 * value for _, value, _ in bars], color="#4c78a8", height=0.6)
    right = max(100.0, *(100 * value for _, value, _ in bars)) * 1.05
    for place, (_, value, count) in enumerate(bars):
        # A long bar has its label inside, where the line of 100 % does not cross it.
        is_inside = 100 * value > right / 2
        axes.annotate(
            f"{count_of(count, 'link')}, {100 * value:.0f} %", (100 * value, place), xytext=(-3 if is_inside else 3, 0),
            textcoords="offset points", ha="right" if is_inside else "left", va="center", fontsize=7,
            color="white" if is_inside else "black",
        )  # fmt: skip
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xlim(0, right)
    axes.set_ylim(-0.8, max(len(bars), 4) - 0.2)
    axes.set_xlabel("utilisation, % of bandwidth", fontsize=8)
    shown = sum(count for _, _, count in bars)
    what = f"all {len(used)} loaded links" if shown == len(used) else f"busiest {shown} of {len(used)} loaded links"
    axes.set_title(what, fontsize=9)
    axes.axvline(100, color="#e45756", linewidth=0.8, zorder=0.5)


def _why_no_loads(cluster: Cluster, network: Cluster | None, entry: JobPlan) -> str:
    if not cluster.links:
        return "no link loads: the cluster file has no links"
    return "no link loads: " + (
        "no circuits are planned" if network is None else f"nothing is planned for job {entry.job}"
    )


def plan_figure(cluster: Cluster, plan: Plan, *, job: str) -> Any:
    """The figure of one job's plan. Raises as ``draw_plan`` does."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    entry = plan.job(job)
    network = planned_network(cluster, plan)
    used = utilisations(network, job_loads(network, entry)) if network is not None else {}
    canvas = pyplot.figure(figsize=(13, 8))
    grid = canvas.add_gridspec(2, 2, height_ratios=[1.3, 1], wspace=0.35)
    scale = _draw_graph(canvas.add_subplot(grid[0, :]), network or cluster, entry, used)
    _draw_tree(canvas.add_subplot(grid[1, 0]), cluster, entry)
    bars = canvas.add_subplot(grid[1, 1])
    if used:
        _draw_bars(bars, used)
        canvas.colorbar(scale, ax=canvas.axes[0], shrink=0.6, label="link utilisation")
    else:
        bars.text(0.5, 0.5, _why_no_loads(cluster, network, entry), ha="center", fontsize=9)
        bars.set_axis_off()
    time = planned_time(entry, cluster.job_by_name[job])
    canvas.suptitle(f"{cluster.name}: job {job}" + (f", {format_time(time)} per iteration" if time else ""))
    return canvas


def draw_plan(cluster: Cluster, plan: Plan, *, job: str, path: Path) -> None:
    """Draw one job's plan into ``path`` (its suffix selects the format: png, svg, pdf).

    Raises:
        KeyError: the cluster has no such job.
        InfeasibleError: streams of the plan lead to unreachable hosts.
    """
    canvas = plan_figure(cluster, plan, job=job)
    write_figure(path, canvas, dpi=110, bbox_inches="tight")

    from matplotlib import pyplot

    pyplot.close(canvas)
