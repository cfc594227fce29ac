"""The documents: every variable is in the table, every link leads somewhere, and the site has every page."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from checks import assert_names
from loading import load
from test_import_layers import MODULES

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")])
OTHERS = "BYTEPS|DMLC|GLOO|HOROVOD|KERAS|MKL|NCCL|OMP|OMPI|PMIX|SLURM|SUDO|XDG"  # first words of others' variables
VARIABLE = re.compile(
    rf"_?(MLT|{OTHERS})_[A-Z][A-Z_]*|RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_RANK|LOCAL_WORLD_SIZE"
    "|PYTHONUNBUFFERED|TORCH_DEVICE_BACKEND_AUTOLOAD|LD_LIBRARY_PATH"
)
# How modules read the environment: the name of a variable must then be one of the above.
READS = re.compile(r"(environ|env|variables\.\w+|getenv)$")
# Not of the environment: names in the text of generated shell and C programs.
NAMES_OF_PROGRAMS = {"MLT_BPF_OBJECTS"}


# A time, size, rate or share with its unit, as a measurement has.
QUANTITY = re.compile(r"\d[\d.,]* ?(?:minutes?|seconds?|hours?|[KMG]bit/s|steps/s|[KMG]i?B|us|ns|ms|s|%)(?![\w.])")
# Quantities in the README that nothing measured: values of options, defaults, limits, constants of TCP.
SET = {"200 ms", "3 s", "30 s", "5 s", "1 %", "5 %", "10 %", "200 Mbit/s", "1%", "80 %", "1 MiB"}


def variables_of_the_code() -> dict[str, str]:
    """Variable -> a module or a plugin's C++ file that has it as a string of its own, or in a generated shell text as
    ``${NAME``."""
    found = {}
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and not name.startswith("studies"):
                text = node.value
                named = [text] if VARIABLE.fullmatch(text) else re.findall(r"\$\{(MLT_[A-Z_]+)", text)
                found.update(dict.fromkeys(named, name))
    for path in sorted(ROOT.glob("plugins/**/*.cc")):
        named = re.findall(r'"(\w+)"', path.read_text(encoding="utf-8"))
        found.update({one: path.name for one in named if VARIABLE.fullmatch(one)})
    return {variable: name for variable, name in found.items() if variable not in NAMES_OF_PROGRAMS}


def variables_of_the_table() -> set[str]:
    """First cells of the tables of docs/variables.md, and the names that stand in the text beside them."""
    text = (ROOT / "docs" / "variables.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    beside = [line for line in text.splitlines() if not line.startswith("|")]
    return {name for one in (*cells, *beside) for name in re.findall(r"`(\w+)`", one) if VARIABLE.fullmatch(name)}


def names_read(text: str) -> Iterator[str]:
    """Names read from the environment: ``environ.get("X")``, ``env["X"]``, ``variables.port(env, "X")``."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Subscript) and READS.search(ast.unparse(node.value)):
            key: ast.expr | None = node.slice
        elif isinstance(node, ast.Call) and READS.search(ast.unparse(node.func).removesuffix(".get")):
            at = 1 if "variables." in ast.unparse(node.func) else 0
            key = node.args[at] if len(node.args) > at else None
        else:
            continue
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value


def test_variables__every_one_that_is_read_is_known_to_these_tests() -> None:
    read = {name: module for module, path in MODULES.items() for name in names_read(path.read_text(encoding="utf-8"))}
    assert {"MLT_PERF_PORT", "SUDO_UID", "XDG_CACHE_HOME"} <= set(read)
    assert {name: module for name, module in read.items() if not VARIABLE.fullmatch(name)} == {}


def ports_of_the_code() -> dict[int, str]:
    """Port or offset -> a constant of a module with that value."""
    found = {}
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for target in node.targets if isinstance(node, ast.Assign) else ():
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                for name, value in zip(map(ast.unparse, names), values, strict=False):
                    number = value.value if isinstance(value, ast.Constant) else None
                    if re.fullmatch(r"\w*(PORT|OFFSET)", name) and isinstance(number, int):
                        found[number] = f"{module}.{name}"
    return found


def test_ports__the_table_has_those_of_the_code() -> None:
    text = (ROOT / "docs" / "network.md").read_text(encoding="utf-8").partition("## Ports")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    table = {int(number) for row in rows for number in re.findall(r"\b\d+\b", row.split("|")[1])}
    code = ports_of_the_code()
    assert {1_000, 2_000, 20_000, 29_500, 29_600, 8_765, 57_400} <= set(code)
    last = {29_999: "the last of mlt.job.launchers", 10_000: "mlt._shared.ports._FIRST", 22: "SSH"}
    limits = {65_535}
    assert table - limits == set(code) - limits | set(last)


def test_variables__every_one_of_the_code_is_in_the_table() -> None:
    code = variables_of_the_code()
    assert {"MLT_JOB", "MLT_PATHS", "RANK", "MLT_MAX_TAGS", "MLT_BPF", "MLT_NCCL_FAULTS"} <= set(code)
    missing = {name: where for name, where in code.items() if name not in variables_of_the_table()}
    assert not missing, "docs/variables.md lacks these"


def test_variables__the_table_has_none_that_is_gone() -> None:
    assert variables_of_the_table() - set(variables_of_the_code()) == set()


def links(text: str) -> Iterator[str]:
    """Targets of Markdown links, outside code."""
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"\]\(([^()\s]+)\)", re.sub(r"`[^`\n]*`", "`", text))


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links__lead_somewhere(path: Path) -> None:
    for target in links(path.read_text(encoding="utf-8")):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), f"{path.name}: {target}"
        assert not anchor or anchor in anchors(found), f"{path.name}: {target}"


def paths(text: str) -> Iterator[str]:
    """Names of the repository's files and folders in inline code, as ``git ls-files`` takes them: {a,b} expanded.

    A name starts with a folder at the top; ``<layer>`` stands for anything. Build outputs are not of the repository.
    """
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build"}
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`]+)`", text):
        for word in code.split():
            name = re.sub(r"<\w+>", "*", word.partition(":")[0])
            if "/" not in name or name.split("/")[0] not in folders or not re.fullmatch(r"[\w./{},*-]+", name):
                continue
            before, braces, after = name.partition("{")
            inside, _, after = after.partition("}")
            yield from (before + one + after for one in inside.split(",")) if braces else (name,)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths__exist(path: Path) -> None:
    assert [name for name in paths(path.read_text(encoding="utf-8")) if not any(ROOT.glob(name))] == []


def test_readme__a_measured_number_has_its_date_machine_and_command() -> None:
    text = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    parts = [part for part in text.split("\n\n") if not part.startswith("|")]
    found = 0
    for part in parts:
        if measured := set(QUANTITY.findall(part)) - SET:
            words = " ".join(part.split())
            found += 1
            assert re.search(r"20\d\d-\d\d-\d\d", words), (measured, words)
            assert re.search(r"\d (shared )?cores|Debian", words), (measured, words)
            assert re.search(r"`(make|mlt|du) ", words), (measured, words)
    assert found >= 3
    # Tables stand below a paragraph that has all three.
    for before, table in zip(text.split("\n\n"), text.split("\n\n")[1:], strict=False):
        if table.startswith("|") and QUANTITY.search(table):
            assert re.search(r"20\d\d-\d\d-\d\d", before), before
            assert "cores" in before
            assert "`make " in before


def test_readme__first_screen() -> None:
    """Two sentences that say what mlt is, links by reader, the picture and its origin, the word, two commands."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    title, what, by_reader, picture, origin, word, python, before, commands = text.split("\n\n")[:9]
    assert title == "# mlt"
    assert len(re.findall(r"\.(?=\s|$)", what)) == 2
    assert re.findall(r"\[(I [^]]*)\]\(docs/(\w+)\.md\)", by_reader) == [
        ("I train models", "pytorch"), ("I run the network", "network"), ("I plan the cluster", "planners"),
    ]  # fmt: skip
    assert re.fullmatch(r"!\[[^]]*gloo[^]]*mlt[^]]*\]\(docs/results/demo/report\.png\)", picture)
    assert re.search(r"20\d\d-\d\d-\d\d", origin)
    assert_names(origin, "cores", "`mlt demo --seeds 2`")
    assert_names(word, "change one word")
    assert_names(python, 'init_process_group("mlt")', 'instead of "gloo"')
    assert_names(before, "Two commands")
    assert re.findall(r"^\w+ \w+", commands, re.MULTILINE) == ["make demo", "make test"]


def test_paths__of_a_text() -> None:
    text = "`docs/a.md`, `src/{b,c}.h`, `make x`, `build/site`, `tests/unit/<layer>/`, `src/d.c:7`\n```\n`src/e`\n```\n"
    assert list(paths(text)) == ["docs/a.md", "src/b.h", "src/c.h", "tests/unit/*/", "src/d.c"]
    added = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Adding a collective")[2]
    assert {"src/mlt.h", "tests/sim/mutants.yaml", "tools/chaos/rank.py"} <= set(paths(added))


def test_documents__are_all_reached_from_the_readme() -> None:
    known, todo = set(), [ROOT / "README.md"]
    while todo:
        path = todo.pop()
        if path in known or path.suffix != ".md":
            continue
        known.add(path)
        for target in links(path.read_text(encoding="utf-8")):
            if "://" not in target and target.partition("#")[0]:
                todo.append((path.parent / target.partition("#")[0]).resolve())
    assert {path.name for path in ROOT.glob("docs/*.md")} <= {path.name for path in known}


def test_errors__the_page_has_every_status_and_exception_with_its_bases() -> None:
    mlt = pytest.importorskip("mlt")
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    statuses = set(re.findall(r"^\| `(\w+)` \| .+ \| (?:returns|raises `\w+`) \|$", text, re.M))
    assert statuses == set(get_args(importlib.import_module("mlt.operation").Status))
    known = {}
    for names, base in re.findall(r"^\| ((?:`\w+Error`(?:, )?)+) \| (?:`(\w+)`)? ?\|", text, re.M):
        known |= dict.fromkeys(re.findall(r"`(\w+)`", names), base)
    classes = {name: getattr(mlt, name) for name in mlt.errors.__all__ if name not in ("MltError", "ErrorCode")}
    assert known.keys() == classes.keys()
    for name, base in known.items():
        builtin = {one.__name__ for one in classes[name].__bases__ if one.__module__ == "builtins"}
        assert builtin == ({base} if base else set()), name


def test_site__every_page_has_a_place() -> None:
    site = load(ROOT / "tools" / "site.py", "site_of_docs")
    placed = {page for _, pages in site.NAVIGATION for page in pages}
    assert {path.name for path in ROOT.glob("docs/*.md")} - placed == set()
    assert all((ROOT / "docs" / page).is_file() or page in site.TOP.values() for page in placed)


def test_site__stages_every_document_with_links_that_work(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "site.py", "--stage", tmp_path], check=True, timeout=60)
    pages = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.md")}
    assert {path.name for path in ROOT.glob("docs/*.md")} <= {path.name for path in pages}
    assert {Path("index.md"), Path("PROTOCOL.md"), Path("CHANGELOG.md"), Path("network.md")} <= pages
    for page in pages:
        for target in links((tmp_path / page).read_text(encoding="utf-8")):
            file = target.partition("#")[0]
            if "://" not in target and file:
                assert (tmp_path / page).parent.joinpath(file).resolve().exists(), f"{page}: {target}"
