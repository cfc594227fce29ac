"""The layers of the Python package: each imports itself and lower layers only, type-only imports included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Source folder -> the name under which it installs.
SOURCES = {
    "python/mlt": "mlt",
    "plugins/mxnet": "mlt.mxnet",
    "plugins/tensorflow": "mlt.tensorflow",
    "plugins/torch": "mlt.torch",
    "plugins/torch_autoload": "mlt.torch_autoload",
    "plugins/nccl/python/nccl": "mlt.nccl",
    "switch_configs": "mlt.switch_configs",
    "studies": "studies",
}
# From the bottom up. A module belongs to the longest of these names that its own begins with; ``mlt`` itself stands for
# what users import from the top: context, operation, collectives, push_pull.
LAYERS = (
    "mlt._core",
    "mlt.errors",
    "mlt._shared",
    "mlt.switch_configs",
    "mlt.planners",
    "mlt.planners._shared",
    "mlt.planners.cluster",
    "mlt.planners.plan",
    "mlt.planners.byteps",
    "mlt.planners.aleph",
    "mlt.planners.aro",
    "mlt.planners.psnet",
    "mlt.planners.show",
    "mlt.planners.auto",
    "mlt.options",
    "mlt.job",
    "mlt.priority",
    "mlt",
    "mlt._gradients",
    "mlt._named",
    "mlt.testbed",
    "mlt.nccl",
    "mlt.diagnosis",
    "mlt.switch_push",
    "mlt.simulation",
    "mlt.perf",
    "mlt.mxnet",
    "mlt.tensorflow",
    "mlt.torch",
    "mlt.torch_autoload",
    "mlt.demo",
    "mlt.cli",
    "mlt.__main__",
    "studies",
)
# What a layer names only to build the native form of its own values, when a context asks for it.
NATIVE = LAYERS[0]
# Framework -> the layers that may import it.
FRAMEWORKS = {
    "torch": ("mlt.torch", "mlt.torch_autoload", "mlt.perf", "mlt.demo", "mlt.cli", "studies"),
    "tensorflow": ("mlt.tensorflow",),
    "keras": ("mlt.tensorflow",),
    "mxnet": ("mlt.mxnet",),
}
PLUGINS = ("mlt.mxnet", "mlt.tensorflow", "mlt.torch")


def modules() -> dict[str, Path]:
    found = {}
    for folder, package in SOURCES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([package, *parts]).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def layer_of(name: str) -> str:
    return max((layer for layer in LAYERS if name == layer or name.startswith(f"{layer}.")), key=len)


def imports(name: str, text: str) -> Iterator[tuple[int, str]]:
    """(Line, module) of every import of this package in ``text``, ``import_module`` included."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno} is a relative import: name the module"
            inside = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found = [full if full in MODULES or full == NATIVE else str(node.module) for full in inside.values()]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found = [str(one.value) for one in node.args[:1] if isinstance(one, ast.Constant)]
        else:
            continue
        yield from ((node.lineno, one) for one in found if one.split(".")[0] in ("mlt", "studies"))


def upward(name: str, text: str) -> list[str]:
    """The imports of the module ``name`` from a layer above its own, or from the private modules of another."""
    # The top re-exports; its names are loaded on first use.
    if name == "mlt":
        return []
    own = layer_of(name)
    wrong = []
    for line, used in imports(name, text):
        other = layer_of(used)
        if LAYERS.index(other) > LAYERS.index(own):
            wrong.append(f"{name}:{line} imports {used}: {own} is below {other}")
        parts = used.removeprefix(other).split(".")
        if other != own and any(part.startswith("_") for part in parts):
            wrong.append(f"{name}:{line} imports {used}: a name with an underscore is for its own layer")
    return wrong


@pytest.mark.parametrize("name", sorted(MODULES))
def test_layers__import_only_lower_ones(name: str) -> None:
    assert upward(name, MODULES[name].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", sorted(MODULES))
def test_frameworks__are_imported_by_their_own_plugins_only(name: str) -> None:
    own = layer_of(name)
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            used = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            used = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for one in used:
            assert own in FRAMEWORKS.get(one.split(".")[0], (own,)), f"{name}:{node.lineno} imports {one}"
            plugin = layer_of(one) if one.startswith("mlt.") else ""
            assert own not in PLUGINS or plugin not in PLUGINS or plugin == own, f"{name}:{node.lineno} imports {one}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mlt.errors", "if TYPE_CHECKING:\n    from mlt.operation import Completion"),
        ("mlt.options.paths", "def late():\n    from mlt.job import interfaces"),
        ("mlt.job.secret", "import mlt.context"),
        ("mlt.job.secret", "from mlt import Context"),
        ("mlt.planners.new", "import_module('mlt.options.paths')"),
        ("mlt.perf.session", "from mlt.job import _rendezvous_host"),
        ("mlt.planners.byteps.new", "from mlt.planners.auto.ranking import plan_auto"),
        ("mlt.planners.aro.multiple", "from studies.aro.grid import plan_grid"),
        ("mlt.perf.session", "from mlt._callbacks import Callbacks"),
    ],
)
def test_upward__finds_imports_of_higher_layers(name: str, text: str) -> None:
    assert len(upward(name, text)) == 1


def test_layers__name_every_module() -> None:
    top = {path.name for path in (ROOT / "python" / "mlt").iterdir() if path.suffix == ".py"}
    assert top == {f"{name}.py" for name in (
        "__init__", "__main__", "_callbacks", "_waits", "collectives", "context", "elastic", "errors", "metrics",
        "norms", "operation", "priority", "push_pull", "stats",
    )}  # fmt: skip
    for folder, package in (("python/mlt", "mlt"), ("python/mlt/planners", "mlt.planners")):
        layers = {path.parent.name for path in (ROOT / folder).glob("*/__init__.py*")}
        assert {f"{package}.{name}" for name in layers} < set(LAYERS)
    assert {path.name for path in (ROOT / "python" / "mlt" / "planners").glob("*.py")} == {"__init__.py"}
