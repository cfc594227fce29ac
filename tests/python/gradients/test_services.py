"""When summation services average faster than the workers: loads of links, counted edge by edge."""

from __future__ import annotations

from itertools import product

import pytest

from mlt._gradients.services import link_loads, pay
from mlt.options.service_loads import by_default, by_hosts


def counted(hosts: list[int], workers: int) -> tuple[float, float]:
    """The same, by each transfer between two hosts: the most that leaves or reaches one."""
    loads = by_default(hosts, workers)
    by_services, ring = [{host: [0.0, 0.0] for host in hosts} for _ in range(2)]

    def carry(loads: dict[int, list[float]], a: int, b: int, tensors: float) -> None:
        if hosts[a] != hosts[b]:
            loads[hosts[a]][0] += tensors
            loads[hosts[b]][1] += tensors

    for worker, service in product(range(workers), range(workers, len(hosts))):
        carry(by_services, worker, service, loads[service - workers])
        carry(by_services, service, worker, loads[service - workers])
    for worker in range(workers):
        carry(ring, worker, (worker + 1) % workers, 2 * (workers - 1) / workers)
    return tuple(max(max(load) for load in loads.values()) for loads in (by_services, ring))  # type: ignore[return-value]


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("services", [1, 2, 3])
def test_link_loads__are_those_of_every_transfer(workers: int, services: int) -> None:
    for hosts in product(range(4), repeat=workers + services):
        assert link_loads(list(hosts), workers) == pytest.approx(counted(list(hosts), workers))


@pytest.mark.parametrize(
    ("hosts", "workers", "expected"),
    [
        ([0, 1, 2, 3], 4, False),
        ([0, 1, 2, 3, 4], 4, False),  # its link carries four tensors
        ([0, 1, 2, 3, 4, 5], 4, False),
        ([0, 1, 2, 3, 4, 5, 6], 4, False),  # 1.33 beside 1.5
        ([0, 1, 2, 3, 4, 5, 6, 7], 4, True),  # 1 beside 1.5
        ([0, 1, 2, 3, 0, 1, 2, 3], 4, False),  # 1.5 beside 1.5
        ([0, 1, 2, 3, 0, 1, 2, 3, 4], 4, False),  # and one on a host of its own: 1.4 beside 1.5
        ([0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7], 4, True),  # and as many on spare hosts: 1 beside 1.5
        ([0, 1, 2, 3], 2, False),  # 1 beside 1
        ([0, 0, 0], 2, False),
    ],
)
def test_pay__only_if_their_links_carry_clearly_less(hosts: list[int], workers: int, expected: bool) -> None:
    assert pay(hosts, workers) is expected


def test_link_loads__take_those_that_are_given() -> None:
    hosts = [0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert link_loads(hosts, 4)[0] == pytest.approx(1.4)
    assert link_loads(hosts, 4, by_hosts(hosts, 4))[0] == pytest.approx(4 / 3)
    assert link_loads(hosts, 4, [0, 0, 0, 0, 1])[0] == pytest.approx(4)
    assert not pay(hosts, 4, [0, 0, 0, 0, 1])
