"""Ports that nobody holds."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from checks import names

from mlt._shared.ports import free_port


@pytest.mark.parametrize("neighbours", [0, 1, 3])
def test_free_port__and_those_after_it_can_be_taken(neighbours: int) -> None:
    first = free_port("127.0.0.1", neighbours=neighbours)
    least, greatest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    for port in range(first, first + neighbours + 1):
        assert not least <= port <= greatest
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with socket.socket(socket.AF_INET, kind) as taken:
                taken.bind(("127.0.0.1", port))


def test_free_port__names_a_host_that_has_none() -> None:
    with pytest.raises(LookupError, match=names("2 neighbouring ports", "192.0.2.1")):
        free_port("192.0.2.1", neighbours=1)
