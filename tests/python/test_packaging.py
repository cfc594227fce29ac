"""The distributed files: the contents of the source distribution, and the Pythons and tests of the wheels."""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from datetime import date
from pathlib import Path
from types import ModuleType

import pytest
from loading import load
from test_import_layers import MODULES

import mlt
from mlt._shared import extras

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def wheels() -> ModuleType:
    return load(ROOT / "tools" / "wheels.py")


def test_sdist__has_the_sources_but_no_tests_and_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = pytest.importorskip("scikit_build_core.build")
    monkeypatch.chdir(ROOT)
    made = tmp_path / backend.build_sdist(str(tmp_path))
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "src/mlt.h", "python/mlt/context.py",
            "plugins/torch/hook.py", "switch_configs/policy.py", "docs/network.md"} <= names  # fmt: skip
    assert not {name.partition("/")[0] for name in names} & {"tests", "studies", "tools", ".ci", ".venv", "build"}
    assert not any(name.startswith("docs/results") for name in names)
    assert made.stat().st_size < 1_500_000


def test_version__is_the_same_everywhere() -> None:
    def found(file: str, pattern: str) -> str:
        match = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
        assert match is not None, file
        return match[1]

    ours = found("pyproject.toml", r'^version = "([\d.]+)"')
    assert found("CMakeLists.txt", r"^project\(mlt VERSION ([\d.]+)") == ours
    assert found("CHANGELOG.md", r"^## ([\d.]+)") == ours
    assert mlt.__version__ == ours


def test_changelog__has_a_number_and_a_date_for_each_release_newest_first() -> None:
    headings = re.findall(r"^## (.*)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    releases = headings[headings[0] == "Unreleased" :]
    found = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) - (\d{4}-\d{2}-\d{2})", one) for one in releases]
    assert found
    assert all(found), releases
    numbers = [tuple(map(int, one.groups()[:3])) for one in found if one]
    dates = [date.fromisoformat(one[4]) for one in found if one]
    assert numbers == sorted(set(numbers), reverse=True)
    assert dates == sorted(dates, reverse=True)


def test_wheels__finds_this_python_and_tests_that_exist(wheels: ModuleType) -> None:
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = wheels.pythons([Path("/bin/sh"), Path("/no/such/python3"), Path(sys.executable).with_name("python3")])
    assert list(found) == [ours]
    assert all((ROOT / one.removeprefix("--ignore=")).exists() for one in (*wheels.TESTS, *wheels.TORCH_TESTS))


def test_wheels__oldest_dependencies_are_those_of_the_project(wheels: ModuleType, tmp_path: Path) -> None:
    wheel = tmp_path / "mlt-0.1.0-py3-none-any.whl"
    lines = [
        "Name: mlt",
        "Requires-Dist: click>=8.1",
        "Requires-Dist: typer>=0.12.4",
        'Requires-Dist: torch>=2; extra == "torch"',
    ]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("mlt-0.1.0.dist-info/METADATA", "\n".join(lines))
    assert wheels.oldest_dependencies(wheel) == ["click==8.1", "typer==0.12.4"]


def test_cibuildwheel__builds_both_machines_and_runs_the_same_tests(wheels: ModuleType) -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    config = project["tool"]["cibuildwheel"]
    assert config["linux"]["archs"] == ["x86_64", "aarch64"]
    assert {config["linux"][f"manylinux-{one}-image"] for one in config["linux"]["archs"]} == {"manylinux_2_28"}
    assert config["test-requires"] == list(wheels.TEST_PACKAGES)
    assert "tools/wheels.py --test-here" in config["test-command"]


def test_extras__those_that_the_code_names_exist() -> None:
    used = set()
    for path in MODULES.values():
        text = path.read_text(encoding="utf-8")
        used |= {call[1:] for call in re.findall(r"(how_to_install)\(['\"]([\w-]+)['\"](?:, ['\"](\w+)['\"])?", text)}
    assert {("plan", ""), ("demo", ""), ("perf", "")} <= used
    wanted = extras.requirements()
    for extra, package in used:
        assert not package or package in map(extras.package_of, wanted[extra]), (extra, package)


def test_sources__no_text_installs_mlt_from_an_index() -> None:
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]
    for path in (*MODULES.values(), *documents):
        found = re.findall(r"pip install[^\n`]*['\" ]mlt\b(?:\[|['\"\s])[^\n]*", path.read_text(encoding="utf-8"))
        assert path.name == "extras.py" or not found, path  # its head says why it prints no such command


def test_readme__has_every_extra() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("| extra | for |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    named = {name for cell in cells for name in re.findall(r"`([\w-]+)`", cell)}
    assert named == set(extras.requirements()) - {"dev", "docs"}


def test_pythons__classifiers_wheels_and_readme_agree() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    built = re.findall(r'"cp3(\d+)-\*"', project)
    assert listed == [f"3.{minor}" for minor in built]
    assert f'requires-python = ">={listed[0]}"' in project
    assert f"with Python {listed[0]} to {listed[-1]}" in (ROOT / "README.md").read_text(encoding="utf-8")
