"""Drawings: roles, places, and files that appear."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlt.planners.aleph.aggregation import plan_aggregation
from mlt.planners.cluster import Cluster, Host, Job, Link, Switch
from mlt.planners.plan import JobPlan, Plan, new_plan
from mlt.planners.show.picture import _draw_bars, bars_of, draw_plan, plan_figure, positions, roles, utilisations


@pytest.fixture
def cluster() -> Cluster:
    hosts = tuple(Host(name=f"h{i}", bandwidth=10e9 * (1 + 2 * (i == 0)), cpu_cores=8) for i in range(6))
    switches = (Switch(name="leaf0"), Switch(name="leaf1", aggregates=True), Switch(name="spine", tier=2))
    links = [Link(a=f"h{i}", b=f"leaf{i % 2}", bandwidth=40e9) for i in range(6)]
    links += [Link(a=f"leaf{i}", b="spine", bandwidth=40e9) for i in range(2)]
    job = Job(name="j", workers=("h0", "h1", "h2", "h3"), servers=("h4",), model_size=97e6)
    return Cluster(hosts=hosts, switches=switches, links=tuple(links), jobs=(job,))


@pytest.fixture
def entry(cluster: Cluster) -> JobPlan:
    return JobPlan(job="j", aggregation=plan_aggregation(cluster, cluster.jobs[0]).section)


def test_roles__of_every_host(cluster: Cluster, entry: JobPlan) -> None:
    part = roles(cluster, entry)
    assert part["h0"] == "aggregator"
    assert part["h4"] == "server"
    assert part["h5"] == "idle"
    assert part["h3"] == "worker"


def test_positions__racks_stay_together(cluster: Cluster) -> None:
    place = positions(cluster)
    row = sorted((name for name in place if name.startswith("h")), key=lambda name: place[name][0])
    assert row == ["h0", "h2", "h4", "h1", "h3", "h5"]
    assert place["spine"][1] > place["leaf0"][1] > place["h0"][1]


def test_utilisations__ignore_links_the_cluster_lacks(cluster: Cluster) -> None:
    assert utilisations(cluster, {("h1", "leaf1"): 5e9, ("h1", "nowhere"): 1.0}) == {("h1", "leaf1"): 0.5}


def test_bars_of__links_of_equal_load_share_a_bar() -> None:
    used = {(f"w{number}", "leaf"): 1.0 for number in range(18)} | {("leaf", "spine"): 0.504, ("spine", "leaf"): 0.5}
    assert bars_of(used) == [("w0 → leaf\nand 17 more", 1.0, 18), ("leaf → spine\nand 1 more", 0.504, 2)]


def test_bars_of__shows_the_busiest() -> None:
    bars = bars_of({("a", f"b{number}"): number / 100 for number in range(1, 90)})
    assert [value for _, value, _ in bars[:2]] == [0.89, 0.88]
    assert len(bars) == 12


def test_draw_plan__has_no_legend_over_data_and_no_colliding_labels(cluster: Cluster, entry: JobPlan) -> None:
    figure = plan_figure(cluster, new_plan(cluster).with_job(entry), job="j")
    figure.canvas.draw()
    graph, tree, bars = figure.axes[:3]
    legend = graph.get_legend().get_window_extent()
    nodes = [graph.transData.transform(place) for drawn in graph.collections for place in drawn.get_offsets().tolist()]
    assert len(nodes) == len(cluster.hosts) + len(cluster.switches)
    assert not any(legend.contains(*node) for node in nodes)
    labels = [label.get_window_extent() for label in bars.get_yticklabels() if label.get_text()]
    assert not any(one.overlaps(other) for i, one in enumerate(labels) for other in labels[:i])
    names = [text.get_window_extent() for text in tree.texts]
    assert names
    assert not any(one.overlaps(other) for one in labels for other in names)


def test_draw_plan__no_label_is_crossed_by_the_line_of_100_percent() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(5, 3))
    _draw_bars(axes, {(f"a{number}", "b"): number / 20 for number in range(1, 21) if number not in (11, 12, 13)})
    figure.canvas.draw()
    line = axes.transData.transform((100, 0))[0]
    labels = [text.get_window_extent() for text in axes.texts]
    assert len(labels) == 12
    assert not any(one.x0 <= line <= one.x1 for one in labels)
    assert all(axes.get_window_extent().contains(*corner) for one in labels for corner in one.corners())
    pyplot.close(figure)


@pytest.fixture
def psnet() -> Cluster:
    """A job of one module and one of two, of a PSNet whose rows have many names."""
    pytest.importorskip("networkx")
    from mlt.planners.psnet.cluster_io import psnet_cluster
    from mlt.planners.psnet.jobs import JobRequest
    from mlt.planners.psnet.placement import place_jobs
    from mlt.planners.psnet.psnet import Module, build_psnet

    network = build_psnet(Module(ecs_ports=12, tor_downlinks=4, tor_uplinks=4), modules=4, seed=0)
    wanted = [JobRequest(name="one", workers=12, servers=2, size_bytes=97e6)]
    wanted.append(JobRequest(name="two", workers=16, servers=4, size_bytes=97e6))
    return psnet_cluster(network, place_jobs(network, wanted).jobs)


def _psnet_plan(psnet: Cluster) -> Plan:
    from mlt.planners.psnet.plan_section import plan_topology, with_topology

    return with_topology(new_plan(psnet), plan_topology(psnet))


@pytest.mark.parametrize("job", ["one", "two"])
def test_plan_figure__of_circuits_has_link_loads_and_no_colliding_names(psnet: Cluster, job: str) -> None:
    figure = plan_figure(psnet, _psnet_plan(psnet), job=job)
    figure.canvas.draw()
    _, tree, bars = figure.axes[:3]
    assert "loaded links" in bars.get_title()
    assert max(bar.get_width() for bar in bars.patches) >= 99.9
    names = [text.get_window_extent() for text in tree.texts]
    assert len(names) == len(psnet.job_by_name[job].workers) + len(psnet.job_by_name[job].servers)
    assert not any(one.overlaps(other) for i, one in enumerate(names) for other in names[:i])


def test_plan_figure__links_within_a_tier_do_not_lie_on_each_other(psnet: Cluster) -> None:
    graph = plan_figure(psnet, _psnet_plan(psnet), job="one").axes[0]
    arcs = [line for line in graph.lines if len(line.get_xdata()) > 2]
    assert len(arcs) == sum(link.a.startswith("supernode") and link.b.startswith("supernode") for link in psnet.links)
    assert all(max(arc.get_ydata()) > arc.get_ydata()[0] for arc in arcs)


def test_plan_figure__says_why_it_has_no_loads(psnet: Cluster, cluster: Cluster) -> None:
    def text(of: Cluster, job: str) -> str:
        return str(plan_figure(of, new_plan(of), job=job).axes[2].texts[0].get_text())

    assert text(psnet, "one") == "no link loads: no circuits are planned"
    assert text(cluster, "j") == "no link loads: nothing is planned for job j"
    assert text(cluster.model_copy(update={"links": ()}), "j") == "no link loads: the cluster file has no links"


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_draw_plan__writes_the_format_of_its_suffix(
    cluster: Cluster, entry: JobPlan, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"plan.{suffix}"
    draw_plan(cluster, new_plan(cluster).with_job(entry), job="j", path=path)
    head = path.read_bytes()[:200]
    assert head.startswith(b"\x89PNG") if suffix == "png" else b"<?xml" in head


def test_draw_plan__without_links_or_sections(tmp_path: Path) -> None:
    hosts = (Host(name="a", bandwidth=1), Host(name="b", bandwidth=1))
    bare = Cluster(hosts=hosts, jobs=(Job(name="j", workers=("a",), servers=("b",), model_size=1),))
    draw_plan(bare, new_plan(bare).with_job(JobPlan(job="j")), job="j", path=tmp_path / "bare.png")
    assert (tmp_path / "bare.png").stat().st_size > 1000


def test_draw_plan__unknown_job(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        draw_plan(cluster, new_plan(cluster), job="absent", path=tmp_path / "x.png")
