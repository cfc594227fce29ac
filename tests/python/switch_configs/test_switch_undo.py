"""Apply, then undo, on a model of each device's configuration: what was there before is there after, nothing else."""

from __future__ import annotations

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


def test_against__other_systems_point_to_their_checkpoint() -> None:
    with pytest.raises(SwitchConfigError, match="onyx: "):
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
