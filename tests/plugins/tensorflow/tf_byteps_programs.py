"""Programs of one rank, for the tests of BytePS's API for TensorFlow; started by rank_jobs.py with the program's
name."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
import mlt.tensorflow as hvd
import mlt.tensorflow.byteps as bps
import numpy as np
import tensorflow as tf
from byteps_semantics import check_ranks_and_sizes, check_rejected_variables
from semantics import Checks, fails
from tf_programs import both, compile_of, data_of, digest, model_of, recorder_of, same, same_everywhere, total

CHECKS = Checks()
check = CHECKS.add


@check
def ranks_and_sizes() -> None:
    check_ranks_and_sizes(bps, others={"torch", "mlt.torch", "mxnet"})


@check
def push_pull_averages_and_sums_eager_and_in_a_graph() -> None:
    for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64):
        own = tf.cast(tf.fill([3, 2], 2 * (bps.rank() + 1)), dtype)
        for reduce in both(bps.push_pull):
            result = reduce(own)
            assert (result.dtype, result.shape) == (dtype, own.shape)
            same(result, np.full((3, 2), 2 * total() // bps.size()))
        for op in (bps.Sum, "Sum"):
            same(bps.push_pull(own, op=op), np.full((3, 2), 2 * total()))
        same(own, np.full((3, 2), 2 * (bps.rank() + 1)))
    variable = tf.Variable([float(bps.rank() + 1)])
    same(bps.push_pull(variable, "of a variable/", op="Average"), [total() / bps.size()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(bps.push_pull(tf.ones(2), average=False), [bps.size()] * 2)
    compressed = bps.push_pull(tf.constant([0.1]), compression=bps.Compression.fp16, op=bps.Sum)
    assert compressed.dtype == tf.float32
    same(compressed, [np.float32(np.float16(0.1)) * bps.size()])


@check
def push_pull_of_slices_gathers_their_rows() -> None:
    given = tf.IndexedSlices(tf.constant([[1.0 + bps.rank()]]), tf.constant([bps.rank()]), tf.constant([4, 1]))
    same(tf.convert_to_tensor(bps.push_pull(given, op=bps.Sum)), [[1.0], [2.0], [0.0], [0.0]])


@check
def push_pull_has_a_gradient() -> None:
    for op, factor in ((bps.Average, 1.0), (bps.Sum, bps.size())):
        value = tf.Variable([1.0, 2.0])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(bps.push_pull(value, op=op))
        same(tape.gradient(loss, value), [factor] * 2)


@check
def several_tensors_may_have_one_scope() -> None:
    def step(one: tf.Tensor, other: tf.Tensor) -> Any:
        return bps.push_pull(one, "layer/", op=bps.Sum), bps.push_pull(other, scope="layer/", op=bps.Sum)

    for function in both(step):
        for _ in range(2):
            one, other = function(tf.ones([2]) * (bps.rank() + 1), tf.ones([3]))
            same(one, [total()] * 2)
            same(other, [bps.size()] * 3)


@check
def options_without_a_meaning_here_are_refused() -> None:
    own = tf.ones([2])
    with fails(ValueError, "enable_async=True", "leave it out"):
        bps.push_pull(own, enable_async=True)
    for op in (bps.Adasum, "Adasum", "Max"):
        with fails(ValueError, "Average and Sum"):
            bps.push_pull(own, op=op)
        with fails(ValueError, "Average and Sum"):
            bps.DistributedGradientTape(tf.GradientTape(), op=op)
    with fails(ValueError, "op"):
        bps.push_pull(own, average=True, op="Sum")
    with fails(ValueError, "device_dense='GPU:0'", "leave device_dense out"):
        bps.push_pull(own, device_dense="GPU:0")
    with fails(TypeError, "name", "'gradient_0'"):
        bps.broadcast(own, 0, name=3)
    with fails(NotImplementedError, "DistributedOptimizer"):
        bps.distribute.MirroredStrategy(devices=["/gpu:0"])
    with fails(RuntimeError, "broadcast_variables"):
        bps.broadcast_global_variables(0)
    with fails(TypeError, "complex64"):
        bps.push_pull(tf.zeros([1], tf.complex64))
    check_rejected_variables(bps)


@check
def broadcasts_from_another_root() -> None:
    root = bps.size() - 1
    own = tf.fill([2, 3], bps.rank() + 1.0)
    for move in both(lambda one: bps.broadcast(one, root)):
        same(move(own), np.full((2, 3), root + 1.0))
    with ThreadPoolExecutor(2) as threads:  # matched by name, also if the workers begin with another one
        names = ["one", "other"] if bps.rank() else ["other", "one"]
        started = {
            name: threads.submit(bps.broadcast, tf.constant(bps.rank() + len(name)), root, "scope/", name)
            for name in names
        }
        assert {name: int(one.result()) for name, one in started.items()} == {name: root + len(name) for name in names}
    variables = [tf.Variable([float(bps.rank())]), tf.Variable(tf.fill([2, 2], bps.rank()))]
    assert bps.broadcast_variables(variables, root_rank=root) is None
    for variable in variables:
        same(variable, np.full(variable.shape, root))
    variables[0].assign([float(bps.rank())])

    @tf.function
    def again() -> None:
        bps.broadcast_variables(variables, 0, "again/")

    again()
    same(variables[0], [0.0])
    bps.broadcast_variables([], 0)


@check
def shapes_that_differ_are_an_error_everywhere_and_the_next_call_works() -> None:
    own = tf.ones([2 + bps.rank()])
    with fails(hvd.HorovodInternalError, "shape differs", "2 on rank 0", "3 on rank 1"):
        bps.push_pull(own)
    same(bps.push_pull(tf.ones([2]), op=bps.Sum), [bps.size()] * 2)
    with fails(tf.errors.InvalidArgumentError, "shape differs", "2 on rank 0", "3 on rank 1"):
        tf.function(lambda: bps.push_pull(own, scope="differs/"))()
    with fails(hvd.HorovodInternalError, "shape differs", "3 on rank 1"):
        bps.broadcast_variables([tf.Variable(own)], 0)
    same(bps.push_pull(tf.ones([2]), op=bps.Sum), [bps.size()] * 2)


@check
def speed_counts_what_was_pushed() -> None:
    bps.get_pushpull_speed()
    before = time.time()
    bps.push_pull(tf.zeros([250_000]))
    now, rate = bps.get_pushpull_speed()
    assert abs(now / 1000 - time.time()) < 10
    assert rate > 0
    assert 1e6 / (rate * 1e6) <= time.time() - before + 1.0
    assert bps.get_pushpull_speed()[1] == 0.0


@check
def tape_trains_as_one_process_would() -> None:
    for compression, wraps in ((bps.Compression.none, False), (bps.Compression.fp16, True)):
        weights = tf.Variable(tf.fill([3], float(bps.rank())))
        bps.broadcast_variables([weights], root_rank=1)
        sparse = tf.Variable(tf.zeros([4, 2]))

        def step(weights: Any = weights, sparse: Any = sparse, compression: Any = compression) -> Any:
            with tf.GradientTape() as tape:
                row = tf.gather(sparse, [bps.rank()])
                loss = tf.reduce_sum(weights * (bps.rank() + 1.0)) + tf.reduce_sum(row)
            tape = bps.DistributedGradientTape(tape, compression=compression, op="Average", sparse_as_dense=True)
            gradients = tape.gradient(loss, [weights, sparse])
            for variable, gradient in zip((weights, sparse), gradients, strict=True):
                variable.assign_sub(gradient)
            return gradients

        function = tf.function(step) if wraps else step
        for _ in range(3):
            function()
        same(weights, [1.0 - 3 * total() / bps.size()] * 3)
        same(sparse, np.repeat([[-3 / bps.size()]] * 2 + [[0.0]] * 2, 2, 1))
        same_everywhere([weights, sparse])


@check
def optimizer_of_keras_trains_and_all_workers_agree() -> None:
    import keras
    import mlt.tensorflow.byteps.keras as bps_keras
    from mlt.tensorflow.byteps.keras import callbacks

    rates: list[float] = []
    model = model_of(keras, seed=10 + bps.rank())
    compile_of(keras, model, bps_keras.DistributedOptimizer(keras.optimizers.SGD(0.4, momentum=0.5)))
    inputs, labels = data_of(bps.rank(), 32)
    history = model.fit(
        inputs,
        labels,
        batch_size=16,
        epochs=3,
        verbose=0,
        callbacks=[
            callbacks.BroadcastGlobalVariablesCallback(1),
            callbacks.MetricAverageCallback(),
            callbacks.LearningRateWarmupCallback(warmup_epochs=2),
            callbacks.LearningRateScheduleCallback(0.5, start_epoch=2, initial_lr=0.4),
            recorder_of(keras, rates),
        ],
    ).history
    np.testing.assert_allclose(rates, [0.25, 0.3, 0.35, 0.4, 0.2, 0.2], rtol=1e-5)
    same_everywhere([*model.weights, *model.optimizer.variables])
    assert len(set(hvd.allgather_object(str(history["loss"])))) == 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        loaded = bps_keras.load_model(path, compression=bps_keras.Compression.fp16)
        assert digest(loaded.optimizer.variables) == digest(model.optimizer.variables)
        loaded.fit(inputs, labels, batch_size=16, verbose=0)
        same_everywhere(loaded.weights)
    with fails(ValueError, "device='GPU:0'", "leave device out"):
        callbacks.BroadcastGlobalVariablesCallback(0, device="GPU:0")
    assert float(bps_keras.push_pull(bps.rank() + 1.0, name="loss")) == total() / bps.size()
    assert bps_keras.push_pull([bps.rank() + 1], average=False).numpy().tolist() == [total()]
    assert int(bps_keras.broadcast(bps.rank(), 1, name="number")) == 1


@check
def optimizer_of_keras_in_a_loop_of_ones_own() -> None:
    import keras

    for passes in (1, 2):
        value = keras.Variable([0.0])
        optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(1.0), "sgd", backward_passes_per_step=passes)
        for _ in range(2):
            optimizer.apply([tf.constant([bps.rank() + 1.0])], [value])
        same(value, [-2 * total() / bps.size()])
    with fails(ValueError, "use_locking=True", "leave it out"):
        bps.DistributedOptimizer(keras.optimizers.SGD(1.0), use_locking=True)
    with fails(ValueError, "already"):
        bps.DistributedOptimizer(bps.DistributedOptimizer(keras.optimizers.SGD(1.0)))
    with fails(TypeError, "DistributedGradientTape"):
        bps.DistributedOptimizer("sgd")


@check
def script_of_tensorflow_1_trains_in_a_session() -> None:
    v1 = tf.compat.v1
    for op, divisor in (("Average", bps.size()), (bps.Sum, 1)):
        with tf.Graph().as_default():
            inputs = v1.placeholder(tf.float32, [2], "inputs")
            weights = v1.get_variable("weights", initializer=np.full(2, bps.rank(), np.float32))
            sgd = v1.train.GradientDescentOptimizer(1.0)
            optimizer = bps.DistributedOptimizer(sgd, op=op, use_locking=True)
            train = optimizer.minimize(tf.reduce_sum(weights * inputs))
            summed = bps.push_pull(inputs, op=bps.Sum)
            with v1.train.MonitoredTrainingSession(hooks=[bps.BroadcastGlobalVariablesHook(1)]) as session:
                feed = {inputs: [bps.rank() + 1.0] * 2}
                session.run(train, feed)
                session.run(train, feed)
                assert session.run(weights).tolist() == [1.0 - 2 * total() / divisor] * 2
                assert session.run(summed, feed).tolist() == [total()] * 2
        assert optimizer.get_name() == "DistributedGradientDescentOptimizer"
        assert optimizer.get_slot_names() == []
        assert optimizer.variables() == []
    with fails(ValueError, "backward_passes_per_step=2"):
        bps.DistributedOptimizer(v1.train.AdamOptimizer(), backward_passes_per_step=2)
    with fails(ValueError, "already"):
        bps.DistributedOptimizer(optimizer)
    with fails(ValueError, "Average and Sum"):
        bps.DistributedOptimizer(v1.train.AdamOptimizer(), op=bps.Adasum)


@check
def suspends_and_resumes_under_other_ranks() -> None:
    rank = bps.rank()
    bps.suspend()
    with fails(ValueError):
        bps.rank()
    bps.resume(num_workers=2, num_servers=0, global_rank=1 - rank)
    assert (bps.rank(), bps.size(), bps.local_size()) == (1 - rank, 2, 2)
    same(bps.push_pull(tf.constant([bps.rank()]), "named/", op=bps.Sum), [1])
    bps.suspend()
    bps.resume(num_workers=2, num_servers=0, global_rank=rank)
    same(bps.broadcast(tf.constant([bps.rank()]), 1), [1])


def semantics(checks: list[str]) -> dict[str, str]:
    """The failures of these checks, by name; empty: none."""
    return CHECKS.in_job(bps, checks, after_each=hvd.barrier)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
