"""Keras trains a small convolutional network on several ranks, with gradients of which a part may be lost.

    mlt launch -n 2 python examples/tensorflow/keras_digits.py

Digits of 28 x 28 pixels are drawn here, so that the script needs no download: each class is a pattern, with noise.
What differs from a script for one process is marked "mlt:".
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

import keras
import mlt.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32, help="Images per rank and step.")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--samples", type=int, default=4096, help="Training images of all ranks.")
parser.add_argument("--lr", type=float, default=0.02, help="Learning rate of one process.")
parser.add_argument("--loss-bound", type=float, default=0.1, help="Max fraction of the gradients that may be lost.")
parser.add_argument("--log-dir", help="Folder for TensorBoard's files of rank 0.")
parser.add_argument("--save", help="File for the trained model, with the suffix .keras.")
args = parser.parse_args()


def digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    patterns = np.random.default_rng(1).standard_normal((10, 28, 28, 1), np.float32)
    values = np.random.default_rng(seed)
    labels = values.integers(0, 10, count)
    return patterns[labels] + values.standard_normal((count, 28, 28, 1), np.float32), labels


hvd.init()  # mlt: the ranks connect
keras.utils.set_random_seed(hvd.rank())
tf.config.threading.set_intra_op_parallelism_threads(1)

# mlt: each rank has its share of the images, and all have the same number of batches.
images, labels = digits(args.samples, seed=2)
steps = args.samples // (hvd.size() * args.batch_size)
own = slice(hvd.rank(), steps * hvd.size() * args.batch_size, hvd.size())
train = tf.data.Dataset.from_tensor_slices((images[own], labels[own])).shuffle(args.samples).batch(args.batch_size)

model = keras.Sequential(
    [
        keras.layers.Input((28, 28, 1)),
        keras.layers.Conv2D(8, 5, strides=2, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(10),
    ]
)
# mlt: gradients are averaged over all ranks, exactly in the first epoch, later with loss up to the bound.
scaled = args.lr * hvd.size()
optimizer = hvd.DistributedOptimizer(
    keras.optimizers.SGD(scaled, momentum=0.9), loss_bound=hvd.warm_up(args.loss_bound, steps)
)
model.compile(
    optimizer=optimizer,
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
    jit_compile=False,  # mlt: XLA compiles no communication
)
history = model.fit(
    train,
    epochs=args.epochs,
    verbose=0,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # mlt: all ranks begin with rank 0's weights
        hvd.callbacks.MetricAverageCallback(),  # mlt: before callbacks that use metrics
        hvd.callbacks.LearningRateWarmupCallback(scaled, warmup_epochs=1),
        hvd.callbacks.GradientLossCallback(args.log_dir if hvd.rank() == 0 else None),
    ],
).history
if hvd.rank() == 0:
    for epoch, (loss, accuracy, lost) in enumerate(
        zip(history["loss"], history["accuracy"], history["gradient_loss"], strict=True)
    ):
        print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.3f}, gradients lost {lost:.2%}", flush=True)
    if args.save:  # mlt: one rank writes
        model.save(args.save)

digests = hvd.allgather_object([variable.numpy().tobytes() for variable in model.weights])
assert all(digest == digests[0] for digest in digests), "the ranks' weights differ"
hvd.shutdown()
