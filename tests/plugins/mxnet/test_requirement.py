"""Requirements of ``mlt.mxnet``: MXNet, and a numpy that it can use; and what it must not import."""

from __future__ import annotations

import subprocess
import sys

from checks import assert_names
from mlt.mxnet import requirement

from mlt._shared.extras import how_to_install, requirements


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)


def test_import__without_mxnet_says_how_to_install_it() -> None:
    done = run("import sys; sys.modules['mxnet'] = None; import mlt.mxnet")
    assert done.returncode == 1
    assert_names(done.stderr, "ModuleNotFoundError", "mlt.mxnet needs MXNet", how_to_install("mxnet"))


def test_import__with_a_newer_numpy_says_which_to_install() -> None:
    # As numpy 1.24 is: without numpy.bool, which MXNet uses when it is imported.
    done = run("import numpy; numpy.__deprecated_attrs__.pop('bool'); numpy.__version__ = '1.24.4'; import mlt.mxnet")
    assert done.returncode == 1
    assert_names(done.stderr, "ImportError", "numpy 1.24.4", "pip install 'numpy<1.24'")


def test_numpy__is_that_of_the_extra() -> None:
    assert requirement.NUMPY in requirements()["mxnet"]


def test_import__of_one_plugin_imports_no_other_framework() -> None:
    code = "import sys, mlt.mxnet; print([one for one in ('torch', 'tensorflow', 'jax') if one in sys.modules])"
    assert run(code).stdout.strip() == "[]"


def test_doctor__finds_mxnet_here() -> None:
    words = [sys.executable, "-m", "mlt", "doctor", "--framework", "mxnet"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
    assert_names(done.stdout, "import mlt.mxnet works", "docs/mxnet.md")
