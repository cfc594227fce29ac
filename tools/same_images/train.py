"""The training script of ``tools/same_images``: one worker, of one framework, which trains both models from each seed.

    train.py FRAMEWORK FILE EPOCHS SEEDS BOUND      BOUND: of the gradients' loss; "alone": one process without mlt

FRAMEWORK: torch, tensorflow or mxnet. FILE has the images. A job of two workers sees the same images as one process:
each takes half of each batch. The last line of its output is JSON: by model, the test accuracy of each seed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

MODELS = ("vgg", "resnet")
BATCH = 64
RATE = 0.02
MOMENTUM = 0.9
Data = dict[str, Any]
Train = Callable[[str, int], float]


def batches(data: Data, epochs: int, seed: int, rank: int, size: int) -> Iterator[Any]:
    """Positions of a worker's share of each batch; the batches are the same whatever ``size`` is."""
    values = np.random.RandomState(seed)
    count = len(data["train_labels"]) // BATCH * BATCH
    for _ in range(epochs):
        for batch in values.permutation(len(data["train_labels"]))[:count].reshape(-1, BATCH):
            yield batch[rank::size]


def of_torch(data: Data, epochs: int, bound: str) -> Train:
    import torch
    from torch import nn

    hvd: Any = None
    if bound != "alone":
        import mlt.torch.horovod as hvd

        hvd.init()
    torch.set_num_threads(1)
    rank, size = (hvd.rank(), hvd.size()) if hvd else (0, 1)
    images = {part: torch.from_numpy(data[f"{part}_images"]) for part in ("train", "test")}
    labels = {part: torch.from_numpy(data[f"{part}_labels"]) for part in ("train", "test")}

    class Block(nn.Module):
        def __init__(self, inside: int, outside: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(inside, outside, 3, stride, 1), nn.BatchNorm2d(outside), nn.ReLU(),
                nn.Conv2d(outside, outside, 3, 1, 1), nn.BatchNorm2d(outside),
            )  # fmt: skip
            self.short = nn.Identity() if stride == 1 else nn.Conv2d(inside, outside, 1, stride)

        def forward(self, values: Any) -> Any:
            return torch.relu(self.body(values) + self.short(values))

    def model_of(name: str) -> Any:
        if name == "vgg":
            return nn.Sequential(
                nn.Conv2d(1, 16, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(16, 32, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Flatten(), nn.Linear(32 * 3 * 3, 64), nn.ReLU(), nn.Linear(64, 10),
            )  # fmt: skip
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU(), Block(16, 16, 1), Block(16, 32, 2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
        )  # fmt: skip

    def train(name: str, seed: int) -> float:
        torch.manual_seed(seed)
        model = model_of(name)
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
        if hvd:
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            named = [(f"{name} {seed} {one}", parameter) for one, parameter in model.named_parameters()]
            optimizer = hvd.DistributedOptimizer(optimizer, named, loss_bound=float(bound))
        for own in batches(data, epochs, seed, rank, size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images["train"][own]), labels["train"][own]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            return float((model(images["test"]).argmax(1) == labels["test"]).float().mean())

    return train


def of_tensorflow(data: Data, epochs: int, bound: str) -> Train:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow as tf

    hvd: Any = None
    if bound != "alone":
        import mlt.tensorflow as hvd

        hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    rank, size = (hvd.rank(), hvd.size()) if hvd else (0, 1)
    images = {part: tf.constant(data[f"{part}_images"].transpose(0, 2, 3, 1)) for part in ("train", "test")}
    labels = {part: tf.constant(data[f"{part}_labels"]) for part in ("train", "test")}
    layers = keras.layers

    def conv(values: Any, width: int, kernel: int = 3, stride: int = 1) -> Any:
        return layers.Conv2D(width, kernel, stride, padding="same", kernel_initializer="he_normal")(values)

    def norm(values: Any) -> Any:
        return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(values)

    def dense(values: Any, width: int) -> Any:
        return layers.Dense(width, kernel_initializer="he_normal")(values)

    def block(values: Any, width: int, stride: int) -> Any:
        inside = norm(conv(layers.ReLU()(norm(conv(values, width, 3, stride))), width))
        return layers.ReLU()(layers.Add()([inside, values if stride == 1 else conv(values, width, 1, stride)]))

    def model_of(name: str) -> Any:
        given = values = layers.Input(images["train"].shape[1:])
        if name == "vgg":
            for width in (16, 32):
                values = layers.MaxPooling2D()(layers.ReLU()(conv(values, width)))
            values = layers.ReLU()(dense(layers.Flatten()(values), 64))
        else:
            values = block(block(layers.ReLU()(norm(conv(values, 16))), 16, 1), 32, 2)
            values = layers.GlobalAveragePooling2D()(values)
        return keras.Model(given, dense(values, 10))

    def train(name: str, seed: int) -> float:
        keras.utils.set_random_seed(seed)
        model = model_of(name)
        optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
        optimizer.build(model.trainable_variables)
        if hvd:
            hvd.broadcast_variables(model.variables, root_rank=0)
            optimizer = hvd.DistributedOptimizer(optimizer, f"{name}_{seed}", loss_bound=float(bound))
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        @tf.function
        def step(own: Any) -> None:
            with tf.GradientTape() as tape:
                loss = loss_of(tf.gather(labels["train"], own), model(tf.gather(images["train"], own), training=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        for own in batches(data, epochs, seed, rank, size):
            step(tf.constant(own))
        found = tf.argmax(model(images["test"], training=False), 1)
        return float(tf.reduce_mean(tf.cast(found == labels["test"], tf.float32)))

    return train


def of_mxnet(data: Data, epochs: int, bound: str) -> Train:
    os.environ.setdefault("MXNET_CPU_WORKER_NTHREADS", "1")
    import mxnet as mx
    from mxnet import autograd, gluon

    hvd: Any = None
    if bound != "alone":
        import mlt.mxnet as hvd

        hvd.init()
    rank, size = (hvd.rank(), hvd.size()) if hvd else (0, 1)
    nn = gluon.nn

    class Block(gluon.HybridBlock):
        def __init__(self, width: int, stride: int) -> None:
            super().__init__()
            self.body = nn.HybridSequential()
            self.body.add(
                nn.Conv2D(width, 3, stride, 1), nn.BatchNorm(epsilon=1e-5), nn.Activation("relu"),
                nn.Conv2D(width, 3, 1, 1), nn.BatchNorm(epsilon=1e-5),
            )  # fmt: skip
            self.short = None if stride == 1 else nn.Conv2D(width, 1, stride)

        def hybrid_forward(self, F: Any, values: Any) -> Any:
            return F.relu(self.body(values) + (values if self.short is None else self.short(values)))

    def model_of(name: str) -> Any:
        net = nn.HybridSequential()
        if name == "vgg":
            for width in (16, 32):
                net.add(nn.Conv2D(width, 3, 1, 1, activation="relu"), nn.MaxPool2D())
            net.add(nn.Flatten(), nn.Dense(64, activation="relu"), nn.Dense(10))
        else:
            net.add(
                nn.Conv2D(16, 3, 1, 1), nn.BatchNorm(epsilon=1e-5), nn.Activation("relu"), Block(16, 1), Block(32, 2)
            )
            net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(10))
        return net

    def train(name: str, seed: int) -> float:
        mx.random.seed(seed)
        net = model_of(name)
        net.initialize(mx.init.Xavier("gaussian", "in", 2))
        net.hybridize()
        net(mx.nd.array(data["test_images"][:1]))
        options = {"learning_rate": RATE, "momentum": MOMENTUM}
        if hvd:
            hvd.broadcast_parameters(net.collect_params(), root_rank=0, prefix=f"{name} {seed}")
            trainer = hvd.DistributedTrainer(
                net.collect_params(), "sgd", options, prefix=f"{name} {seed}", loss_bound=float(bound)
            )
        else:
            trainer = gluon.Trainer(net.collect_params(), "sgd", options)
        loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
        for own in batches(data, epochs, seed, rank, size):
            with autograd.record():
                loss = loss_of(net(mx.nd.array(data["train_images"][own])), mx.nd.array(data["train_labels"][own]))
            loss.backward()
            trainer.step(len(own))
        found = net(mx.nd.array(data["test_images"])).asnumpy().argmax(1)
        return float((found == data["test_labels"]).mean())

    return train


FRAMEWORKS = {"torch": of_torch, "tensorflow": of_tensorflow, "mxnet": of_mxnet}


def main(framework: str, file: str, epochs: int, seeds: int, bound: str) -> None:
    with np.load(file) as stored:
        data = {name: stored[name] for name in stored.files}
    train = FRAMEWORKS[framework](data, epochs, bound)
    found = {name: [train(name, seed) for seed in range(seeds)] for name in MODELS}
    print(json.dumps(found), flush=True)
    if bound != "alone":
        from mlt._named.basics import shutdown

        shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
