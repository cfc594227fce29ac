from __future__ import annotations

import numpy as np
import pytest
from checks import names
from routing_cases import figure_1

from mlt.planners.aro.graph import unfold
from mlt.planners.aro.routes import RouteError, generate_routes
from mlt.planners.aro.single import solve_task


def test_generate_routes__flows_of_one_pipeline_share_the_onward_path() -> None:
    instance = figure_1(["L1", "L2", "S1"])
    graph = unfold(instance, *instance.tasks[0])
    routes = generate_routes(graph, solve_task(graph).y)
    assert routes["W0"].path == ("W0", "L1", "S1", "L0", "ps")
    assert routes["W1"].path[1:] == routes["W0"].path[1:]
    assert {route.path[2] for route in routes.values()} == {"S1"}


def test_generate_routes__uses_every_flow_once() -> None:
    instance = figure_1([])
    graph = unfold(instance, *instance.tasks[0])
    y = solve_task(graph).y
    hops = [
        hop for route in generate_routes(graph, y).values() for hop in zip(route.path[1:], route.path[2:], strict=False)
    ]
    for e, flows in enumerate(y):
        pair = graph.nodes[graph.tail[e]].name, graph.nodes[graph.head[e]].name
        assert hops.count(pair) == flows


def test_generate_routes__names_the_place_of_missing_flows() -> None:
    instance = figure_1([])
    graph = unfold(instance, *instance.tasks[0])
    worker, entry = next(iter(graph.entry.items()))
    with pytest.raises(RouteError, match=names(worker, graph.nodes[entry])):
        generate_routes(graph, np.zeros_like(solve_task(graph).y))
