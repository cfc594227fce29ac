"""torch's own communication hooks run over mlt unchanged: gradients travel as float16, then as PowerSGD's factors.

torchrun --nproc-per-node 2 --master-addr 127.0.0.1 --master-port 29500 examples/pytorch/compression.py
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def main(backend: str = "mlt") -> None:
    dist.init_process_group(backend)  # "mlt" instead of "gloo"
    for name, state, hook in (
        ("float16", None, default_hooks.fp16_compress_hook),
        ("PowerSGD", powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook),
    ):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        weights = torch.randn(20, 1)
        replica = DistributedDataParallel(model)
        replica.register_comm_hook(state, hook)
        optimizer = torch.optim.SGD(replica.parameters(), lr=0.05)
        torch.manual_seed(1 + dist.get_rank())
        for _ in range(50):
            x = torch.randn(32, 20)
            loss = torch.nn.functional.mse_loss(replica(x), x @ weights)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"{name}: loss {loss.item():.8f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
