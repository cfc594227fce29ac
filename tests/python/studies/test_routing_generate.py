from __future__ import annotations

import pytest
from checks import names

from mlt.planners.aro.instance import InstanceError
from studies.aro.generate import Hardware, Workload, fat_tree, leaf_spine, pipelines_of


def test_leaf_spine__is_the_papers_cluster_by_default() -> None:
    instance = leaf_spine(seed=5)
    assert len(instance.switches) == 48
    assert len(instance.hosts) == 576
    assert len(instance.links) == 576 + 24 * 24
    assert sum(switch.programmable for switch in instance.switches) == 9
    assert instance.switch["leaf0"].programmable
    assert len(instance.jobs[0].workers) == 200
    assert instance.notes["ps_leaf_in_share"] is True


def test_leaf_spine__ps_leaves_can_come_on_top_of_the_share() -> None:
    hardware = Hardware(ps_leaf_in_share=False)
    counts = {sum(s.programmable for s in leaf_spine(seed=seed, hardware=hardware).switches) for seed in range(12)}
    assert counts == {9, 10}


def test_leaf_spine__jobs_have_exclusive_workers_and_their_own_ps_leaf() -> None:
    instance = leaf_spine(seed=1, workload=Workload(jobs=4, tasks=2, workers=100))
    workers = [worker for job in instance.jobs for worker in job.workers]
    assert len(set(workers)) == 400
    leaves = [instance.leaf_of[task.ps] for _, task in instance.tasks]
    assert leaves == [f"leaf{i}" for i in range(8)]
    assert not set(workers) & {task.ps for _, task in instance.tasks}


def test_leaf_spine__same_seed_same_instance() -> None:
    assert leaf_spine(seed=7) == leaf_spine(seed=7)
    assert leaf_spine(seed=7) != leaf_spine(seed=8)


def test_fat_tree__has_the_right_size() -> None:
    instance = fat_tree(k=4, workload=Workload(workers=4))
    assert len(instance.hosts) == 16
    assert sorted(switch.tier for switch in instance.switches) == [0] * 8 + [1] * 8 + [2] * 4
    assert {len(switch.ports) for switch in instance.switches} == {4}


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ("class", [0, 0, 1, 1, 0, 0, 1, 1]),
        ("interleaved", [0, 1, 0, 1, 0, 1, 0, 1]),
        ("whole", [0, 0, 0, 0, 1, 1, 1, 1]),
    ],
)
def test_pipelines_of__mappings(mapping: str, expected: list[int]) -> None:
    ports = pipelines_of(list("abcd"), list("wxyz"), count=2, mapping=mapping)  # type: ignore[arg-type]
    assert [port.pipeline for port in ports] == expected


def test_generate__rejects_impossible_shapes() -> None:
    with pytest.raises(InstanceError, match=names("576", "exclusive workers")):
        leaf_spine(workload=Workload(workers=576))
    with pytest.raises(InstanceError, match=names("even number", "k = 3")):
        fat_tree(k=3)
    with pytest.raises(InstanceError, match=names("'odd'", "interleaved")):
        pipelines_of(["a"], [], count=1, mapping="odd")  # type: ignore[arg-type]
