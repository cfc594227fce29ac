"""Small networks shared by the routing tests."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import assume
from hypothesis import strategies as st

from mlt.planners.aro.instance import Instance, Job, Link, Port, Switch, Task
from mlt.planners.aro.multiple import Effort
from studies.aro.generate import Hardware, Workload, fat_tree, leaf_spine

QUICK = Effort(seconds=2.0, joint_seconds=0.5, orders=3)


def figure_1(programmable: Sequence[str]) -> Instance:
    """The paper's motivating example: W0, W1 under L1, W2, W3 under L2, W4 under L3, the PS under L0, two spines."""
    under = {"L0": ["ps"], "L1": ["W0", "W1"], "L2": ["W2", "W3"], "L3": ["W4"]}
    spines = ["S0", "S1"]
    switches = []
    for leaf, hosts in under.items():
        ports = tuple(Port(peer, number) for number, peer in enumerate([*hosts, *spines]))
        switches.append(Switch(leaf, 0, ports, leaf in programmable))
    for spine in spines:
        ports = tuple(Port(peer, number) for number, peer in enumerate(under))
        switches.append(Switch(spine, 1, ports, spine in programmable))
    links = [Link(host, leaf, 1.0) for leaf, hosts in under.items() for host in hosts]
    links += [Link(leaf, spine, 1.0) for leaf in under for spine in spines]
    workers = ("W0", "W1", "W2", "W3", "W4")
    return Instance(tuple(switches), ("ps", *workers), tuple(links), (Job("job", workers, (Task("task", "ps"),)),))


@st.composite
def instances(draw: st.DrawFn, *, jobs: int = 1, tasks: int = 1) -> Instance:
    """Small leaf-spine networks and fat-trees with a random share of programmable switches."""
    hardware = Hardware(
        share=draw(st.sampled_from([0.0, 0.2, 0.4, 0.7, 1.0])),
        pipelines=draw(st.integers(1, 4)),
        mapping=draw(st.sampled_from(["class", "interleaved", "whole"])),
        ps_leaf_in_share=draw(st.booleans()),
    )
    seed = draw(st.integers(0, 10_000))
    if draw(st.integers(0, 3)) == 0:
        workload = Workload(jobs=jobs, tasks=tasks, workers=draw(st.integers(1, 10 // jobs)))
        return fat_tree(k=4, hardware=hardware, workload=workload, seed=seed)
    leaves, spines, per_leaf = draw(st.integers(2, 5)), draw(st.integers(1, 5)), draw(st.integers(3, 6))
    servers = -(-jobs * tasks // leaves) * leaves
    free = leaves * per_leaf - servers
    assume(free >= jobs)
    workload = Workload(jobs=jobs, tasks=tasks, workers=draw(st.integers(1, free // jobs)))
    return leaf_spine(
        leaves=leaves, spines=spines, hosts_per_leaf=per_leaf, hardware=hardware, workload=workload, seed=seed
    )
