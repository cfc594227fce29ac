"""The recipes of examples/pytorch: each ends with the same figures over mlt as over gloo, to the last digit printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlt.demo.processes import free_port_pair

pytest.importorskip("torch")

RECIPES = Path(__file__).parents[3] / "examples" / "pytorch"
WORKERS = 2
NEEDED = {
    "hf_accelerate.py": ("accelerate",),
    "hf_trainer.py": ("transformers", "accelerate"),
    "lightning_ddp.py": ("lightning",),
}


def figures(recipe: str, backend: str, folder: Path) -> list[str]:
    """What rank 0 prints, without what the libraries print."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(WORKERS)]
    address = ["--master-addr", "127.0.0.1", "--master-port", str(free_port_pair())]
    done = subprocess.run(
        [sys.executable, *launcher, *address, str(RECIPES / recipe), backend],
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
@pytest.mark.parametrize("recipe", sorted(path.name for path in RECIPES.glob("*.py")))
def test_recipe__is_as_over_gloo(recipe: str, tmp_path: Path) -> None:
    for needed in NEEDED.get(recipe, ()):
        pytest.importorskip(needed)
    over_mlt = figures(recipe, "mlt", tmp_path)
    assert over_mlt
    assert over_mlt == figures(recipe, "gloo", tmp_path)
