from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners.psnet.circuits import assign_circuits, default_circuits, link_rates
from mlt.planners.psnet.psnet import Module, build_psnet
from studies.psnet.psnet_graph import logical_graph
from studies.psnet.repair import ModuleJob, repair_circuits

MODULE = Module(ecs_ports=24, tor_downlinks=6, tor_uplinks=3)


@st.composite
def job_parts(draw: st.DrawFn, module: Module = MODULE) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Workers of up to four jobs and their number on each ToR, as many as the ports allow."""
    workers = draw(st.permutations(range(module.worker_count)))
    left = [module.tor_downlinks] * module.tors
    jobs = []
    for _ in range(draw(st.integers(0, 4))):
        counts = tuple(draw(st.integers(0, room)) for room in left)
        left = [room - count for room, count in zip(left, counts, strict=True)]
        jobs.append((tuple(workers[: sum(counts)]), counts))
        workers = workers[sum(counts) :]
    return jobs


@settings(deadline=None, max_examples=60)
@given(jobs=job_parts())
def test_assign_circuits__puts_every_job_where_it_is_counted_with_the_fewest_moves(
    jobs: list[tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    plan = assign_circuits(MODULE, jobs)
    ends = [end for end in plan.circuits.of if end is not None]
    assert len(set(ends)) == len(ends) == MODULE.worker_count  # idle workers keep a port too
    for workers, counts in jobs:
        assert tuple(sum(plan.circuits.tor(w) == t for w in workers) for t in range(MODULE.tors)) == counts
    home = default_circuits(MODULE)
    assert plan.moved == tuple(w for w, end in enumerate(plan.circuits.of) if end != home.of[w])
    named = [ModuleJob(name=f"job-{n}", workers=workers, counts=counts) for n, (workers, counts) in enumerate(jobs)]
    assert len(plan.moved) == len(repair_circuits(MODULE, named).moved)  # that one is a minimum-cost flow


def test_assign_circuits__without_jobs_leaves_the_cabling() -> None:
    plan = assign_circuits(MODULE, [])
    assert plan.moved == ()
    assert plan.circuits == default_circuits(MODULE)


@settings(deadline=None, max_examples=30)
@given(jobs=job_parts(), modules=st.integers(1, 6))
def test_link_rates__are_those_of_the_logical_graph(
    jobs: list[tuple[tuple[int, ...], tuple[int, ...]]], modules: int
) -> None:
    network = build_psnet(MODULE, modules=modules)
    circuits = {1: assign_circuits(MODULE, jobs).circuits}
    edges = logical_graph(network, circuits).edges(data="bits_per_second")
    assert link_rates(network, circuits) == {end: rate for a, b, rate in edges for end in ((a, b), (b, a))}
