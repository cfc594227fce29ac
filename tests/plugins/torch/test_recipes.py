"""The recipes of examples/pytorch: each ends with the same figures over mlt as over gloo, to the last digit printed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm_python
from rank_jobs import Outcome

from mlt._shared.ports import free_port_pair

pytest.importorskip("torch")

RECIPES = Path(__file__).parents[3] / "examples" / "pytorch"
WORKERS = 2
LIMIT_SECONDS = 120
# The packages that a script needs beside torch.
NEEDED = {
    "deepspeed_zero.py": ("deepspeed",),
    "fsdp2.py": ("h5py", "textgenrnn"),
    "hf_accelerate.py": ("accelerate",),
    "hf_trainer.py": ("transformers", "accelerate"),
    "lightning_ddp.py": ("lightning",),
    "ray_train.py": ("ray", "pyarrow"),
}
# Over gloo, torchft's own script does not survive a killed replica: test_torchft.py tests it.
NOT_OVER_GLOO = {"torchft_ddp.py"}
# Those that start their workers themselves.
STARTS_WORKERS = {"ray_train.py"}
# Started as the docs say. The workers of the others are forked with their libraries imported: torchrun and every worker
# would take more time to import them than the recipe takes to train.
BY_TORCHRUN = {"ddp.py"}
# What to import before the fork, where that is more than torch.
SLOW_IMPORTS = {
    "deepspeed_zero.py": ("deepspeed",),
    "hf_accelerate.py": ("accelerate",),
    "hf_trainer.py": ("transformers.trainer", "accelerate"),
    "lightning_ddp.py": ("lightning",),
}


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """One whose name leaves space for those of sockets: pytest's own is too long for Ray."""
    with tempfile.TemporaryDirectory(prefix="mlt-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def figures(recipe: str, backend: str, folder: Path) -> list[str]:
    """The lines that rank 0 prints, without those of the libraries."""
    script = [str(RECIPES / recipe), backend]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TMPDIR": str(folder)}
    if recipe in STARTS_WORKERS | BY_TORCHRUN:
        address = ["--master-addr", "127.0.0.1", "--master-port", str(free_port_pair())]
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(WORKERS), *address]
        launcher = torchrun if recipe in BY_TORCHRUN else []
        command = [sys.executable, *launcher, *script]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False, cwd=folder, env=environment
        )
        outcomes = [Outcome(done.returncode, done.stdout + done.stderr)]
    else:
        outcomes = run_ranks(script, environment, folder, SLOW_IMPORTS.get(recipe, ()))
    # gloo's threads sometimes abort a process that ends in the ordinary way.
    is_abort_of_gloo = backend == "gloo" and "terminate called without an active exception" in outcomes[0].output
    for outcome in outcomes:
        assert outcome.status == 0 or is_abort_of_gloo, outcome.output
    return [line for line in outcomes[0].output.splitlines() if ": loss " in line or line.startswith("checkpoint: ")]


def run_ranks(
    script: Sequence[str], environment: Mapping[str, str], folder: Path, modules: Sequence[str]
) -> list[Outcome]:
    """The script on every rank, with the variables that torchrun sets."""
    job = {
        **environment,
        "WORLD_SIZE": str(WORKERS),
        "LOCAL_WORLD_SIZE": str(WORKERS),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port_pair()),
    }
    processes = [
        warm_python.start(
            ["torch", *modules], script, {**job, "RANK": str(rank), "LOCAL_RANK": str(rank)}, folder=str(folder)
        )
        for rank in range(WORKERS)
    ]
    deadline = time.monotonic() + LIMIT_SECONDS
    try:
        outputs = [process.communicate(max(1.0, deadline - time.monotonic()))[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [Outcome(process.wait(), output) for process, output in zip(processes, outputs, strict=True)]


@pytest.mark.slow
@pytest.mark.timeout(260)
@pytest.mark.parametrize("recipe", sorted({path.name for path in RECIPES.glob("*.py")} - NOT_OVER_GLOO))
def test_recipe__is_as_over_gloo(recipe: str, short_folder: Path) -> None:
    for needed in NEEDED.get(recipe, ()):
        if find_spec(needed) is None:
            pytest.skip(f"{recipe} needs {needed}, which make recipes installs")
    over_mlt = figures(recipe, "mlt", short_folder)
    assert over_mlt
    if recipe == "fsdp2.py":
        losses = [float(line.split()[3]) for line in over_mlt if ": loss " in line]
        assert losses[0] < 4.0  # without the trained weights that of 465 characters: 6.1
        assert losses == sorted(losses, reverse=True)
    assert over_mlt == figures(recipe, "gloo", short_folder)
