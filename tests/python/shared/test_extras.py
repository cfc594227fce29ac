"""The command of an error about a missing package: it names the extra's packages, and works though no index has mlt."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from checks import assert_names

from mlt._shared import extras
from mlt.diagnosis.doctor import Finding

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def plan_and_perf(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["numpy>=1", 'networkx>=3; extra == "plan"', "scipy (>=1.10) ; extra == 'plan'", 'mpi4py; extra == "perf"']
    monkeypatch.setattr(metadata, "requires", lambda _: wanted)
    monkeypatch.setattr(extras, "pip", lambda: "pip")


@pytest.mark.usefixtures("plan_and_perf")
def test_how_to_install__names_the_packages_and_the_extra() -> None:
    assert extras.requirements() == {"plan": ("networkx>=3", "scipy(>=1.10)"), "perf": ("mpi4py",)}
    assert extras.how_to_install("perf") == "pip install 'mpi4py' # extra perf"
    assert extras.how_to_install("plan") == "pip install 'networkx>=3' 'scipy(>=1.10)' # extra plan"
    assert extras.how_to_install("plan", "scipy") == "pip install 'scipy(>=1.10)' # extra plan"


def test_how_to_install__says_which_extra_goes_with_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "requires", lambda _: ["mxnet>=1.9.1; extra == 'mxnet'"])
    monkeypatch.setattr(extras, "pip", lambda: "pip")
    command = "pip install 'mxnet>=1.9.1' # extra mxnet, in an environment of its own"
    assert extras.how_to_install("mxnet") == command
    assert not Finding("optional", "", command).fix_is_command  # here it would replace packages of other extras


@pytest.mark.usefixtures("plan_and_perf")
@pytest.mark.parametrize("wrong", [("plan", "torch"), ("nonsense",)])
def test_how_to_install__what_no_extra_has_is_a_mistake(wrong: tuple[str, ...]) -> None:
    with pytest.raises((AssertionError, KeyError), match=wrong[-1]):
        extras.how_to_install(*wrong)


def test_how_to_install__without_metadata_names_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", absent)
    monkeypatch.setattr(extras, "__file__", str(ROOT / "python/mlt/_shared/extras.py"))
    assert_names(extras.how_to_install("plan"), "install", f"'{ROOT}[plan]'")
    assert (extras.checkout() / "pyproject.toml").is_file()


def test_pip__of_this_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path, symlinks=True, with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/pip")
    assert extras.pip() == f"{tmp_path}/bin/python -m pip"
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert extras.pip() == f"{tmp_path}/bin/python -m pip"
    monkeypatch.setattr(shutil, "which", lambda name: str(tmp_path / "bin" / name))
    assert extras.pip() == "pip"


def test_require__names_the_command_for_a_missing_package_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extras.require("json", "mlt.plan", "JSON", "plan")
    with pytest.raises(ModuleNotFoundError) as raised:
        extras.require("not_there", "mlt.plan", "Not There", "plan")
    assert_names(raised.value, "mlt.plan needs Not There", extras.how_to_install("plan"))
    assert raised.value.name == "not_there"
    (tmp_path / "broken_package.py").write_text("import not_there_either")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError) as raised:
        extras.require("broken_package", "mlt.plan", "Broken", "plan")
    assert raised.value.name == "not_there_either"


def test_how_to_install__its_command_works_with_this_installation_and_without_any_index() -> None:
    def is_installed(requirement: str) -> bool:
        try:
            return bool(metadata.version(extras.package_of(requirement)))
        except metadata.PackageNotFoundError:
            return False

    wanted = {name: all(map(is_installed, packages)) for name, packages in extras.requirements().items()}
    extra = next((name for name, complete in wanted.items() if complete), None)
    if extra is None:
        pytest.skip("no extra is complete here")
    command = extras.how_to_install(extra).replace(" install ", " install --no-index --no-deps --dry-run ", 1)
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for requirement in extras.requirements()[extra]:
        assert f"already satisfied: {requirement}" in done.stdout, done.stdout + done.stderr
    assert "mlt" not in done.stdout.partition("#")[0].replace(sys.prefix, "")
