"""docs/horovod-names.md is that of the code, and functions and classes take what those of Horovod and BytePS take."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from loading import load
from test_import_layers import MODULES as FILES

names = load(Path(__file__).resolve().parents[2] / "tools" / "horovod_names.py")
SIGNATURES = Path(__file__).with_name("framework_signatures.txt")
# Module of Horovod or BytePS -> mlt's module.
OURS = {theirs: ours for theirs, (ours, _, _) in names.MODULES.items()}
OURS["byteps.torch.parallel"] = "mlt.torch.byteps.parallel"
# Names that mlt's source defines under another name.
OTHER_PLACES = {
    ("mlt.tensorflow", "SyncBatchNormalization"): ("mlt.tensorflow.keras.sync_batch_norm", "SyncBatchNormalization"),
    ("mlt.torch.horovod", "DistributedOptimizer."): ("mlt.torch.horovod.optimizer", "Distributed."),
    ("mlt.torch.horovod", "Compression.none."): ("mlt._named.compression", "NoneCompressor."),
    ("mlt.torch.horovod", "Compression.fp16."): ("mlt._named.compression", "SmallerFloats."),
}


def test_page__is_that_of_the_code() -> None:
    assert names.PAGE.read_text(encoding="utf-8") == names.page(), "run python tools/horovod_names.py"


def test_page__says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "module.py"
    module.write_text('__all__ = ["size", "lossy"]\n')
    monkeypatch.setattr(names, "MODULES", {"horovod.any": ("mlt.any", str(module), "rank size")})
    assert "| `horovod.any` | `mlt.any` | 1 of 2 | `rank` | `lossy` |" in names.page()


def test_public_names__without_a_list_are_those_defined(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("class One: ...\ndef two(): ...\ndef _three(): ...\n")
    assert names.public_names(module) == {"One", "two"}


def table() -> Iterator[tuple[str, str, ast.arguments]]:
    """Module, name and arguments of each line of the table."""
    theirs, lines = "", []
    for line in SIGNATURES.read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            lines[-1] = (theirs, f"{lines[-1][1]} {line.strip()}")
        elif line.startswith("["):
            theirs = line.strip("[]")
        elif line and not line.startswith("#"):
            lines.append((theirs, line))
    for module, line in lines:
        name, _, rest = line.partition("(")
        (function,) = ast.parse(f"def f({rest}: ...").body
        assert isinstance(function, ast.FunctionDef)
        yield module, name, function.args


TABLE = list(table())


@cache
def source(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


def definition(module: str, name: str) -> tuple[str, ast.FunctionDef | ast.ClassDef]:
    """Module and definition of a module's name, which may be imported."""
    for node in reversed(source(module).body):  # the last definition counts
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and node.module in FILES:
            for one in node.names:
                if one.name == "*" and name in names.public_names(FILES[node.module]):
                    return definition(node.module, name)
                if (one.asname or one.name) == name:
                    return definition(node.module, one.name)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return definition(module, ast.unparse(node.value))
    raise LookupError(f"{module} has no {name}")


def method(module: str, node: ast.ClassDef, name: str) -> ast.arguments | None:
    """The arguments of a class's method, without ``self``; None: of no class of mlt's."""
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == name:
            is_static = any(ast.unparse(decorator) == "staticmethod" for decorator in one.decorator_list)
            given = one.args
            return given if is_static else ast.arguments(**{**vars(given), "args": given.args[1:]})
    for base in node.bases:
        try:
            where, parent = definition(module, ast.unparse(base).partition("[")[0])
        except LookupError:
            continue
        assert isinstance(parent, ast.ClassDef)
        if found := method(where, parent, name):
            return found
    return None


def arguments(module: str, name: str) -> ast.arguments | None:
    """The arguments of a function, a class's constructor, or a method; None: those of a class of the framework."""
    for (ours, prefix), (other, own) in OTHER_PLACES.items():
        if module == ours and name.startswith(prefix):
            return arguments(other, own + name.removeprefix(prefix))
    first, _, of_class = name.partition(".")
    where, node = definition(module, first)
    if isinstance(node, ast.FunctionDef):
        assert not of_class
        return node.args
    return method(where, node, of_class or "__init__")


def parts(given: ast.arguments) -> tuple[list[tuple[str, str | None]], dict[str, str | None], bool]:
    """Positional arguments with their defaults, those by keyword only, and whether any others are accepted."""
    positional = [one.arg for one in (*given.posonlyargs, *given.args)]
    defaults = [None] * (len(positional) - len(given.defaults)) + [normal(one) for one in given.defaults]
    keywords = {one.arg: normal(default) for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)}
    return list(zip(positional, defaults, strict=True)), keywords, given.kwarg is not None


def normal(default: ast.expr | None) -> str | None:
    return None if default is None else ast.unparse(default)


def differences(theirs: ast.arguments, ours: ast.arguments) -> list[str]:
    """Promises of theirs to callers that ours does not keep. Ours may take more, with defaults."""
    (wanted, _, takes_any), (found, found_keywords, takes_any_here) = parts(theirs), parts(ours)
    wrong = []
    for i, (name, default) in enumerate(wanted):
        own_name, own_default = found[i] if i < len(found) else (None, None)
        if own_name != name or default not in (None, own_default):
            wrong.append(f"argument {i} is {name}={default}, here {own_name}={own_default}")
    more = dict(found[len(wanted) :]) | found_keywords
    wrong += [f"{name} has no default" for name, default in more.items() if default is None]
    if takes_any and not takes_any_here:
        wrong.append("no **kwargs")
    return wrong


@pytest.mark.parametrize("module", sorted({module for module, _, _ in TABLE}))
def test_arguments__are_those_of_the_framework(module: str) -> None:
    ours, wrong = OURS[module], {}
    there = names.public_names(FILES[ours])
    for name, wanted in [(name, wanted) for of, name, wanted in TABLE if of == module]:
        if name.partition(".")[0] not in there:
            continue  # the page says that it is missing
        found = arguments(ours, name)
        if found is not None and (different := differences(wanted, found)):
            wrong[name] = different
    assert wrong == {}


def test_arguments__of_every_name_of_horovod_torch_and_byteps_torch_are_in_the_table() -> None:
    for theirs in ("horovod.torch", "horovod.torch.elastic", "byteps.torch", "byteps.torch.cross_barrier"):
        listed = {name.partition(".")[0] for module, name, _ in TABLE if module == theirs}
        # Errors, operations, the set of all ranks, classes without a constructor, and modules.
        others = {"Compression", "HorovodInternalError", "global_process_set", "elastic", "cross_barrier", "parallel"}
        assert set(names.MODULES[theirs][2].split()) - others - set(names.OPS.split()) == listed - others


def test_differences__are_found() -> None:
    def given(text: str) -> ast.arguments:
        (function,) = ast.parse(f"def f({text}): ...").body
        assert isinstance(function, ast.FunctionDef)
        return function.args

    wanted = given("a, b=1, **options")
    assert differences(wanted, given("a, b=1, c=2, *, d=3, **options")) == []
    assert differences(wanted, given("a=0, b=1, **options")) == []
    for text, fact in (
        ("b=1, a=1, **options", "argument 0 is a=None, here b=1"),
        ("a, **options", "argument 1 is b=1, here None=None"),
        ("a, b=2, **options", "argument 1 is b=1, here b=2"),
        ("a, *, b=1, **options", "argument 1 is b=1, here None=None"),
        ("a, b=1, *, c, **options", "c has no default"),
        ("a, b=1", "no **kwargs"),
    ):
        assert fact in differences(wanted, given(text)), text
