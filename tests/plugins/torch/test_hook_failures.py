"""DDP with the hook over summation services, of which a worker or a service is killed in the middle of training."""

from __future__ import annotations

import re
import sys

import pytest
from checks import assert_names
from launch_jobs import KILL_SERVICE, launch

pytest.importorskip("torch")


TRAINING = f"""{KILL_SERVICE}
import hashlib, sys, torch, torch.distributed as dist, mlt.torch
from torch.nn.parallel import DistributedDataParallel

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
        kill_service()
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
