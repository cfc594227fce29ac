"""Addresses of both IP versions, and what fits a packet there."""

from __future__ import annotations

import socket

import pytest
from checks import names

from mlt.job import interfaces
from mlt.perf.local_address import find_interface, fitting_payload, listen, usual_payload, where
from mlt.perf.options import Options
from mlt.perf.problem import BadOptionError, PerfError
from mlt.perf.remote import Host, check_hosts

needs_ipv6 = pytest.mark.skipif(not interfaces.is_own_address("::1"), reason="no IPv6 here")


@pytest.mark.parametrize(
    ("address", "mtu", "payload"),
    [("10.0.0.1", 1_500, 1_432), ("10.0.0.1", 9_000, 8_928), ("127.0.0.1", 65_536, 8_960), ("fd00::1", 1_500, 1_408),
     ("fd00::1", 9_000, 8_912)],
)  # fmt: skip
def test_usual_payload__is_what_mlt_takes(address: str, mtu: int, payload: int) -> None:
    assert usual_payload(address, mtu) == payload


def test_where__brackets_addresses_of_ipv6() -> None:
    assert [where("fd00::1", 7), where("node2", 7), where("", 7)] == ["[fd00::1]:7", "node2:7", "*:7"]


@needs_ipv6
def test_find_interface__of_either_ip_version() -> None:
    assert find_interface(None, "::1").address == "::1"
    assert find_interface("lo", "::1").address == "::1"
    assert find_interface("lo", "127.0.0.1").address == "127.0.0.1"
    assert find_interface("::1/128", "127.0.0.1").address == "::1"
    with pytest.raises(PerfError, match="is link-local"):
        find_interface(None, "fe80::1")
    with pytest.raises(BadOptionError, match="leaves no interface"):
        find_interface("=none0", "::1")


@needs_ipv6
def test_listen__everywhere_takes_both_ip_versions() -> None:
    with listen("", 0) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, port), timeout=5) as caller:
                assert caller.getpeername()[1] == port


def test_check_hosts__of_two_ip_versions() -> None:
    hosts = [Host(0, "10.0.0.1", "eth0", 1_500), Host(1, "fd00::2", "eth0", 1_500)]
    with pytest.raises(PerfError, match=names("rank 0 (eth0 10.0.0.1, MTU 1500)", "rank 1", "IP version")):
        check_hosts(hosts, Options())


def test_check_hosts__counts_the_headers_of_ipv6() -> None:
    hosts = [Host(0, "fd00::1", "eth0", 9_000), Host(1, "fd00::2", "eth1", 1_500)]
    with pytest.raises(PerfError, match="--segment-bytes 1408"):
        check_hosts(hosts, Options())
    assert fitting_payload("fd00::2", 1_500) == 1_408
