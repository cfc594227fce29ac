"""Hugging Face Accelerate. On CPUs it insists on gloo, but takes the process group that is there: one line more.

torchrun --nproc-per-node 2 --master-addr 127.0.0.1 --master-port 29500 examples/pytorch/hf_accelerate.py

Its libraries are mlt's extra ``recipes``: pip install '.[recipes]' in the checkout.
"""

import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main(backend: str = "mlt") -> None:
    dist.init_process_group(backend)  # this line is new
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    x = torch.randn(1024, 20)
    y = x @ torch.randn(20, 1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(TensorDataset(x, y), batch_size=32))
    for epoch in range(1, 4):
        for inputs, targets in batches:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        everywhere = accelerator.gather(loss.detach().reshape(1)).mean()
        if accelerator.is_main_process:
            print(f"epoch {epoch}: loss {everywhere.item():.8f}")
    accelerator.end_training()  # destroys the process group


if __name__ == "__main__":
    main(*sys.argv[1:])
