"""A training script for BytePS and Gluon of which only the import line differs: digits of 28 x 28 pixels.

    mlt launch -n 2 python examples/mxnet/byteps_mnist.py

The digits are drawn here, so that the script needs no download: each class is a pattern, with noise. No scheduler or
server is started: the workers sum among themselves.
"""

import argparse

import mlt.mxnet.byteps as bps  # was: import byteps.mxnet as bps
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--samples", type=int, default=4096)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--fp16-pushpull", action="store_true")
args = parser.parse_args()

bps.init()
context = mx.gpu(bps.local_rank()) if mx.context.num_gpus() else mx.cpu(bps.local_rank())
mx.random.seed(bps.rank())

patterns = np.random.default_rng(1).standard_normal((10, 1, 28, 28), np.float32)
values = np.random.default_rng(2)
labels = values.integers(0, 10, args.samples)
images = patterns[labels] + values.standard_normal((args.samples, 1, 28, 28), np.float32)
own = slice(bps.rank(), args.samples - args.samples % bps.size(), bps.size())
dataset = gluon.data.ArrayDataset(images[own], labels[own].astype(np.float32))
loader = gluon.data.DataLoader(dataset, args.batch_size, shuffle=True, last_batch="discard")

model = gluon.nn.HybridSequential()
model.add(
    gluon.nn.Conv2D(8, 5, strides=2, activation="relu"),
    gluon.nn.Flatten(),
    gluon.nn.Dense(32, activation="relu"),
    gluon.nn.Dense(10),
)
model.initialize(mx.init.MSRAPrelu(), ctx=context)
model.hybridize()
loss_function = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = bps.DistributedTrainer(
    model.collect_params(),
    "sgd",
    {"learning_rate": args.lr * bps.size(), "momentum": 0.9},
    root_rank=0,
    compression_params={"fp16": args.fp16_pushpull},
)

for epoch in range(args.epochs):
    total = mx.nd.zeros(1, ctx=context)
    for batch, targets in loader:
        batch, targets = batch.as_in_context(context), targets.as_in_context(context)
        with autograd.record():
            loss = loss_function(model(batch), targets)
        loss.backward()
        trainer.step(args.batch_size)
        total += loss.mean()
    average = total / len(loader)
    bps.byteps_declare_tensor("average loss")
    bps.byteps_push_pull(average, name="average loss", is_average=True)
    if bps.rank() == 0:
        print(f"epoch {epoch}: average loss {average.asscalar():.4f}", flush=True)

weights = {name: param.data().copy() for name, param in model.collect_params().items()}
bps.broadcast_parameters(weights, root_rank=0)
for name, param in model.collect_params().items():
    assert np.array_equal(weights[name].asnumpy(), param.data().asnumpy()), f"the workers' {name} differ"
bps.shutdown()
