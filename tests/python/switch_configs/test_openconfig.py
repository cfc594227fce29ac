"""OpenConfig as a target: both address families, the SetRequest by protobuf's own reader, faults without its help."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest
from mlt.switch_configs.behaviour import differences
from mlt.switch_configs.errors import ParseError
from mlt.switch_configs.generator import generate
from mlt.switch_configs.vendors.openconfig import undo_paths
from switch_faults import FAULTS, Fault, inject
from switch_lab import example, small


def files() -> dict[str, str]:
    return generate(example(), "openconfig", ports=("1",)).apply


def test_render__ipv4_and_ipv6_lead_to_the_same_queues() -> None:
    qos = json.loads(files()["openconfig.json"])["openconfig-qos:qos"]
    v4, v6 = qos["classifiers"]["classifier"]
    assert (v4["config"]["type"], v6["config"]["type"]) == ("IPV4", "IPV6")
    for one, other in zip(v4["terms"]["term"], v6["terms"]["term"], strict=True):
        assert one["conditions"]["ipv4"]["config"] == other["conditions"]["ipv6"]["config"]
        assert one["actions"] == other["actions"]
    bound = qos["interfaces"]["interface"][0]["input"]["classifiers"]["classifier"]
    assert [(one["type"], one["config"]["name"]) for one in bound] == [("IPV4", "mlt"), ("IPV6", "mlt-v6")]


def test_gnmi__protobuf_reads_the_requests() -> None:
    pytest.importorskip("pygnmi")
    reader: Any = import_module("google.protobuf.json_format")
    messages: Any = import_module("pygnmi.spec.v080.gnmi_pb2")
    generated = generate(example(), "openconfig", ports=("1",))
    request = reader.Parse(generated.apply["gnmi-set.json"], messages.SetRequest())
    value = json.loads(request.update[0].val.json_ietf_val)
    assert all(key.startswith("openconfig-qos:") for key in value)
    assert value["openconfig-qos:interfaces"]["interface"][0]["interface-id"] == "ethernet-1/1"
    undo = reader.Parse(generated.undo["undo-gnmi-set.json"], messages.SetRequest())
    first = undo.delete[0]
    assert [one.name for one in first.elem[:3]] == ["qos", "interfaces", "interface"]
    assert first.elem[2].key["interface-id"] == "ethernet-1/1"
    assert {path.elem[1].name for path in undo.delete} == {key.partition(":")[2] for key in value}


def test_undo__names_every_entry_and_the_bindings_first() -> None:
    tree = json.loads(files()["openconfig.json"])
    paths = undo_paths(tree)
    kinds = [path.split("/")[2] for path in paths]
    assert kinds[: kinds.count("interfaces")] == ["interfaces"] * kinds.count("interfaces")
    entries = sum(
        len(entry)
        for name, outer in tree["openconfig-qos:qos"].items()
        if name != "interfaces"
        for entry in outer.values()
    )
    assert len(paths) - kinds.count("interfaces") == entries


@pytest.mark.parametrize("fault", FAULTS["openconfig"], ids=lambda fault: fault.what)
def test_parse__catches_every_fault_in_the_tree_alone(fault: Fault) -> None:
    """Without the SetRequest, whose difference from the tree would give each away."""
    generated = generate(example(), "openconfig", ports=("1",))
    broken = inject({"openconfig.json": generated.apply["openconfig.json"]}, fault, comment="#")
    try:
        found = generated.target.parse(broken)
    except ParseError:
        return
    assert differences(generated.plan.intended(), found)


def test_parse__a_set_request_with_other_content() -> None:
    ours, other = generate(small(), "openconfig"), generate(small(s1="43008"), "openconfig")
    mixed = {**ours.apply, "gnmi-set.json": other.apply["gnmi-set.json"]}
    with pytest.raises(ParseError, match="differs from openconfig"):
        ours.target.parse(mixed)
