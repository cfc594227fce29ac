from __future__ import annotations

from dataclasses import replace

import pytest
from checks import names
from routing_cases import figure_1

from mlt.planners.aro.instance import Instance, InstanceError, Job, Port, Task
from studies.aro.instance_check import check


def _checked(instance: Instance, **changes: object) -> Instance:
    return check(replace(instance, **changes))  # type: ignore[arg-type]


def test_check__rejects_two_nodes_of_one_name() -> None:
    with pytest.raises(InstanceError, match="'W0' names two nodes"):
        _checked(figure_1([]), hosts=("W0", *figure_1([]).hosts))


def test_check__rejects_ports_that_disagree_with_links() -> None:
    instance = figure_1([])
    broken = replace(instance.switches[0], ports=instance.switches[0].ports[1:])
    with pytest.raises(InstanceError, match=names("'L0'", "links", " ps")):
        _checked(instance, switches=(broken, *instance.switches[1:]))


def test_check__rejects_a_pipeline_out_of_range() -> None:
    instance = figure_1([])
    first = instance.switches[0]
    broken = replace(first, ports=(Port("ps", 0, 4), *first.ports[1:]))
    with pytest.raises(InstanceError, match=names("pipeline 4", "0 to 0")):
        _checked(instance, switches=(broken, *instance.switches[1:]))


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (Job("j", (), (Task("t", "ps"),)), "at least one worker"),
        (Job("j", ("W0", "W0"), (Task("t", "ps"),)), "listed twice"),
        (Job("j", ("W0",), (Task("t", "W0"),)), "also one of the workers"),
        (Job("j", ("L0",), (Task("t", "ps"),)), "'L0' is not a host"),
        (Job("j", ("W0",), (Task("t", "ps"), Task("t", "ps"))), "two jobs"),
        (Job("j", ("W0",), (Task("t", "ps"),), weight=0.0), "must be positive"),
    ],
)
def test_check__rejects_contradictory_jobs(job: Job, message: str) -> None:
    with pytest.raises(InstanceError, match=message):
        _checked(figure_1([]), jobs=(job,))
