"""Circuit switches replaced by their circuits."""

from __future__ import annotations

import pytest
from checks import names

from mlt.planners._shared.documents import InputError
from mlt.planners.auto.ranking import plan_auto
from mlt.planners.cluster import Cluster, Host, Job, Link, Switch
from mlt.planners.plan import Circuit, JobPlan, new_plan
from mlt.planners.plan.effective import effective_cluster, has_circuit_switches, without_links
from mlt.planners.show.explain import explain_plan, planned_network


@pytest.fixture
def cluster() -> Cluster:
    """Two workers and two ToRs on a circuit switch; a server on both ToRs."""
    hosts = (Host(name="w0", bandwidth=10e9), Host(name="w1", bandwidth=10e9), Host(name="ps", bandwidth=20e9))
    switches = (
        Switch(name="ecs", kind="circuit", module=1),
        Switch(name="tor0", pipelines=2, port_pipelines={0: 1, 7: 0}),
        Switch(name="tor1"),
    )
    links = (
        Link(a="w0", b="ecs", bandwidth=10e9, b_port=0),
        Link(a="w1", b="ecs", bandwidth=10e9, b_port=1),
        Link(a="ecs", b="tor0", bandwidth=25e9, a_port=10, b_port=7, delay=2e-6),
        Link(a="ecs", b="tor1", bandwidth=25e9, a_port=11),
        Link(a="tor0", b="ps", bandwidth=10e9, a_port=0),
        Link(a="tor1", b="ps", bandwidth=10e9),
    )
    job = Job(name="j", workers=("w0", "w1"), servers=("ps",), model_size=1e9)
    return Cluster(hosts=hosts, switches=switches, links=links, jobs=(job,))


CIRCUITS = (
    Circuit(a="w0", b="tor0", switch="ecs", a_port=0, b_port=10),
    Circuit(a="w1", b="tor1", switch="ecs", a_port=1, b_port=11),
)


def test_effective__circuits_become_cables(cluster: Cluster) -> None:
    network = effective_cluster(cluster, CIRCUITS)
    assert not has_circuit_switches(network)
    cables = {(link.a, link.b): link for link in network.links}
    assert cables["w0", "tor0"].bandwidth == 10e9
    assert cables["w0", "tor0"].b_port == 7  # the ToR's own port, so its pipelines still hold
    assert cables["w0", "tor0"].delay == pytest.approx(3e-6)
    assert network.port_pipelines("tor0") == {0: 1, 7: 0}


def test_effective__ports_without_circuit_lead_nowhere(cluster: Cluster) -> None:
    network = effective_cluster(cluster, CIRCUITS[:1])
    assert network.links_of["w1"] == ()


def test_effective__rejects_a_port_without_a_cable(cluster: Cluster) -> None:
    with pytest.raises(InputError, match=names("circuits[0]: 'w0' to 'tor0'")):
        effective_cluster(cluster, [CIRCUITS[0].model_copy(update={"b_port": 12})])


def test_effective__leaves_a_packet_network_alone(cluster: Cluster) -> None:
    plain = without_links(cluster)
    assert effective_cluster(plain, CIRCUITS) is plain


def test_explain__loads_need_circuits(cluster: Cluster) -> None:
    plan = new_plan(cluster).with_job(JobPlan(job="j"))
    assert planned_network(cluster, plan) is None
    assert "Busiest link" not in explain_plan(cluster, plan)


def test_plan_auto__without_circuits_links_are_left_out_and_it_is_reported(cluster: Cluster) -> None:
    # Not a PSNet (one server NIC per ToR is missing its SuperNode), or no topology planner: either way a reason.
    result = plan_auto(cluster, cluster.jobs[0])
    reasons = [skipped.reason for skipped in result.skipped if "psnet" in skipped.name]
    assert len(reasons) == 1
    assert "links are left out" in reasons[0]
    assert result.ranked
