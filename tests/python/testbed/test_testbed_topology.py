"""Units, topologies and their layout, and errors for bad input. Changes nothing on the host."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testbed_lab import POLICY
from testbed_losses import expected_losses, is_lost

from mlt.testbed import BadTopologyError, Testbed, json_schema, load, make
from mlt.testbed.layout import lay_out


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "hosts: is required"),
        ({"hosts": 0}, "hosts: .*1 or more"),
        ({"hosts": "four"}, "hosts: .*an integer"),
        ({"hosts": 65}, "hosts: .*64"),
        ({"hosts": 2, "loss": "200%"}, "loss: .*100%.*'200%'"),
        ({"hosts": 2, "rate": "200"}, "rate: .*8 kbit/s.*'200'"),
        ({"hosts": 2, "speed": 1}, "speed: unknown field"),
        ({"hosts": 2, "leaves": 2}, "need spines"),
        ({"hosts": 2, "leaves": 3, "spines": 1}, "3 leaves for 2 hosts"),
        ({"hosts": 2, "links": {"host2": {}}}, "links.host2: unknown link"),
        ({"hosts": 2, "queue": "fifo", "policy": "x.yaml"}, "fifo has no classes"),
    ],
)
def test_make__names_the_error(fields: dict[str, object], words: str) -> None:
    with pytest.raises(BadTopologyError, match=words):
        make(fields)


def test_testbed__checks_the_policy_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(BadTopologyError, match="cannot be read"):
        Testbed(hosts=2, policy=str(tmp_path / "none.yaml"))
    with pytest.raises(BadTopologyError, match="buffer"):
        Testbed(hosts=2, policy=str(POLICY), buffer="64KiB")
    with pytest.raises(BadTopologyError, match="name 'a/b'"):
        Testbed(hosts=2, name="a/b")
    with pytest.raises(BadTopologyError, match="not both"):
        Testbed(make({"hosts": 2}), hosts=3)


def test_settings__own_before_uplink_before_topology() -> None:
    shape = make(
        {
            "hosts": 4, "spines": 2, "rate": "100mbit", "loss": "1%", "uplink": {"rate": "400mbit", "loss": "2%"},
            "links": {"host1": {"loss_down": "3%"}, "leaf0-spine1": {"loss": "4%", "loss_up": "5%"}},
        }
    )  # fmt: skip
    picked = {
        name: (one.rate, one.loss_up, one.loss_down)
        for name in ("host0", "host1", "leaf0-spine0", "leaf0-spine1")
        for one in [shape.settings(name)]
    }
    assert picked == {
        "host0": (100_000_000, 0.01, 0.0),
        "host1": (100_000_000, 0.01, 0.03),
        "leaf0-spine0": (400_000_000, 0.02, 0.02),
        "leaf0-spine1": (400_000_000, 0.05, 0.04),
    }


def test_load__reads_a_file_and_finds_its_policy_beside_it(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text("hosts: 4\nspines: 2\nrate: 50mbit\npolicy: qos.yaml\n", encoding="utf-8")
    shape = load(tmp_path / "lab.yaml", rate="80mbit")
    assert (shape.hosts, shape.rate, shape.policy) == (4, 80_000_000, str(tmp_path / "qos.yaml"))
    assert make(shape.as_dict()) == shape
    (tmp_path / "bad.yaml").write_text("- hosts\n", encoding="utf-8")
    with pytest.raises(BadTopologyError, match="expected fields"):
        load(tmp_path / "bad.yaml")
    with pytest.raises(BadTopologyError, match="cannot be read"):
        load(tmp_path / "none.yaml")


@pytest.mark.parametrize("written", ["1", "1.0", "'1'", "1e+0", "true"])
@pytest.mark.parametrize("field", ["loss: %s", "uplink: {loss_up: %s}", "links: {host1: {loss: %s}}"])
def test_load__a_loss_without_unit_is_below_1_as_in_an_option(tmp_path: Path, field: str, written: str) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(f"hosts: 2\n{field % written}\n", encoding="utf-8")
    with pytest.raises(BadTopologyError, match=r"t.yaml:2: [a-z0-9_.]*loss(_up)?: expected a loss such as 1% or 0.01"):
        load(path)


def test_load__all_is_100_percent_in_the_file_and_above_it(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("hosts: 2\nloss: 0.25\nlinks: {host1: {loss: 100%}}\n", encoding="utf-8")
    shape = load(path)
    assert (shape.loss, shape.links["host1"].loss) == (0.25, 1.0)
    assert make(shape.as_dict()) == shape
    assert load(path, loss=1.0).loss == 1.0  # --loss 100%


def test_load__names_each_line_and_shows_values_as_yaml(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("hosts: 2\nmtu: false\nrate: fast\nlinks:\n  host1: {delay: {a: 1}}\n", encoding="utf-8")
    with pytest.raises(BadTopologyError) as error:
        load(path)
    mtu, rate, delay = str(error.value).splitlines()
    assert mtu == f"{path}:2: mtu: expected an integer, got false"
    assert rate.startswith(f"{path}:3: rate: expected a rate")
    assert rate.endswith(", got 'fast'")
    assert delay == f"{path}:5: links.host1.delay: expected a time such as 10ms or '1.5 s'"
    path.write_text("hosts: 2\nrate: [1", encoding="utf-8")
    with pytest.raises(BadTopologyError, match=r"t.yaml:2: not YAML: this list has no ']'.* \(column 7\)"):
        load(path)


def test_json_schema__knows_every_field() -> None:
    assert {"hosts", "spines", "rate", "links", "policy"} <= set(json_schema()["properties"])


@settings(deadline=None)  # of correctness, not of time: a busy machine takes longer than hypothesis allows
@given(st.integers(1, 64), st.integers(0, 4), st.integers(1, 8))
def test_lay_out__numbers_are_unique_and_every_host_has_a_way(hosts: int, spines: int, leaves: int) -> None:
    leaves = min(leaves, hosts) if spines else 1
    layout = lay_out(make({"hosts": hosts, "spines": spines, "leaves": leaves}))
    ends = [end for link in layout.links for end in (link.lower, link.upper)]
    assert len({end.index for end in ends}) == len(ends)
    assert len({(end.node, end.interface) for end in ends}) == len(ends)
    assert len(set(layout.hosts.values())) == hosts
    addresses = [address for end in ends for address in end.addresses]
    assert len(set(addresses)) == len(addresses)
    assert set(layout.leaf_of.values()) == {name for name in layout.switches if not name.startswith("spine")}
    for route in layout.routes:
        if route.node.startswith("leaf") and not route.destination.startswith("fd79:"):
            assert len(route.gateways) == spines


def test_alive__drops_gateways_behind_broken_links() -> None:
    layout = lay_out(make({"hosts": 2, "spines": 2}))
    route = next(r for r in layout.routes if r.node == "leaf0" and r.destination == "10.77.1.0/24")
    assert route.alive(frozenset()) == ["10.78.0.1", "10.78.1.1"]
    # The far half of the way counts too.
    assert route.alive(frozenset({"leaf1-spine0"})) == ["10.78.1.1"]
    assert route.alive(frozenset({"leaf1-spine0", "leaf0-spine1"})) == []


@given(st.floats(0, 1), st.integers(0, 2**64 - 1))
def test_is_lost__depends_on_seed_and_number_alone(loss: float, seed: int) -> None:
    first = [is_lost(loss, seed, number) for number in range(50)]
    assert first == [is_lost(loss, seed, number) for number in range(50)]
    assert all(first) if loss == 1 else True
    assert not any(first) if loss == 0 else True
    assert expected_losses(loss, seed, 50) == sum(first)
