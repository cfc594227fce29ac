"""The list of interfaces, and how MLT_INTERFACE is read."""

from __future__ import annotations

import socket

import pytest

import mlt
from mlt.job.interfaces import (
    Interface,
    candidates_text,
    interface_of,
    interfaces,
    is_link_local,
    is_loopback,
    is_own_address,
    select_interfaces,
    source_towards,
)

MACHINE = [
    Interface("lo", ("127.0.0.1", "::1"), 65_536, is_loopback=True),
    Interface("eth0", ("192.0.2.7", "2001:db8::7"), 1_500, 10_000),
    Interface("eth1", ("10.1.0.7", "fd00::7"), 9_000, 100_000),
    Interface("eth10", ("10.2.0.7",), 9_000, 100_000),
    Interface("docker0", ("172.17.0.1",), 1_500),
    Interface("ib0", ("10.9.0.7",), 4_096, is_up=False),
    Interface("tun0", ("fe80::1",), 1_400),
    Interface("dummy0", (), 1_500),
]


def names(wanted: str, towards: str | None = None) -> list[str]:
    return [one.interface.name for one in select_interfaces(wanted, towards=towards, every=MACHINE)]


def addresses(wanted: str, towards: str | None = None) -> list[str]:
    return [one.address for one in select_interfaces(wanted, towards=towards, every=MACHINE)]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("eth", ["eth0", "eth1", "eth10"]),
        ("eth1", ["eth1", "eth10"]),
        ("=eth1", ["eth1"]),
        ("=eth1,eth0", ["eth1", "eth0"]),  # at the beginning it holds for all, as in NCCL
        ("eth0,=eth1", ["eth0", "eth1"]),
        (" eth10 , eth0 ", ["eth10", "eth0"]),  # the order of the list
        ("docker,eth1", ["docker0", "eth1", "eth10"]),
        ("^docker,lo", ["eth0", "eth1", "eth10"]),
        ("^=eth1,docker", ["eth0", "eth10", "docker0"]),  # no interface is exactly "docker"
        ("eth,^=eth1", ["eth0", "eth10"]),  # an exclusion wins
        ("^eth1,eth", ["docker0"]),  # a ^ at the beginning holds for all
        ("10.0.0.0/8", ["eth1", "eth10"]),
        ("10.2.0.0/16,10.1.0.0/16", ["eth10", "eth1"]),
        ("fd00::/8", ["eth1"]),
        ("10.1.0.7", ["eth1"]),
        ("^10.0.0.0/8,docker", ["eth0"]),
        ("lo", ["lo"]),
        ("127.0.0.0/8", ["lo"]),
    ],
)
def test_select__reads_lists_as_documented(wanted: str, expected: list[str]) -> None:
    assert names(wanted) == expected


def test_select__prefers_the_route_to_rank_0_within_an_entry_only() -> None:
    assert names("eth", towards="10.2.0.7") == ["eth10", "eth0", "eth1"]
    assert names("eth0,eth10", towards="10.2.0.7") == ["eth0", "eth10"]
    assert names("^docker", towards="10.1.0.7")[0] == "eth1"


def test_select__loopback_only_where_it_is_named_or_leads_to_rank_0() -> None:
    assert "lo" not in names("^docker")
    assert "lo" not in names("^docker", towards="10.1.0.7")
    assert names("^docker", towards="127.0.0.1")[0] == "lo"


def test_select__gives_an_address_of_rank_0s_ip_version() -> None:
    assert addresses("=eth1") == ["10.1.0.7"]
    assert addresses("=eth1", towards="2001:db8::7") == ["fd00::7"]
    assert addresses("=eth1", towards="192.0.2.7") == ["10.1.0.7"]
    # A network says which address is meant.
    assert addresses("fd00::/8", towards="192.0.2.7") == ["fd00::7"]
    assert addresses("=eth10", towards="2001:db8::7") == ["10.2.0.7"]  # it has no other


@pytest.mark.parametrize(
    ("wanted", "cause"),
    [
        ("wlan", "candidates: eth0"),
        ("=eth", "leaves no interface"),
        ("10.77.0.0/16", "leaves no interface"),
        ("ib0", "ib0 is down"),
        ("tun0", "tun0 has no address but link-local"),
        ("dummy0", "dummy0 has no address"),
        ("^eth,docker", "leaves no interface"),
        ("eth1,^eth", "leaves no interface"),
        ("eth0,,eth1", "an entry is empty"),
        (",", "an entry is empty"),
        ("^", "an entry is empty"),
        ("10.1.0.0/33", "'10.1.0.0/33' is not a network"),
        ("eth0/24", "'eth0/24' is not a network"),
        ("fe80::/10", "is link-local"),
    ],
)
def test_select__rejects_a_choice_of_nothing(wanted: str, cause: str) -> None:
    with pytest.raises(mlt.ConfigError, match=f"^MLT_INTERFACE is .*{cause}") as caught:
        names(wanted)
    assert "link-local" in str(caught.value) or "candidates: " in str(caught.value)


def test_candidates_text__names_what_can_be_chosen_loopback_last() -> None:
    assert candidates_text(MACHINE).split(", ")[0] == "eth0 192.0.2.7 2001:db8::7 (MTU 1500"
    assert candidates_text(MACHINE).endswith("lo 127.0.0.1 ::1 (MTU 65536)")
    assert not {"ib0", "tun0", "dummy0"} & set(candidates_text(MACHINE).split())
    assert candidates_text([]) == "none"


def test_interfaces__knows_this_host() -> None:
    found = {one.name: one for one in interfaces()}
    assert set(found) == {name for _, name in socket.if_nameindex()}
    loopback = found["lo"]
    assert loopback.is_loopback
    assert loopback.is_up
    assert loopback.mtu > 1_000
    assert "127.0.0.1" in loopback.addresses
    assert interface_of("127.0.0.9") == loopback
    assert interface_of("203.0.113.9") is None


def test_addresses__are_told_apart() -> None:
    assert is_link_local("fe80::1%eth0")
    assert is_link_local("febf::1")
    assert not is_link_local("fd00::1")
    assert not is_link_local("169.254.0.1")
    assert is_loopback("127.0.1.1")
    assert is_loopback("::1")
    assert not is_loopback("localhost")
    assert is_own_address("127.0.0.77")
    assert not is_own_address("203.0.113.9")
    assert source_towards("127.0.0.1") == "127.0.0.1"
