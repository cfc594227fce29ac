"""A training script for Horovod of which only the import line differs: digits of 28 x 28 pixels.

    torchrun --nproc-per-node 2 examples/horovod_mnist.py

The digits are drawn here, so that the script needs no download: each class is a pattern, with noise.
"""

import argparse

import mlt.torch.horovod as hvd  # was: import horovod.torch as hvd
import torch
import torch.nn.functional as functional
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--samples", type=int, default=4096)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--use-adasum", action="store_true")
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 8, kernel_size=5, stride=2)
        self.hidden = nn.Linear(8 * 6 * 6, 32)
        self.output = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = functional.max_pool2d(functional.relu(self.convolution(images)), 2)
        return self.output(functional.relu(self.hidden(features.flatten(1))))


def digits(count: int, seed: int) -> torch.utils.data.TensorDataset:
    patterns = torch.randn(10, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    return torch.utils.data.TensorDataset(patterns[labels] + torch.randn(count, 1, 28, 28, generator=generator), labels)


def metric_average(value: float, name: str) -> float:
    return hvd.allreduce(torch.tensor(value), name=name).item()


hvd.init()
torch.manual_seed(42)
torch.set_num_threads(1)

train_dataset = digits(args.samples, seed=2)
train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
train_loader = torch.utils.data.DataLoader(train_dataset, batch_size=args.batch_size, sampler=train_sampler)

model = Net()
lr_scaler = hvd.size() if not args.use_adasum else 1
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * lr_scaler, momentum=0.5)

hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
    op=hvd.Adasum if args.use_adasum else hvd.Average,
)

for epoch in range(args.epochs):
    model.train()
    train_sampler.set_epoch(epoch)
    total = 0.0
    for images, labels in train_loader:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    average = metric_average(total / len(train_loader), "avg_loss")
    if hvd.rank() == 0:
        print(f"epoch {epoch}: average loss {average:.4f}")

digests = hvd.allgather_object([parameter.sum().item() for parameter in model.parameters()])
assert all(digest == digests[0] for digest in digests), "the ranks' parameters differ"
