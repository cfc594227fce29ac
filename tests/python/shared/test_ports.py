"""Free ports."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from checks import names

from mlt._shared.ports import PERF_OFFSET, RENDEZVOUS_OFFSET, free_port, free_port_pair, port_beside


@pytest.mark.parametrize("offsets", [(), (1,), (1000, 2000)])
def test_free_port__and_those_above_it_can_be_taken(offsets: tuple[int, ...]) -> None:
    first = free_port("127.0.0.1", offsets=offsets)
    minimum, maximum = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    for port in (first, *(first + offset for offset in offsets)):
        assert not minimum <= port <= maximum
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with socket.socket(socket.AF_INET, kind) as taken:
                taken.bind(("127.0.0.1", port))


def test_free_port__names_a_host_that_has_none() -> None:
    with pytest.raises(LookupError, match=names("1000 above", "192.0.2.1")):
        free_port("192.0.2.1", offsets=[1000])


@pytest.mark.parametrize("master", [1, 29_500, 63_536, 64_000, 64_535, 64_536, 65_535])
def test_port_beside__stays_a_port_and_meets_no_other_of_the_job(master: int) -> None:
    rendezvous = port_beside(master, RENDEZVOUS_OFFSET)
    perf = port_beside(rendezvous, PERF_OFFSET - RENDEZVOUS_OFFSET)
    assert len({master, rendezvous, perf}) == 3
    assert all(0 < port < 65_536 for port in (rendezvous, perf))


def test_free_port_pair__both_can_be_taken() -> None:
    port = free_port_pair()
    minimum, maximum = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not minimum <= port <= maximum
    assert not minimum <= port + 1000 <= maximum
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", port))
        second.bind(("127.0.0.1", port + 1000))
