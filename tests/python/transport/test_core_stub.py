"""The stubs of the native modules name exactly what the modules have."""

from __future__ import annotations

import ast
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mlt
from mlt import _core
from mlt.perf import _bare_udp

STUBS = {_core: "_core/__init__.pyi", _bare_udp: "perf/_bare_udp.pyi"}
every_module = pytest.mark.parametrize("module", STUBS, ids=lambda module: module.__name__)


def stub(module: ModuleType = _core) -> ast.Module:
    return ast.parse((Path(mlt.__file__).parent / STUBS[module]).read_text(encoding="utf-8"))


def public(names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


@every_module
def test_stub__names_what_the_module_has(module: ModuleType) -> None:
    body = stub(module).body
    names = [node.name for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
    names += [node.target.id for node in body if isinstance(node, ast.AnnAssign) and hasattr(node.target, "id")]
    assert public(names) == public(dir(module))


def test_stub__classes_have_the_same_members_and_kinds() -> None:
    for node in stub().body:
        if not isinstance(node, ast.ClassDef):
            continue
        native = getattr(_core, node.name)
        functions = [item for item in node.body if isinstance(item, ast.FunctionDef)]
        fields = [item.target.id for item in node.body if isinstance(item, ast.AnnAssign)]
        values = {
            target.id: ast.literal_eval(item.value)
            for item in node.body
            if isinstance(item, ast.Assign)
            for target in item.targets
            if isinstance(target, ast.Name)
        }
        assert values == {one.name: one.value for one in native} if values else not issubclass(native, Enum), node.name
        assert public([item.name for item in functions] + fields + list(values)) == public(dir(native)), node.name
        assert all(isinstance(getattr(native, name), property) for name in fields), node.name
        for item in functions:
            declared = any(isinstance(mark, ast.Name) and mark.id == "property" for mark in item.decorator_list)
            if not item.name.startswith("_"):
                assert declared == isinstance(getattr(native, item.name), property), f"{node.name}.{item.name}"


@every_module
def test_stub__methods_take_the_same_arguments(module: ModuleType) -> None:
    for node in stub(module).body:
        for item in node.body if isinstance(node, ast.ClassDef) else [node]:
            if not isinstance(item, ast.FunctionDef) or any(isinstance(mark, ast.Name) for mark in item.decorator_list):
                continue
            owner = getattr(module, node.name) if isinstance(node, ast.ClassDef) else module
            if item.name == "__init__" and owner is _core.Completion:
                continue
            # pybind11 writes the signature into the docstring's first line.
            signature = str(getattr(owner, item.name).__doc__).splitlines()[0]
            arguments = [one.arg for one in [*item.args.args, *item.args.kwonlyargs] if one.arg != "self"]
            positions = [signature.find(f"{name}:") for name in arguments]
            assert -1 not in positions, f"{item.name}{arguments} is not {signature}"
            assert positions == sorted(positions), f"{item.name}{arguments} is not {signature}"
            assert signature.count(": ") - ("self: " in signature) == len(arguments), signature


@pytest.mark.parametrize("kind", [_core.Options, _core.FaultOptions, _core.PathOptions])
def test_options__are_set_by_keyword_and_by_attribute(kind: Any) -> None:
    (node,) = (one for one in stub().body if isinstance(one, ast.ClassDef) and one.name == kind.__name__)
    for item in node.body:
        assert isinstance(item, ast.AnnAssign)
        name = item.target.id
        if name == "secret":
            assert kind(secret=b"any bytes \xff").rank == 0
            continue
        default = getattr(kind(), name)
        other = {str: "x", int: 7, float: 0.5, bool: True, list: []}.get(type(default), default)
        assert getattr(kind(**{name: other}), name) == other or type(default) is _core.FaultOptions
        made = kind()
        setattr(made, name, other)
    with pytest.raises(AttributeError, match="no_such_field"):
        kind(no_such_field=1)
