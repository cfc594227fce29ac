"""ZeRO stage 1: the optimiser's state is divided among the workers (ZeroRedundancyOptimizer).

torchrun --nproc-per-node 2 --master-addr 127.0.0.1 --master-port 29500 examples/pytorch/zero.py
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def main(backend: str = "mlt") -> None:
    dist.init_process_group(backend)  # "mlt" instead of "gloo"
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    weights = torch.randn(20, 1)
    replica = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(replica.parameters(), torch.optim.Adam, lr=0.01)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(1, 61):
        x = torch.randn(32, 20)
        loss = torch.nn.functional.mse_loss(replica(x), x @ weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.8f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
