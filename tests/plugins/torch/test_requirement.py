"""``import mlt.torch`` without torch: one error, with the command that installs it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from checks import assert_names

from mlt._shared.extras import how_to_install


@pytest.mark.parametrize("module", ["mlt.torch", "mlt.torch.hook", "mlt.torch.horovod"])
def test_import__without_torch_names_the_command(module: str) -> None:
    program = f"import sys; sys.modules['torch'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert_names(last, "ModuleNotFoundError", "mlt.torch needs PyTorch", how_to_install("torch"))
    assert done.stderr.count("Traceback") == 1


def test_import__an_error_inside_torch_is_left_alone() -> None:
    program = "import sys; sys.modules['torch._C'] = None; import mlt.torch"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "mlt.torch needs PyTorch" not in done.stderr
