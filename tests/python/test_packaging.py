"""The distributed files: the contents of the source distribution, and the Pythons and tests of the wheels."""

from __future__ import annotations

import os
import re
import subprocess
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
    assert made.stat().st_size < 1_600_000


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


def test_changelog__has_the_version_of_the_protocol() -> None:
    header = (ROOT / "src" / "wire" / "packet.h").read_text(encoding="utf-8")
    version = re.search(r"^#define MLT_PROTOCOL_VERSION (\d+)", header, re.MULTILINE)
    assert version is not None
    assert f"version {version[1]}." in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Checkout of a project that can be released, with one commit."""
    files = {
        "pyproject.toml": '[project]\nname = "mlt"\nversion = "1.2.0"\nclassifiers = [\n'
        '  "Programming Language :: Python :: 3.12",\n  "Programming Language :: Python :: 3.13",\n]\n',
        "CMakeLists.txt": "project(mlt VERSION 1.2.0 LANGUAGES CXX)\n",
        "CHANGELOG.md": "# Changelog\n\n## 1.2.0 - 2026-01-01\n\n### Transport\n\n- Faster.\n\n"
        "## 1.1.0 - 2025-01-01\n\n- Old.\n",
        ".gitignore": "build/\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "user.name", "test")
    git(tmp_path, "config", "user.email", "test@localhost")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "first")
    for python in ("312", "313"):
        wheel = tmp_path / "build" / "wheels" / f"mlt-1.2.0-cp{python}-cp{python}-linux_x86_64.whl"
        wheel.parent.mkdir(parents=True, exist_ok=True)
        wheel.write_bytes(b"a wheel")
        os.utime(wheel, (2**31, 2**31))  # later than the commit
    return tmp_path


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout


def released(release: ModuleType, root: Path, *arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["release.py", *arguments])
        return int(release.main(root))


def test_release__makes_the_tag_with_the_notes_and_the_packages(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release = load(ROOT / "tools" / "release.py")
    assert released(release, checkout) == 0
    assert "ready" in capsys.readouterr().out
    assert not git(checkout, "tag")
    built = []
    real = subprocess.run

    def run(words: list[str], **options: object) -> object:
        if words[0] == sys.executable:  # the source distribution of this small project cannot be built
            return built.append(words)
        return real(words, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(release.subprocess, "run", run)
    assert released(release, checkout, "--tag") == 0
    monkeypatch.undo()
    assert built
    assert git(checkout, "tag") == "v1.2.0\n"
    message = git(checkout, "tag", "-l", "--format=%(contents)", "v1.2.0")
    assert "### Transport\n\n- Faster." in message
    assert "Old" not in message
    names = sorted(one.name for one in (checkout / "build" / "release").iterdir())
    assert names == ["SHA256SUMS", *(f"mlt-1.2.0-cp{one}-cp{one}-linux_x86_64.whl" for one in (312, 313))]
    sums = (checkout / "build" / "release" / "SHA256SUMS").read_text(encoding="utf-8")
    assert sums.count("mlt-1.2.0") == 2
    assert released(release, checkout) == 1
    assert "the tag v1.2.0 exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("CMakeLists.txt", "1.2.0", "1.1.0", "CMakeLists.txt has version 1.1.0"),
        ("CHANGELOG.md", "## 1.2.0", "## 1.3.0", "CHANGELOG.md has version 1.3.0"),
        ("CHANGELOG.md", "# Changelog\n", "# Changelog\n\n## Unreleased\n\n- More.\n", "Unreleased"),
        ("CHANGELOG.md", "### Transport\n\n- Faster.\n", "", "says nothing about 1.2.0"),
        ("pyproject.toml", "3.12", "3.11", "no wheel of 1.2.0 for Python 3.11"),
        ("pyproject.toml", "classifiers", "# a change\nclassifiers", "no commit has, the first is pyproject.toml"),
    ],
)
def test_release__says_what_is_missing(
    checkout: Path, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, named: str
) -> None:
    text = (checkout / file).read_text(encoding="utf-8")
    assert old in text
    (checkout / file).write_text(text.replace(old, new), encoding="utf-8")
    assert released(load(ROOT / "tools" / "release.py"), checkout, "--tag") == 1
    assert named in capsys.readouterr().err
    assert not git(checkout, "tag")


def test_release__rejects_wheels_of_an_earlier_commit(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wheel in (checkout / "build" / "wheels").iterdir():
        os.utime(wheel, (1, 1))
    assert released(load(ROOT / "tools" / "release.py"), checkout) == 1
    assert capsys.readouterr().err.count("older than the commit") == 2


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


def test_makefile__every_target_that_it_lists_or_the_gate_calls_does_something() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.M)
    listed = set(re.findall(r"^#   make ([\w-]+)", text, re.M))
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    words = " ".join(re.findall(r"\bmake ([^\n\"]*)", gate)).split()
    called = {word for word in words if re.fullmatch(r"(build|run|test)-[a-z]+|swarm|lint|mutants|fuzz", word)}
    assert {"swarm", "mutants", "build-tsan"} <= called
    assert listed | called <= set(phony.split())
    for name in phony.split():
        # An undefined name in .PHONY is no error for make: it succeeds, and does nothing.
        done = subprocess.run(["make", "-nB", "--no-print-directory", name], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip(), name
        assert "Nothing to be done" not in done.stdout, name
