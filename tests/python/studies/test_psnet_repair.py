from __future__ import annotations

from itertools import product
from math import ceil, floor

import pytest
from checks import names
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners.psnet.checks import TopologyError
from mlt.planners.psnet.circuits import Circuits, default_circuits
from mlt.planners.psnet.psnet import Module
from studies.psnet.repair import ModuleJob, Repair, repair_circuits

MODULE = Module(ecs_ports=24, tor_downlinks=6, tor_uplinks=3)


@st.composite
def job_lists(draw: st.DrawFn, module: Module = MODULE) -> list[ModuleJob]:
    workers = draw(st.permutations(range(module.worker_count)))
    cuts = sorted(draw(st.lists(st.integers(0, module.worker_count), min_size=1, max_size=5)))
    bounds = [0, *cuts]
    return [
        ModuleJob(name=f"job-{i}", workers=tuple(workers[a:b]))
        for i, (a, b) in enumerate(zip(bounds, cuts, strict=False))
    ]


def used_ports(plan: Repair) -> list[tuple[int, int]]:
    return [circuit for circuit in plan.circuits.of if circuit is not None]


@settings(deadline=None, max_examples=60)
@given(jobs=job_lists())
def test_repair_circuits__spreads_every_job_evenly_when_nothing_failed(jobs: list[ModuleJob]) -> None:
    plan = repair_circuits(MODULE, jobs)
    assert not plan.stranded
    assert len(set(used_ports(plan))) == MODULE.worker_count
    for job in jobs:
        share = len(job.workers) / MODULE.tors
        assert set(plan.spread[job.name]) <= {floor(share), ceil(share)}
        assert sum(plan.spread[job.name]) == len(job.workers)


@settings(deadline=None, max_examples=60)
@given(jobs=job_lists())
def test_repair_circuits__a_good_state_is_left_alone(jobs: list[ModuleJob]) -> None:
    plan = repair_circuits(MODULE, jobs)
    again = repair_circuits(MODULE, jobs, current=plan.circuits)
    assert again.moved == ()
    assert again.circuits == plan.circuits


@settings(deadline=None, max_examples=60)
@given(
    jobs=job_lists(),
    dead=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=12),
    tors=st.sets(st.integers(0, 3), max_size=2),
)
def test_repair_circuits__never_uses_what_is_dead_and_strands_only_for_want_of_ports(
    jobs: list[ModuleJob], dead: set[tuple[int, int]], tors: set[int]
) -> None:
    plan = repair_circuits(MODULE, jobs, dead_ports=dead, dead_tors=tors)
    ports = used_ports(plan)
    assert len(set(ports)) == len(ports)
    assert not set(ports) & dead
    assert not {tor for tor, _ in ports} & tors
    live = sum(1 for port in product(range(4), range(6)) if port not in dead and port[0] not in tors)
    members = sum(len(job.workers) for job in jobs)
    assert len(plan.stranded) == max(0, members - live)


def test_repair_circuits__moves_as_few_circuits_as_brute_force() -> None:
    module = Module(ecs_ports=6, tor_downlinks=3, tor_uplinks=2, workers=5)
    jobs = [ModuleJob(name="a", workers=(0, 1, 2)), ModuleJob(name="b", workers=(3, 4))]
    for state in product((0, 1), repeat=5):
        if state.count(0) > 3 or state.count(1) > 3:
            continue
        seen = [0, 0]
        of: list[tuple[int, int] | None] = []
        for tor in state:
            of.append((tor, seen[tor]))
            seen[tor] += 1
        plan = repair_circuits(module, jobs, current=Circuits(tuple(of)))
        fewest = min(
            sum(a != b for a, b in zip(state, target, strict=True))
            for target in product((0, 1), repeat=5)
            if sum(target[:3]) in (1, 2) and sum(target[3:]) == 1
        )
        assert len(plan.moved) == fewest, state


def test_repair_circuits__testbed_deployments_are_repaired() -> None:
    # Section 5.2: worker(1, 1, 4) becomes worker(2, 2, 2) by moving two circuits.
    module = Module(ecs_ports=12, tor_downlinks=4, tor_uplinks=3, workers=6)
    uneven = Circuits(((0, 0), (1, 0), (2, 0), (2, 1), (2, 2), (2, 3)))
    plan = repair_circuits(module, [ModuleJob(name="job", workers=tuple(range(6)))], current=uneven)
    assert plan.spread["job"] == (2, 2, 2)
    assert len(plan.moved) == 2


def test_repair_circuits__keeps_a_job_off_a_tor_its_server_lost() -> None:
    jobs = [
        ModuleJob(name="hurt", workers=tuple(range(8)), tors=frozenset({0, 2, 3})),
        ModuleJob(name="well", workers=(8, 9, 10, 11)),
    ]
    plan = repair_circuits(MODULE, jobs)
    assert plan.spread["hurt"][1] == 0
    assert sorted(plan.spread["hurt"]) == [0, 2, 3, 3]
    assert plan.spread["well"] == (1, 1, 1, 1)


def test_repair_circuits__rejects_contradictions() -> None:
    with pytest.raises(TopologyError, match=names("worker 1", "'a'", "'b'")):
        repair_circuits(MODULE, [ModuleJob(name="a", workers=(0, 1)), ModuleJob(name="b", workers=(1,))])
    with pytest.raises(TopologyError, match="worker 24"):
        repair_circuits(MODULE, [ModuleJob(name="a", workers=(24,))])
    with pytest.raises(TopologyError, match="no ToR 7"):
        repair_circuits(MODULE, [], dead_tors=[7])
    state = list(default_circuits(MODULE).of)
    state[0] = state[1]
    with pytest.raises(TopologyError, match=names("2 circuits", "port 1 of ToR 0")):
        repair_circuits(MODULE, [], current=Circuits(tuple(state)))
