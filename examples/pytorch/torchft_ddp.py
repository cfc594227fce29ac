"""torchft: DistributedDataParallel whose replicas may be killed and come back. What differs from gloo is
``ProcessGroupMlt`` in place of ``ProcessGroupGloo``.

python examples/pytorch/torchft_ddp.py

It starts torchft's lighthouse and three replicas, of which the last kills itself in step 11. The others discard that
step and continue. After step 20 the replica is started again, takes the others' state, and trains with them. In a real
job ``torchft_lighthouse`` runs on one host, and a supervisor restarts each replica that ends.

Its libraries are mlt's extra ``recipes``: pip install '.[recipes]' in the checkout.
"""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from mlt.torch.torchft import ProcessGroupMlt
from torchft.checkpointing.http_transport import HTTPTransport
from torchft.coordination import LighthouseServer
from torchft.ddp import DistributedDataParallel
from torchft.manager import Manager
from torchft.optim import OptimizerWrapper

REPLICAS = 3
KILLED_IN_STEP, BACK_AFTER_STEP, STEPS_TOGETHER = 11, 20, 10


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def loss_of(model: torch.nn.Module, step: int, replica: int) -> torch.Tensor:
    """The loss of a batch that depends on step and replica: a discarded step is repeated."""
    x = torch.randn(32, 20, generator=torch.Generator().manual_seed(100 * step + replica))
    return torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))


class Checkpoints(HTTPTransport):
    """Gives a replica that came back the state. The replicas are on one host, whose name need not resolve."""

    def metadata(self) -> str:
        return super().metadata().replace(socket.gethostname(), "localhost", 1)


def train(replica: int, life: str) -> None:
    module, inner = model_and_optimizer()
    together = 0  # steps with the replica that came back

    def state_dict() -> dict[str, object]:
        return {"model": module.state_dict(), "optimizer": inner.state_dict(), "together": together}

    def load_state_dict(state: dict) -> None:
        nonlocal together
        module.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])
        together = state["together"]

    # Of this replica, which is one process. torchrun makes one for a replica of several.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupMlt(timeout=timedelta(seconds=30)),  # instead of ProcessGroupGloo
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        min_replica_size=REPLICAS - 1,
        use_async_quorum=False,
        replica_id=f"replica-{replica}",
        hostname="localhost",
        checkpoint_transport=Checkpoints(timeout=timedelta(seconds=30), num_chunks=0),
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    model = DistributedDataParallel(manager, module)
    optimizer = OptimizerWrapper(manager, inner)
    while together < STEPS_TOGETHER:
        optimizer.zero_grad()  # torchft agrees on the replicas of this step
        step = manager.current_step() + 1
        if manager.num_participants() < REPLICAS and (step == 1 or step > BACK_AFTER_STEP):
            time.sleep(0.05)  # steps this small leave a replica that starts no CPU time
            if step == 1:
                continue  # until all have started
        loss = loss_of(model, step, replica)
        if replica == REPLICAS - 1 and life == "first" and step == KILLED_IN_STEP:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()
        if manager.current_step() < step:
            print(f"step {step}: discarded", flush=True)
        elif step <= BACK_AFTER_STEP and step % 5 == 0:
            print(f"step {step}: loss {loss.item():.8f}, {manager.num_participants()} replicas", flush=True)
        together += manager.current_step() == step > BACK_AFTER_STEP and manager.num_participants() == REPLICAS
    digest = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in module.parameters()))
    print(f"parameters: {digest.hexdigest()}", flush=True)
    manager.shutdown(wait=False)


def main() -> None:
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=REPLICAS - 1)
    # It says the host's name, which need not lead to 127.0.0.1.
    address = f"http://127.0.0.1:{lighthouse.address().rpartition(':')[2]}"

    def start(replica: int, life: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, __file__, str(replica), life],
            env={**os.environ, "TORCHFT_LIGHTHOUSE": address},
            stdout=subprocess.PIPE,
            text=True,
        )

    replicas = [start(replica, "first") for replica in range(REPLICAS)]
    try:
        for line in replicas[0].stdout:
            print(f"replica 0, {line}", end="")
            if line.startswith(f"step {BACK_AFTER_STEP}:"):
                assert replicas[-1].wait() == -signal.SIGKILL
                replicas[-1] = start(REPLICAS - 1, "second")
        for number, replica in enumerate(replicas[1:], start=1):
            for line in replica.communicate()[0].splitlines():
                print(f"replica {number}, {line}")
        assert [replica.wait() for replica in replicas] == [0] * REPLICAS
    finally:
        for replica in replicas:
            replica.kill()
        lighthouse.shutdown()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(int(sys.argv[1]), sys.argv[2])
    else:
        main()
