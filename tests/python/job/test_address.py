"""The address that a rank announces: the route to rank 0, never loopback by accident, and what host= and interface=
say."""

from __future__ import annotations

import dataclasses
import socket
from typing import Any

import pytest
from checks import names

import mlt
from mlt.job import address as own_address
from mlt.job import interfaces
from mlt.job.address import is_loopback_on_purpose, local_host
from mlt.job.configuration import JobConfig
from mlt.job.interfaces import Interface

HERE = [
    Interface("lo", ("127.0.0.1", "::1"), 65_536, is_loopback=True),
    Interface("eth0", ("192.0.2.7", "2001:db8::7"), 1_500),
    Interface("eth1", ("10.1.0.7",), 9_000),
]


def config(master_addr: str, **changes: Any) -> JobConfig:
    fields = {"rank": 1, "world_size": 2, "services": 0, "job": "test", "rendezvous_port": 29_500, "host": None}
    return JobConfig(master_addr=master_addr, **{**fields, **changes})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of its own: eth0 has the default route, 10.1.0.0/16 is behind eth1, and "node" is its own name."""
    names = {"node": ["127.0.1.1"], "both": ["127.0.1.1", "10.1.0.7"], "localhost": ["127.0.0.1"]}

    def getaddrinfo(host: str, port: int, *, type: int = 0) -> list[tuple[Any, ...]]:
        found = names.get(host, [host])
        return [(socket.AF_INET6 if ":" in one else socket.AF_INET, type, 0, "", (one, port)) for one in found]

    def source_towards(address: str, port: int = 9) -> str:
        if interfaces.is_loopback(address):
            return "127.0.0.1"
        if address.startswith("fe80"):
            return "fe80::7"
        return "10.1.0.7" if address.startswith("10.1.") else "2001:db8::7" if ":" in address else "192.0.2.7"

    monkeypatch.setattr(own_address.socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(interfaces, "source_towards", source_towards)
    monkeypatch.setattr(interfaces, "interfaces", lambda: HERE)


@pytest.mark.parametrize(
    ("master_addr", "address"),
    [
        ("10.1.0.9", "10.1.0.7"),
        ("198.51.100.1", "192.0.2.7"),
        ("2001:db8::9", "2001:db8::7"),
        ("127.0.0.1", "127.0.0.1"),  # said so on purpose
        ("localhost", "127.0.0.1"),
        ("node", "192.0.2.7"),  # Debian's 127.0.1.1: to others the name means another address
        ("both", "10.1.0.7"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_local_host__is_the_one_towards_rank_0_and_loopback_only_on_purpose(master_addr: str, address: str) -> None:
    assert local_host(config(master_addr)) == address


@pytest.mark.parametrize(
    ("interface", "master_addr", "address"),
    [
        ("eth1", "198.51.100.1", "10.1.0.7"),
        ("eth", "10.1.0.9", "10.1.0.7"),  # of several, the one that leads to rank 0
        ("eth", "198.51.100.1", "192.0.2.7"),
        ("eth", "2001:db8::9", "2001:db8::7"),
        ("^eth1", "10.1.0.9", "192.0.2.7"),
        ("lo", "10.1.0.9", "127.0.0.1"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_local_host__interface_goes_before_the_route(interface: str, master_addr: str, address: str) -> None:
    assert local_host(config(master_addr, interface=interface)) == address


@pytest.mark.usefixtures("machine")
def test_local_host__without_other_interfaces_a_name_may_be_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "machine_address", lambda: None)
    assert local_host(config("node")) == "127.0.0.1"


@pytest.mark.usefixtures("machine")
def test_local_host__rejects_a_choice_of_none_and_names_the_candidates() -> None:
    with pytest.raises(mlt.ConfigError, match=r"^rank 1: interface \(MLT_INTERFACE\) is 'ib0'.*eth0 192.0.2.7.*eth1"):
        local_host(config("10.1.0.9", interface="ib0"))
    with pytest.raises(mlt.ConfigError, match=r"^rank 1: MASTER_ADDR 'fe80::9': .* is link-local"):
        local_host(config("fe80::9"))


@pytest.mark.parametrize(
    ("host", "cause"),
    [
        ("203.0.113.9", "candidates: "),
        ("2001:db8:ffff::9", "candidates: "),
        ("0.0.0.0", "peers cannot connect to"),
        ("::", "peers cannot connect to"),
        ("fe80::1", "is link-local"),
        ("fe80::1%lo", "is link-local"),
    ],
)
def test_local_host__rejects_a_host_that_peers_cannot_reach(host: str, cause: str) -> None:
    with pytest.raises(mlt.ConfigError, match=rf"^rank 1: host \(MLT_HOST\) is '{host}'.*{cause}"):
        local_host(config("127.0.0.1", host=host))


def test_local_host__of_this_host() -> None:
    assert local_host(config("127.0.0.1")) == "127.0.0.1"
    assert local_host(config("127.0.0.1", host="127.0.0.5")) == "127.0.0.5"
    with pytest.raises(mlt.ConfigError, match=names("rank 1: MASTER_ADDR 'no.such.host.invalid'")):
        local_host(config("no.such.host.invalid"))


def test_config__takes_one_of_host_and_interface() -> None:
    with pytest.raises(mlt.ConfigError, match=names("host is '127.0.0.1'", "interface 'lo'")):
        dataclasses.replace(config("127.0.0.1"), host="127.0.0.1", interface="lo")


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        ({}, {}, (None, None)),
        ({}, {"MLT_INTERFACE": "eth1"}, (None, "eth1")),
        ({}, {"MLT_HOST": "10.1.0.7", "MLT_INTERFACE": "eth0"}, ("10.1.0.7", None)),
        ({}, {"MLT_HOST": "", "MLT_INTERFACE": ""}, (None, None)),
        ({"interface": "eth1"}, {"MLT_HOST": "192.0.2.7"}, (None, "eth1")),
        ({"host": "10.1.0.7"}, {"MLT_INTERFACE": "eth0"}, ("10.1.0.7", None)),
    ],
)
def test_config__arguments_go_before_variables_and_the_address_before_the_interface(
    arguments: dict[str, str], environ: dict[str, str], expected: tuple[str | None, str | None]
) -> None:
    found = JobConfig.resolve(rank=0, world_size=1, environ=environ, **arguments)
    assert (found.host, found.interface) == expected


@pytest.mark.parametrize(
    "name", ["127.0.0.1", "::1", "localhost", "LOCALHOST.", "a.localhost", "localhost.localdomain"]
)
def test_is_loopback_on_purpose__true(name: str) -> None:
    assert is_loopback_on_purpose(name)


@pytest.mark.parametrize("name", ["node0", "10.0.0.1", "localhoster", "node.local"])
def test_is_loopback_on_purpose__false(name: str) -> None:
    assert not is_loopback_on_purpose(name)
