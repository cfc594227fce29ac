from __future__ import annotations

from collections import Counter
from itertools import combinations

import networkx as nx
import pytest
from checks import names
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners.psnet.checks import TopologyError
from mlt.planners.psnet.wiring import Wiring, best_connectivity, grow_wiring, regular_wiring

sizes = st.tuples(st.integers(2, 24), st.integers(2, 6))


@settings(deadline=None, max_examples=60)
@given(size=sizes, seed=st.integers(0, 999))
def test_regular_wiring__uses_every_port_but_one_at_odd_parity(size: tuple[int, int], seed: int) -> None:
    modules, ports = size
    wiring = regular_wiring(modules, ports, seed=seed)
    assert sum(wiring.free_ports.values()) == (modules * ports) % 2
    assert wiring.edge_connectivity() == best_connectivity(modules, ports)
    if modules > ports + 1:
        assert set(wiring.trunks().values()) == {1}


@settings(deadline=None, max_examples=60)
@given(size=sizes, seed=st.integers(0, 999))
def test_regular_wiring__is_the_same_for_the_same_seed(size: tuple[int, int], seed: int) -> None:
    assert regular_wiring(*size, seed=seed) == regular_wiring(*size, seed=seed)


def test_regular_wiring__differs_between_seeds() -> None:
    assert len({regular_wiring(20, 4, seed=seed) for seed in range(10)}) == 10


@settings(deadline=None, max_examples=60)
@given(size=sizes, seed=st.integers(0, 999))
def test_grow_wiring__rewires_only_the_links_it_must(size: tuple[int, int], seed: int) -> None:
    modules, ports = size
    before = regular_wiring(modules, ports, seed=seed)
    free = sum(before.free_ports.values())
    growth = grow_wiring(before, seed=seed)
    # A cut frees two ports; the new module can leave one of its own unused only when parity forces it to.
    assert len(growth.removed) == (ports - free) // 2
    after = Counter(growth.wiring.links)
    assert after == Counter(before.links) - Counter(growth.removed) + Counter(growth.added)
    assert all(modules + 1 in link for link in growth.added)
    assert sum(growth.wiring.free_ports.values()) == ((modules + 1) * ports) % 2
    assert growth.wiring.edge_connectivity() == best_connectivity(modules + 1, ports)
    if modules > ports:
        assert max(growth.wiring.trunks().values()) == 1


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 99), data=st.data())
def test_grow_wiring__cuts_cost_the_least_possible(seed: int, data: st.DataObject) -> None:
    wiring = regular_wiring(8, 4, seed=seed)
    costs = {link: data.draw(st.sampled_from([0.0, 1.0, 2.0, 5.0])) for link in sorted(set(wiring.links))}
    removed = grow_wiring(wiring, seed=seed, disturbance=costs).removed
    disjoint = [
        sum(costs[link] for link in pair) for pair in combinations(wiring.links, 2) if len({*pair[0], *pair[1]}) == 4
    ]
    assert sum(costs[link] for link in removed) == min(disjoint)


def test_grow_wiring__from_one_module_to_many_stays_a_psnet() -> None:
    wiring = regular_wiring(1, 3, seed=0)
    for modules in range(2, 30):
        wiring = grow_wiring(wiring, seed=5).wiring
        assert wiring.modules == modules
        assert wiring.edge_connectivity() == best_connectivity(modules, 3)


def test_regular_wiring__between_any_two_modules_r_paths_share_no_link() -> None:
    graph = regular_wiring(16, 5, seed=3).graph()
    for a, b in combinations(graph, 2):
        assert len(list(nx.edge_disjoint_paths(graph, a, b))) == 5


def test_wiring__rejects_too_many_ports() -> None:
    with pytest.raises(TopologyError, match=names("module 1", "3 links", "2 ports")):
        Wiring(3, 2, ((1, 2), (1, 2), (1, 3)))
    with pytest.raises(TopologyError, match=names("R = 1", "not 3")):
        regular_wiring(3, 1, seed=0)
    with pytest.raises(TopologyError, match=names("1 - 3", "1..2")):
        Wiring(2, 2, ((1, 3),))
