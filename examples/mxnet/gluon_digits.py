"""Gluon trains a small convolutional network on several ranks, with gradients of which a part may be lost.

    mlt launch -n 2 python examples/mxnet/gluon_digits.py

Digits of 28 x 28 pixels are drawn here, so that the script needs no download: each class is a pattern, with noise.
What differs from a script for one process is marked "mlt:".
"""

from __future__ import annotations

import argparse

import mlt.mxnet as hvd
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32, help="Images per rank and step.")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--samples", type=int, default=4096, help="Training images of all ranks.")
parser.add_argument("--lr", type=float, default=0.02, help="Learning rate of one process.")
parser.add_argument("--loss-bound", type=float, default=0.1, help="Max fraction of the gradients that may be lost.")
parser.add_argument("--kvstore", action="store_true", help="Gluon's own trainer with a KVStore: exact.")
args = parser.parse_args()


def digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    patterns = np.random.default_rng(1).standard_normal((10, 1, 28, 28), np.float32)
    values = np.random.default_rng(seed)
    labels = values.integers(0, 10, count)
    return patterns[labels] + values.standard_normal((count, 1, 28, 28), np.float32), labels.astype(np.float32)


hvd.init()  # mlt: the ranks connect
mx.random.seed(hvd.rank())

# mlt: each rank has its share of the images, and all have the same number of batches.
images, labels = digits(args.samples, seed=2)
steps = args.samples // (hvd.size() * args.batch_size)
own = slice(hvd.rank(), steps * hvd.size() * args.batch_size, hvd.size())
train = gluon.data.DataLoader(gluon.data.ArrayDataset(images[own], labels[own]), args.batch_size, shuffle=True)

net = gluon.nn.HybridSequential()
net.add(
    gluon.nn.Conv2D(8, 5, strides=2, activation="relu"),
    gluon.nn.MaxPool2D(),
    gluon.nn.Flatten(),
    gluon.nn.Dense(32, activation="relu"),
    gluon.nn.Dense(10),
)
net.initialize(mx.init.Xavier())
net.hybridize()
loss_function = gluon.loss.SoftmaxCrossEntropyLoss()

# mlt: all ranks begin with rank 0's weights, which come into being in the first step.
hvd.broadcast_parameters(net.collect_params(), root_rank=0)
options = {"learning_rate": args.lr * hvd.size(), "momentum": 0.9}
if args.kvstore:
    trainer = gluon.Trainer(net.collect_params(), "sgd", options, kvstore="dist_sync_mlt")
    batch_size = args.batch_size * hvd.size()  # mlt: a KVStore sums the gradients of all ranks
else:
    # mlt: gradients are averaged over all ranks, exactly in the first epoch, later with loss up to the bound.
    bound = hvd.warm_up(args.loss_bound, steps)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", options, loss_bound=bound)
    batch_size = args.batch_size

for epoch in range(args.epochs):
    total, right = mx.nd.zeros(1), mx.nd.zeros(1)
    for inputs, answers in train:
        with autograd.record():
            outputs = net(inputs)
            loss = loss_function(outputs, answers)
        loss.backward()
        trainer.step(batch_size)
        total += loss.mean()
        right += (outputs.argmax(axis=1) == answers).mean()
    mean_loss, accuracy = hvd.allreduce(mx.nd.concat(total, right, dim=0) / steps).asnumpy()  # mlt: of all ranks
    if hvd.rank() == 0:
        text = f"epoch {epoch}: loss {mean_loss:.4f}, accuracy {accuracy:.3f}"
        if not args.kvstore:
            statistics = trainer.loss_state.steps[-steps:]
            lost = sum(one.missing_bytes for one in statistics) / max(1, sum(one.bytes for one in statistics))
            text += f", gradients lost {lost:.2%}"
        print(text, flush=True)

digests = hvd.allgather_object([param.data().asnumpy().tobytes() for param in net.collect_params().values()])
assert all(digest == digests[0] for digest in digests), "the ranks' weights differ"
if hvd.rank() == 0:
    print("the weights are the same on all ranks", flush=True)
hvd.shutdown()
