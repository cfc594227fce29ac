"""``mlt doctor --framework``: what each framework's plugin lacks here, and the command that mends it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from checks import assert_names

from mlt._shared import extras
from mlt._shared.extras import how_to_install
from mlt.diagnosis import frameworks
from mlt.diagnosis.doctor import Finding
from mlt.diagnosis.frameworks import FRAMEWORKS, NAMES, WITHOUT_PLUGIN, Framework, examine_framework

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _with_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks, "check_library", lambda: iter(()))


def made(monkeypatch: pytest.MonkeyPatch, **fields: object) -> None:
    """A framework "made" whose package is pytest, an extra of which requires it."""
    given: dict[str, object] = {"package": "pytest", "extra": "made", "module": "json", "page": "pytorch.md"}
    monkeypatch.setitem(FRAMEWORKS, "made", Framework(**{**given, **fields}))  # type: ignore[arg-type]
    monkeypatch.setattr(metadata, "requires", lambda _: ['pytest[x]>=3.2; extra == "made"'])
    monkeypatch.setattr(extras, "pip", lambda: "pip")


def found(name: str, **environ: str) -> list[Finding]:
    return list(examine_framework(name, environ))


def test_examine__a_framework_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    made(monkeypatch)
    version, imported, page = found("made")
    assert version == Finding("ok", f"pytest {metadata.version('pytest')} (3.2 or newer is needed)")
    assert imported == Finding("ok", "import json works")
    assert page == Finding("ok", "how to use it: docs/pytorch.md")


def test_examine__names_what_is_not_installed_or_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    made(monkeypatch, package="no-such-package")
    assert found("made") == [
        Finding("problem", "no-such-package is not installed", "pip install 'pytest[x]>=3.2' # extra made")
    ]
    made(monkeypatch)
    monkeypatch.setattr(metadata, "version", lambda _: "3.1.9+cpu")
    (old,) = found("made")
    assert old == Finding(
        "problem", "pytest 3.1.9+cpu: json needs 3.2 or newer", "pip install 'pytest[x]>=3.2' # extra made"
    )
    assert old.fix_is_command
    assert Finding("problem", "", "pip install 'numpy<1.24' # extra mxnet").fix_is_command  # "<" begins no placeholder
    monkeypatch.setattr(metadata, "version", lambda _: "3.10")
    assert [one.level for one in found("made")] == ["ok"] * 3


@pytest.mark.parametrize(
    ("program", "facts"),
    [
        ("raise OSError('no such device')", ("import json fails", "OSError: no such device")),
        ("import os; os.kill(os.getpid(), 11)", ("import json fails", "signal 11")),
        ("import sys; sys.exit(3)", ("import json fails", "status 3")),
    ],
)
def test_examine__an_import_that_fails_or_crashes(
    program: str, facts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(monkeypatch, program=program)
    bad = [one for one in found("made") if one.level == "problem"]
    assert len(bad) == 1
    assert_names(bad[0].what, *facts)
    assert "python -c" in bad[0].fix


def test_examine__an_import_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made(monkeypatch, program="import time; time.sleep(60)")
    monkeypatch.setattr(frameworks, "IMPORT_SECONDS", 0.3)
    assert "takes longer than" in "".join(one.what for one in found("made") if one.level == "problem")


@pytest.mark.parametrize("name", WITHOUT_PLUGIN)
def test_examine__a_framework_without_a_plugin_is_said_to_have_none(name: str) -> None:
    (finding,) = found(name)
    assert finding.level == "problem"
    assert finding.what.startswith("mlt has no plugin for ")
    assert "all_reduce" in finding.fix


def test_torch__its_entry_point_and_what_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def levels(**environ: str) -> list[str]:
        return [one.level for one in frameworks._torch(environ)]

    assert levels() == ["ok"]
    assert levels(TORCH_DEVICE_BACKEND_AUTOLOAD="0") == ["optional"]
    monkeypatch.setattr(metadata, "entry_points", lambda **_: ())
    assert levels() == ["problem"]


def test_keras__on_another_backend() -> None:
    (finding,) = frameworks._keras({"KERAS_BACKEND": "jax"})
    assert (finding.level, finding.fix) == ("problem", "export KERAS_BACKEND=tensorflow")
    assert list(frameworks._keras({})) == []


def test_nccl__its_library_loads_with_both_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = pytest.importorskip("mlt.nccl")
    if not nccl.library().is_file():
        pytest.skip("built without NCCL's plugin")
    levels = {one.what: one.level for one in found("nccl", NCCL_NET_PLUGIN="mlt")}
    assert levels["NCCL_NET_PLUGIN selects it"] == "ok"
    assert any("ncclNetPlugin_v8 and ncclNetPlugin_v11" in what for what in levels)
    assert "problem" not in levels.values()
    other = [one for one in found("nccl") if "does not select it" in one.what]
    assert [(one.level, one.fix) for one in other] == [("optional", "export NCCL_NET_PLUGIN=mlt")]
    exported = (ROOT / "plugins" / "nccl" / "exports.map").read_text(encoding="utf-8")
    assert tuple(re.findall(r"ncclNetPlugin_v\d+", exported)) == frameworks.NCCL_SYMBOLS


def test_nccl__a_library_that_is_absent_broken_or_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = pytest.importorskip("mlt.nccl")
    place = tmp_path / "libnccl-net-mlt.so"
    monkeypatch.setattr(nccl, "library", lambda: place)
    (absent,) = found("nccl")
    assert_names(absent.what, "is not at", place)
    place.write_bytes(b"no library")
    assert_names(found("nccl")[-1].what, "does not load", "file too short")
    libc = next(
        Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line
    )
    place.unlink()
    place.symlink_to(libc)
    assert_names(found("nccl")[-1].what, "no symbol ncclNetPlugin_v8, ncclNetPlugin_v11")


def test_frameworks__have_an_extra_and_a_page() -> None:
    known = extras.requirements()
    for one in FRAMEWORKS.values():
        assert one.package in {extras.package_of(text) for text in known[one.extra]}
        assert (ROOT / "docs" / one.page).is_file()
        assert how_to_install(one.extra, *one.only)


def test_command__of_torch_here() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("mlt._core")
    words = [sys.executable, "-m", "mlt", "doctor", "--framework", "torch"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
    assert_names(done.stdout, "import mlt.torch works", "entry point of torch.backends", "docs/pytorch.md")


@pytest.mark.skipif(find_spec("tensorflow") is not None, reason="TensorFlow is installed here")
def test_command__fix_prints_what_would_mend_it() -> None:
    words = [sys.executable, "-m", "mlt", "doctor", "--framework", "tensorflow", "--fix"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-2:] == [
        "# problem: tensorflow is not installed", how_to_install("tensorflow")
    ]  # fmt: skip


def test_documentation__names_every_framework() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    section = text.partition("## mlt doctor --framework")[2].partition("\n## ")[0]
    assert_names(section, *(f"`{name}`" for name in NAMES))
