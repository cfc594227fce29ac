"""Gradient accumulation and bfloat16 (AMP): four micro-batches for each step, gradients averaged with the last.

torchrun --nproc-per-node 2 --master-addr 127.0.0.1 --master-port 29500 examples/pytorch/accumulation.py
"""

import contextlib
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

MICRO_BATCHES = 4


def main(backend: str = "mlt") -> None:
    dist.init_process_group(backend)  # "mlt" instead of "gloo"
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    weights = torch.randn(20, 1)
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(replica.parameters(), lr=0.01)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(1, 61):
        optimizer.zero_grad()
        total = 0.0
        for number in range(MICRO_BATCHES):
            x = torch.randn(16, 20)
            is_last = number == MICRO_BATCHES - 1
            # no_sync: nothing is sent until the step's last micro-batch.
            with contextlib.nullcontext() if is_last else replica.no_sync():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = torch.nn.functional.mse_loss(replica(x), x @ weights) / MICRO_BATCHES
                loss.backward()
            total += loss.item()
        optimizer.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {total:.8f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
