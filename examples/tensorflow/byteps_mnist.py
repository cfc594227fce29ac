"""A training script for BytePS and TensorFlow 2 of which only the import line differs: digits of 28 x 28 pixels.

    mlt launch -n 2 python examples/tensorflow/byteps_mnist.py

The digits are drawn here, so that the script needs no download: each class is a pattern, with noise. No scheduler or
server is started: the workers sum among themselves.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

import mlt.tensorflow.byteps as bps  # was: import byteps.tensorflow as bps
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--samples", type=int, default=4096)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--fp16-pushpull", action="store_true")
args = parser.parse_args()

bps.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[bps.local_rank()], "GPU")
tf.random.set_seed(bps.rank())

patterns = np.random.default_rng(1).standard_normal((10, 28, 28, 1), np.float32)
values = np.random.default_rng(2)
labels = values.integers(0, 10, args.samples)
images = patterns[labels] + values.standard_normal((args.samples, 28, 28, 1), np.float32)
steps = args.samples // (args.batch_size * bps.size())
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shard(bps.size(), bps.rank())
dataset = dataset.shuffle(args.samples, seed=3).batch(args.batch_size, drop_remainder=True).take(steps)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Input((28, 28, 1)),
        tf.keras.layers.Conv2D(8, 5, strides=2, activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(32, activation="relu"),
        tf.keras.layers.Dense(10),
    ]
)
loss_function = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.SGD(args.lr * bps.size(), momentum=0.9)
compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none


@tf.function
def training_step(batch, targets):
    with tf.GradientTape() as tape:
        loss = loss_function(targets, model(batch, training=True))
    tape = bps.DistributedGradientTape(tape, compression=compression)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


for epoch in range(args.epochs):
    total = 0.0
    for number, (batch, targets) in enumerate(dataset):
        total += training_step(batch, targets)
        if (epoch, number) == (0, 0):  # after the first step, which makes the optimizer's variables
            bps.broadcast_variables(model.variables, root_rank=0)
            bps.broadcast_variables(optimizer.variables, root_rank=0)
    average = float(bps.push_pull(total / steps))
    if bps.rank() == 0:
        print(f"epoch {epoch}: average loss {average:.4f}", flush=True)

weights = tf.concat([tf.reshape(one, [-1]) for one in model.trainable_variables], 0)
assert np.array_equal(weights, bps.broadcast(weights, root_rank=0)), "the workers' weights differ"
milliseconds, megabytes_per_second = bps.get_pushpull_speed()
if bps.rank() == 0:
    print(f"push-pull: {megabytes_per_second:.1f} MB/s", flush=True)
bps.shutdown()
