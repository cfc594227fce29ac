"""Data-parallel training over mlt: the smallest complete script. Two workers on this machine:

    torchrun --nproc-per-node 2 --master-addr 127.0.0.1 --master-port 29500 examples/ddp_bounded_loss.py

Compared with any DDP script: the backend's name, the import of mlt.torch and the hook. Up to a tenth of each gradient
bucket may be lost on each hop between two workers; all replicas stay equal to the last bit. This model's gradients
are 5.6 KB, carried as one small all-reduce, which loses nothing (docs/collectives.md). With summation services
(docs/pytorch.md) the same script uses them.
"""

import mlt.torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("mlt")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    replica = DistributedDataParallel(model)
    state = mlt.torch.BoundedLossState(loss_bound=0.1)
    replica.register_comm_hook(state, mlt.torch.bounded_loss_hook)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.05)

    weights = torch.randn(20, 1)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(200):
        x = torch.randn(32, 20)
        loss = torch.nn.functional.mse_loss(replica(x), x @ weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 50 == 49:
            lost = sum(s.missing_bytes for s in state.steps) / sum(s.bytes for s in state.steps)
            print(f"step {step + 1}: loss {loss.item():.4f}, gradients lost {lost:.3%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
