"""The recipes of examples/pytorch: each ends with the same figures over mlt as over gloo, to the last digit printed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from mlt._shared.ports import free_port_pair

pytest.importorskip("torch")

RECIPES = Path(__file__).parents[3] / "examples" / "pytorch"
WORKERS = 2
# The packages that a script needs beside torch.
NEEDED = {
    "deepspeed_zero.py": ("deepspeed",),
    "hf_accelerate.py": ("accelerate",),
    "hf_trainer.py": ("transformers", "accelerate"),
    "lightning_ddp.py": ("lightning",),
    "ray_train.py": ("ray", "pyarrow"),
}
# Over gloo, torchft's own script does not survive a killed replica: test_torchft.py tests it.
NOT_OVER_GLOO = {"torchft_ddp.py"}
# Those that start their workers themselves.
WITHOUT_TORCHRUN = {"ray_train.py"}


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """One whose name leaves space for those of sockets: pytest's own is too long for Ray."""
    with tempfile.TemporaryDirectory(prefix="mlt-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def figures(recipe: str, backend: str, folder: Path) -> list[str]:
    """The lines that rank 0 prints, without those of the libraries."""
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(WORKERS)]
    address = ["--master-addr", "127.0.0.1", "--master-port", str(free_port_pair())]
    launcher = [] if recipe in WITHOUT_TORCHRUN else [*torchrun, *address]
    done = subprocess.run(
        [sys.executable, *launcher, str(RECIPES / recipe), backend],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TMPDIR": str(folder)},
    )
    # gloo's threads sometimes abort a process that ends in the ordinary way.
    is_abort_of_gloo = backend == "gloo" and "terminate called without an active exception" in done.stderr
    assert done.returncode == 0 or is_abort_of_gloo, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if ": loss " in line or line.startswith("checkpoint: ")]


@pytest.mark.slow
@pytest.mark.timeout(260)
@pytest.mark.parametrize("recipe", sorted({path.name for path in RECIPES.glob("*.py")} - NOT_OVER_GLOO))
def test_recipe__is_as_over_gloo(recipe: str, short_folder: Path) -> None:
    for needed in NEEDED.get(recipe, ()):
        if find_spec(needed) is None:
            pytest.skip(f"{recipe} needs {needed}, which make recipes installs")
    over_mlt = figures(recipe, "mlt", short_folder)
    assert over_mlt
    assert over_mlt == figures(recipe, "gloo", short_folder)
