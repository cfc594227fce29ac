"""DDP with the hook over summation services, of which a worker or a service is killed in the middle of training."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from checks import assert_names

pytest.importorskip("torch")


def launch(*words: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    """``mlt launch WORDS``, to its end."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("MLT_")}
    command = [sys.executable, "-m", "mlt.cli.main", "launch", *words]
    return subprocess.run(command, env=own, capture_output=True, text=True, timeout=seconds, check=False)


TRAINING = """
import hashlib, os, signal, sys, torch, torch.distributed as dist, mlt.torch
from pathlib import Path
from torch.nn.parallel import DistributedDataParallel

def service():
    for place in Path("/proc").iterdir():
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getppid() and b"serve" in (place / "cmdline").read_bytes().split(bytes(1)):
                return int(place.name)
        except (OSError, ValueError):
            pass

dist.init_process_group("mlt")
rank = dist.get_rank()
torch.manual_seed(0)
replica = DistributedDataParallel(torch.nn.Linear(700, 500), broadcast_buffers=False)
state = mlt.torch.BoundedLossState(services=True, loss_bound=0)
replica.register_comm_hook(state, mlt.torch.bounded_loss_hook)
optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(12):
    if step == 5 and sys.argv[1] == "worker" and rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 5 and sys.argv[1] == "service" and rank == 0:
        os.kill(service(), signal.SIGKILL)
    optimizer.zero_grad()
    replica(torch.randn(8, 700)).square().mean().backward()
    optimizer.step()
weights = b"".join(one.detach().numpy().tobytes() for one in replica.parameters())
print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("killed", "left"), [("worker", 2), ("service", 3)])
def test_hook__trains_on_without_a_worker_or_a_service(killed: str, left: int) -> None:
    done = launch(
        "-n", "3", "-s", "2", f"--max-dead-{killed}s", "1", "--", sys.executable, "-c", TRAINING, killed, seconds=110
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    weights = re.findall(r"weights (\w+)", done.stdout)
    assert len(weights) == left
    assert len(set(weights)) == 1
    assert_names(done.stderr, "SIGKILL", "continue without it")
