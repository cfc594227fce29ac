"""A training script for BytePS of which only the import line differs: digits of 28 x 28 pixels.

    torchrun --nproc-per-node 2 examples/byteps_mnist.py

The digits are drawn here, so that the script needs no download: each class is a pattern, with noise. No scheduler or
server is started: the workers sum among themselves.
"""

import argparse

import mlt.torch.byteps as bps  # was: import byteps.torch as bps
import torch
import torch.nn.functional as functional
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--samples", type=int, default=4096)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--fp16-pushpull", action="store_true")
args = parser.parse_args()

bps.init()
torch.manual_seed(42)
torch.set_num_threads(1)

patterns = torch.randn(10, 28 * 28, generator=torch.Generator().manual_seed(1))
generator = torch.Generator().manual_seed(2)
labels = torch.randint(10, (args.samples,), generator=generator)
images = patterns[labels] + torch.randn(args.samples, 28 * 28, generator=generator)
dataset = torch.utils.data.TensorDataset(images, labels)
sampler = torch.utils.data.distributed.DistributedSampler(dataset, num_replicas=bps.size(), rank=bps.rank())
loader = torch.utils.data.DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)

model = nn.Sequential(nn.Linear(28 * 28, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = bps.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=args.lr * bps.size(), momentum=0.5),
    named_parameters=model.named_parameters(),
    compression=bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none,
)
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)

for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    total = 0.0
    for batch, targets in loader:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch), targets)
        loss.backward()
        optimizer.step()
        total += loss.item()
    average = bps.push_pull(torch.tensor(total / len(loader)), name="average loss").item()
    if bps.rank() == 0:
        print(f"epoch {epoch}: average loss {average:.4f}")

digest = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
assert torch.equal(digest, bps.broadcast_object(digest)), "the ranks' parameters differ"
bps.shutdown()
