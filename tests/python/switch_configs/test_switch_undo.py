"""Apply, then undo, on a model of each device's configuration: what was there before is there after, nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mlt.switch_configs.errors import MissingToolError, SwitchConfigError
from mlt.switch_configs.generator import Generated, generate
from mlt.switch_configs.target import code_lines
from switch_lab import PORTS, example, example_for


def made(name: str) -> Generated:
    try:
        return generate(example_for(name, buffers="write"), name, ports=PORTS)
    except MissingToolError as error:
        pytest.skip(str(error))


def lines_of(files: dict[str, str], comment: str) -> list[str]:
    return [line for body in files.values() for _, line in code_lines(body, comment)]


def starts(line: str, prefix: str) -> bool:
    return line.split()[: len(prefix.split())] == prefix.split()


def flat(state: list[str], lines: list[str], *, name: str) -> list[str]:
    """Systems whose lines stand alone: a removal takes every line that begins with its words."""
    for line in lines:
        if name == "onyx" and " no " in f" {line}":
            prefix = line.removeprefix("no ") if line.startswith("no ") else line.replace(" no ", " ", 1)
        elif line.startswith(("nv unset ", "delete ")):
            prefix = line.replace("nv unset", "nv set", 1).replace("delete", "set", 1)
        elif line != "set -eu":
            state = [*state, line]
            continue
        else:
            continue
        kept = [known for known in state if not starts(known, prefix)]
        assert len(kept) < len(state), f"{line!r} removes nothing"
        state = kept
    return state


def sectioned(state: list[tuple[str, ...]], lines: list[str]) -> list[tuple[str, ...]]:
    """Systems with sections by indentation: a line is the path to it; a removed section takes what is in it."""
    path: list[tuple[int, str]] = []
    for line in lines:
        indent, words = len(line) - len(line.lstrip()), line.strip()
        path = [step for step in path if step[0] < indent]
        here = tuple(step[1] for step in path)
        if words.startswith("no ") and not words.startswith("no priority"):
            prefix = words.removeprefix("no ")
            depth = len(here)
            kept = [
                known
                for known in state
                if not (known[:depth] == here and len(known) > depth and starts(known[depth], prefix))
            ]
            assert len(kept) < len(state), f"{line!r} removes nothing"
            state = kept
        else:
            path.append((indent, words))
            state = [*state, (*here, words)]
    # Interfaces are hardware: an empty section is no configuration.
    return [step for step in state if not (len(step) == 1 and step[0].startswith("interface "))]


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("onyx", ["interface ethernet 1/11 qos trust L3", "interface ethernet 1/1 mtu 9216", "pool ePool01 size 1"]),
        ("cumulus", ["nv set interface swp11 qos congestion-control profile mlt", "nv set qos mapping mltx trust l2"]),
        ("junos", ["set class-of-service schedulers mltx priority low", "set system host-name a"]),
    ],
)
def test_undo__flat_systems_return_to_what_they_were(name: str, before: list[str]) -> None:
    generated = made(name)
    applied = flat(before, lines_of(generated.apply, generated.target.comment), name=name)
    assert len(applied) > len(before) + 10
    assert flat(applied, lines_of(generated.undo, generated.target.comment), name=name) == before


@pytest.mark.parametrize("name", ["eos", "nxos", "os10"])
def test_undo__sectioned_systems_return_to_what_they_were(name: str) -> None:
    generated = made(name)
    port = generated.plan.ports[0]
    before: list[tuple[str, ...]] = [(f"interface {port}", "mtu 9216"), ("qos profile other",), ("policy-map x", "y")]
    applied = sectioned(before, lines_of(generated.apply, generated.target.comment))
    assert len(applied) > 20
    assert sectioned(applied, lines_of(generated.undo, generated.target.comment)) == before


def patched(tables: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    """RFC 6902, as far as these patches go: a parent must exist, add must not overwrite."""
    result: dict[str, Any] = json.loads(json.dumps(tables))
    for step in patch:
        table, _, key = step["path"].lstrip("/").partition("/")
        parent, name = (result[table], key) if key else (result, table)
        if step["op"] == "remove":
            del parent[name]
            continue
        assert (name in parent) == (step["op"] == "replace"), step["path"]
        parent[name] = step["value"]
    return result


def test_undo__sonic_patch_is_the_inverse() -> None:
    generated = made("sonic")
    before: dict[str, Any] = {table: {} for table in json.loads(generated.apply["config_db.json"])}
    before["PORT"] = {"Ethernet0": {"speed": "100000"}}
    before["SCHEDULER"] = {"scheduler.0": {"type": "DWRR"}}
    after = patched(before, json.loads(generated.apply["patch.json"]))
    assert after["SCHEDULER"]["mlt_strict"] == {"type": "STRICT"}
    assert patched(after, json.loads(generated.undo["undo-patch.json"])) == before


def test_against__sonic_puts_back_what_it_replaced() -> None:
    before = {
        "PORT_QOS_MAP": {"Ethernet0": {"dscp_to_tc_map": "AZURE"}, "Ethernet8": {"dscp_to_tc_map": "AZURE"}},
        "SCHEDULER": {"mlt_strict": {"type": "STRICT"}},
        "QUEUE": {"Ethernet0|6": {"scheduler": "old"}},
    }
    generated = generate(example(), "sonic", ports=PORTS, running=json.dumps(before))
    after = patched(before, json.loads(generated.apply["patch.json"]))
    assert after["PORT_QOS_MAP"]["Ethernet0"]["dscp_to_tc_map"] == "mlt"
    assert after["PORT_QOS_MAP"]["Ethernet8"] == before["PORT_QOS_MAP"]["Ethernet8"]
    for table, keys in json.loads(generated.apply["config_db.json"]).items():
        assert after[table].items() >= keys.items()
    assert patched(after, json.loads(generated.undo["undo-patch.json"])) == before


def test_against__other_systems_point_to_their_checkpoint() -> None:
    with pytest.raises(SwitchConfigError, match="onyx: takes no running configuration"):
        generate(example(), "onyx", running="x")
    with pytest.raises(SwitchConfigError, match="not JSON"):
        generate(example(), "sonic", running="x")


def test_undo__unbinds_before_it_deletes() -> None:
    for name, binding, bound in (
        ("nxos", "no service-policy", "no policy-map"),
        ("os10", "no service-policy", "no policy-map"),
        ("eos", "no service-profile", "no qos profile"),
    ):
        generated = made(name)
        lines = [line.strip() for line in lines_of(generated.undo, generated.target.comment)]
        last_binding = max(i for i, line in enumerate(lines) if line.startswith(binding))
        assert last_binding < min(i for i, line in enumerate(lines) if line.startswith(bound))
