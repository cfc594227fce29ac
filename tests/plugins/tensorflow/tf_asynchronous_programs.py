"""Programs of one rank, for the tests of asynchronous training with TensorFlow; started by rank_jobs.py."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["BYTEPS_ENABLE_ASYNC"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
import mlt.tensorflow as hvd
import mlt.tensorflow.byteps as bps
import numpy as np
import tensorflow as tf
from semantics import Checks, fails, step_until_rank_1_fails
from tf_programs import compile_of, data_of, digest, model_of, same, total

from mlt.errors import ConfigError

CHECKS = Checks()
check = CHECKS.add
v1 = tf.compat.v1


def sgd(**options: Any) -> Any:
    import keras

    return bps.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)


def variables_of(*types: str) -> list[Any]:
    import keras

    return [keras.Variable([[1.0, 2.0, 4.0]], dtype=one) for one in types or ("float32",)]


def stepper(optimizer: Any, variables: list[Any], wrap: Callable[[Any], Any] = lambda function: function) -> Any:
    """A function that makes a step with this gradient of each element."""
    optimizer.build(variables)

    def step(gradient: tf.Tensor) -> None:
        optimizer.apply([tf.fill(one.shape, tf.cast(gradient, one.dtype)) for one in variables], variables)

    of = wrap(step)
    return lambda gradient: of(tf.constant(gradient))


@check
def variables_have_the_steps_of_all_workers() -> None:
    for wrap in (lambda function: function, tf.function):
        variables = variables_of("float32", "float64", "float16", "bfloat16")
        variables[0].assign(variables[0] + float(hvd.rank()))
        bps.broadcast_variables(variables, root_rank=0)
        step = stepper(sgd(), variables, wrap)
        for _ in range(3 + 2 * hvd.rank()):  # each worker at its own pace
            step(0.25 * (hvd.rank() + 1))
        hvd.barrier()
        step(0.0)  # takes what the others added last
        for one in variables:
            same(one, np.array([[1.0, 2.0, 4.0]]) - (3 * 0.25 + 5 * 0.5))
        hvd.barrier()


@check
def no_worker_waits_for_the_step_of_another() -> None:
    variables = variables_of()
    step = stepper(sgd(), variables)
    step(0.0)
    if hvd.rank() == 0:
        for _ in range(5):
            step(0.5)
    # Rank 1 begins its next step only after this.
    assert hvd.broadcast_object("five steps", root_rank=0) == "five steps"
    if hvd.rank() == 1:
        step(0.5)
        same(variables[0], [[-2.0, -1.0, 1.0]])
    hvd.barrier()


@check
def accumulated_gradients_are_one_step() -> None:
    for wrap in (lambda function: function, tf.function):
        variables = variables_of()
        step = stepper(sgd(backward_passes_per_step=2), variables, wrap)
        for _ in range(4):
            step(0.25)
        hvd.barrier()
        for _ in range(2):
            step(0.0)
        same(variables[0], np.array([[1.0, 2.0, 4.0]]) - 4 * 0.25 * hvd.size())
        hvd.barrier()


@check
def a_model_learns_in_fit() -> None:
    import keras
    import mlt.tensorflow.byteps.keras as bps_keras

    model = model_of(keras, seed=hvd.rank())
    optimizer = bps_keras.DistributedOptimizer(keras.optimizers.SGD(0.2, momentum=0.5))
    compile_of(keras, model, optimizer)
    inputs, labels = data_of(hvd.rank())
    start = bps_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    epochs = 40 + 5 * hvd.rank()
    losses = model.fit(inputs, labels, batch_size=16, epochs=epochs, verbose=0, callbacks=[start]).history["loss"]
    assert losses[-1] < 0.8 * losses[0], losses
    hvd.barrier()
    zeros = [tf.zeros_like(one) for one in model.trainable_variables]
    for _ in range(40):  # until the momentum that each worker has by itself adds nothing
        optimizer.apply(zeros, model.trainable_variables)
    hvd.barrier()
    optimizer.apply(zeros, model.trainable_variables)
    np.testing.assert_allclose(
        *hvd.allgather_object([one.numpy().sum() for one in model.trainable_variables]), rtol=1e-3, atol=1e-4
    )


@check
def optimizers_of_tensorflow_1_in_a_session() -> None:
    with tf.Graph().as_default():
        gradient = v1.placeholder(tf.float32, [], "gradient")
        weights = v1.get_variable("weights", initializer=np.full(2, hvd.rank(), np.float32))
        steps = v1.train.get_or_create_global_step()
        optimizer = bps.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
        train = optimizer.minimize(tf.reduce_sum(weights) * gradient, global_step=steps)
        with v1.train.MonitoredTrainingSession(hooks=[bps.BroadcastGlobalVariablesHook(1)]) as session:
            for _ in range(2 + hvd.rank()):
                session.run(train, {gradient: 0.5})
            assert int(session.run(steps)) == 2 + hvd.rank()
            hvd.barrier()
            session.run(train, {gradient: 0.0})
            assert session.run(weights).tolist() == [1.0 - 0.5 * 5] * 2
    assert optimizer.get_name() == "DistributedGradientDescentOptimizer"
    assert optimizer.variables() == []
    hvd.barrier()


@check
def different_variables_are_rejected_on_all_workers() -> None:
    import keras

    variables = variables_of()
    variables[0].assign(variables[0] + float(hvd.rank()))
    step = stepper(sgd(), variables)
    with fails(hvd.HorovodInternalError, "values", "rank(s) 1", "broadcast_variables"):
        step(1.0)
    bps.broadcast_variables(variables, root_rank=0)
    step(1.0)
    odd = [keras.Variable(np.zeros(2 + hvd.rank(), np.float32), name="odd")]
    with fails(hvd.HorovodInternalError, "names, shapes and types", "rank(s) 1"):
        stepper(sgd(), odd)(1.0)
    hvd.barrier()


@check
def what_it_cannot_do_is_rejected() -> None:
    import keras
    import mlt.tensorflow.byteps.keras as bps_keras

    plain = keras.optimizers.SGD(1.0)
    for of in (bps, bps_keras):
        with fails(ValueError, "no compression"):
            of.DistributedOptimizer(plain, compression=bps.Compression.fp16)
        with fails(TypeError, "DistributedGradientTape"):
            of.DistributedOptimizer("sgd")
        with fails(ValueError, "already"):
            of.DistributedOptimizer(of.DistributedOptimizer(plain))
        with fails(ValueError, "device_dense='GPU:0'"):
            of.DistributedOptimizer(plain, device_dense="GPU:0")
    with fails(ValueError, "no compression"):
        bps.DistributedOptimizer(v1.train.AdamOptimizer(), compression=bps.Compression.fp16)
    with fails(ValueError, "already"):
        bps.DistributedOptimizer(bps.DistributedOptimizer(v1.train.AdamOptimizer()))
    with fails(ConfigError, "DistributedGradientTape", "BYTEPS_ENABLE_ASYNC"):
        bps.DistributedGradientTape(tf.GradientTape())
    with fails(ConfigError, "load_model", "BYTEPS_ENABLE_ASYNC"):
        bps_keras.load_model("model.keras")
    with fails(ValueError, "enable_async", "DistributedOptimizer"):
        bps.push_pull(tf.ones(1), enable_async=True)
    variables = variables_of()
    with fails(ValueError, "jit_compile"):
        stepper(sgd(), variables, lambda function: tf.function(function, jit_compile=True))(1.0)
    hvd.barrier()


@check
def a_resumed_job_begins_again() -> None:
    variables = variables_of()
    step = stepper(sgd(), variables)
    rank, size = bps.rank(), bps.size()
    step(0.5)
    bps.suspend()  # waits for the other's last step
    bps.resume(num_workers=size, num_servers=0, global_rank=rank)
    bps.broadcast_variables(variables, root_rank=0)
    start = digest(variables)
    assert len(set(hvd.allgather_object(start))) == 1
    before = variables[0].numpy()
    step(0.5)
    hvd.barrier()
    step(0.0)
    same(variables[0], before - 0.5 * size)
    assert total() == 3
    hvd.barrier()


def semantics(checks: list[str]) -> dict[str, str]:
    """The failures of these checks, by name; empty: none."""
    return CHECKS.in_job(bps, checks)


def failing(how: str) -> str:
    """Rank 1 fails after two steps; the error of the others, in a graph."""
    bps.init()
    step = stepper(sgd(), variables_of(), tf.function)
    try:
        step_until_rank_1_fails(lambda: step(0.5), rank=bps.rank(), how=how)
    except (hvd.HorovodInternalError, tf.errors.OpError) as error:
        return str(error)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
