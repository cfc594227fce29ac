"""NCCL's plugin as it is installed: its tables, and how NCCL finds it. What it does: driver/plugin_test.cc."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import mlt.nccl
import pytest

ROOT = Path(__file__).resolve().parents[3]
# As NCCL does: by the library's name alone.
FIND = "import ctypes; ctypes.CDLL('libnccl-net-mlt.so').ncclNetPlugin_v8; print('found')"


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name not in ("NCCL_NET_PLUGIN", "LD_LIBRARY_PATH")}
    return subprocess.run(
        [sys.executable, *command], env={**environ, **variables}, cwd=ROOT.parent, capture_output=True, text=True,
        check=False, timeout=90,
    )  # fmt: skip


def test_library__has_both_tables() -> None:
    library = ctypes.CDLL(str(mlt.nccl.library()))
    for version in (8, 11):
        name = ctypes.c_char_p.in_dll(library, f"ncclNetPlugin_v{version}")
        assert name.value == b"mlt"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("", False), ("mlt", True), ("other,mlt", True), ("libnccl-net-mlt.so", True), ("mltx", False), ("none", False)],
)
def test_is_wanted__as_nccl_reads_the_list(value: str, wanted: bool) -> None:
    assert mlt.nccl.is_wanted({"NCCL_NET_PLUGIN": value} if value else {}) is wanted


def test_main__prints_the_folder_for_the_loader() -> None:
    folder = run("-m", "mlt.nccl.__main__").stdout.strip()
    assert (Path(folder) / mlt.nccl.LIBRARY).is_file()
    assert run("-c", FIND, LD_LIBRARY_PATH=folder).stdout == "found\n"


def test_load__makes_it_found_by_its_name() -> None:
    assert "cannot open shared object" in run("-c", FIND).stderr
    assert run("-c", f"import mlt.nccl; mlt.nccl.load(); {FIND}").stdout == "found\n"


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
@pytest.mark.parametrize(("value", "printed"), [("mlt", "found\n"), ("other", "")])
def test_import_torch__loads_it_if_the_variable_names_it(value: str, printed: str) -> None:
    assert run("-c", f"import torch; {FIND}", NCCL_NET_PLUGIN=value).stdout == printed
