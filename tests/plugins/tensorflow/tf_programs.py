"""Programs of one rank, for the TensorFlow tests; started by rank_jobs.py with the program's name and its options."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
import mlt.tensorflow as hvd
import numpy as np
import tensorflow as tf
from semantics import Checks, fails, operations_of

CHECKS = Checks()
check = CHECKS.add


def same(one: Any, other: Any) -> None:
    values = np.asarray(tf.cast(one, tf.float64))
    assert np.array_equal(values, np.asarray(other, np.float64)), f"{values} is not {other}"


def total() -> int:
    """Sum of all ranks + 1."""
    return hvd.size() * (hvd.size() + 1) // 2


def digest(variables: Any) -> str:
    """The bits of variables, as text."""
    return "".join(np.asarray(tf.convert_to_tensor(one)).tobytes().hex() for one in variables)


def same_everywhere(variables: Any) -> None:
    """All ranks have the same bits."""
    assert len(set(hvd.allgather_object(digest(variables)))) == 1


FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
INTEGERS = (tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64)


def both(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The function in eager execution, and as a graph."""
    return [function, tf.function(function)]


@check
def ranks_and_sizes() -> None:
    assert (hvd.rank(), hvd.size()) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    assert (hvd.local_rank(), hvd.local_size()) == (hvd.rank(), hvd.size())
    same(hvd.size_op(), hvd.size())
    same(hvd.rank_op(), hvd.rank())
    same(hvd.local_rank_op() + hvd.local_size_op(), hvd.rank() + hvd.size())
    same(hvd.process_set_included_op(), 1)
    assert not {"torch", "mlt.torch", "jax"} & sys.modules.keys()


@check
def allreduce_of_every_type_eager_and_in_a_graph() -> None:
    for dtype in (*FLOATS, *INTEGERS):
        tensor = tf.cast(tf.fill([3, 2], hvd.rank() + 1), dtype)
        for op, expected in ((hvd.Sum, total()), (hvd.Min, 1), (hvd.Max, hvd.size())):
            for reduce in both(lambda one, op=op: hvd.allreduce(one, op=op)):
                result = reduce(tensor)
                assert (result.dtype, result.shape) == (dtype, tensor.shape)
                same(result, np.full((3, 2), expected))
        same(tensor, np.full((3, 2), hvd.rank() + 1))
    flags = tf.constant([hvd.rank() == 0, True, False])
    assert hvd.allreduce(flags, op=hvd.Max).numpy().tolist() == [True, True, False]


@check
def allreduce_of_scalars_empty_tensors_and_with_factors() -> None:
    for reduce in both(lambda one: hvd.allreduce(one, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)):
        same(reduce(tf.constant(3.0)), 6.0 * hvd.size())
        assert reduce(tf.zeros([0, 3])).shape == (0, 3)
    same(hvd.allreduce(tf.constant([1.0 + hvd.rank()])), [total() / hvd.size()])
    with fails(ValueError, "average"):
        hvd.allreduce(tf.zeros(1), average=True, op=hvd.Sum)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(hvd.allreduce(tf.ones(1), average=False), [hvd.size()])
    with fails(TypeError, "complex64", "float32"):
        hvd.allreduce(tf.zeros(1, tf.complex64))
    with fails(TypeError, "string"):
        tf.function(lambda: hvd.allreduce(tf.constant(["a"])))()


@check
def allreduce_of_slices_has_factors_and_compression() -> None:
    given = tf.IndexedSlices(tf.constant([[1.0 + hvd.rank(), 0.1]]), tf.constant([hvd.rank()]), tf.constant([4, 2]))
    for reduce in both(
        lambda one: hvd.allreduce(
            one, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0, compression=hvd.Compression.fp16
        )
    ):
        result = reduce(given)
        same(result.indices, list(range(hvd.size())))
        same(result.values[:, 0], [2.0 * (rank + 1) for rank in range(hvd.size())])
        assert result.values.dtype == tf.float32
        assert np.array_equal(result.values[:, 1], [2 * np.float32(np.float16(0.1))] * hvd.size())
    same(hvd.allreduce(given).values[:, 0], [(rank + 1.0) / hvd.size() for rank in range(hvd.size())])


@check
def grouped_and_compressed() -> None:
    tensors = [tf.ones([2]) * (hvd.rank() + 1), tf.cast(tf.fill([3], hvd.rank()), tf.int32)]
    one, other = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    same(one, [total()] * 2)
    same(other, [total() - hvd.size()] * 3)
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        result = hvd.allreduce(tf.constant([0.1]), op=hvd.Average, compression=compression)
        assert result.dtype == tf.float32
        assert 0.0 < abs(float(result[0]) - 0.1) < 1e-3


@check
def allgather_broadcast_alltoall_reducescatter() -> None:
    rank, size = hvd.rank(), hvd.size()
    for gather in both(hvd.allgather):
        same(gather(tf.fill([rank + 1, 2], float(rank))), [[r, r] for r in range(size) for _ in range(r + 1)])
    one, other = hvd.grouped_allgather([tf.constant([rank]), tf.constant([rank * 2.0])])
    same(tf.stack([tf.cast(one, tf.float32), other]), [list(range(size)), [2 * r for r in range(size)]])
    for send in both(lambda tensor: hvd.broadcast(tensor, 1)):
        same(send(tf.constant([rank, 7])), [1, 7])
    for exchange in both(lambda tensor: hvd.alltoall(tensor, splits=tf.constant([1, 2]))):
        received, counts = exchange(tf.constant([10 * rank, 10 * rank + 1, 10 * rank + 2]))
        same(received, [0, 10] if rank == 0 else [1, 2, 11, 12])
        same(counts, [1, 1] if rank == 0 else [2, 2])
    same(hvd.alltoall(tf.constant([rank, rank + 5])), [0, 1] if rank == 0 else [5, 6])
    for scatter in both(lambda tensor: hvd.reducescatter(tensor, op=hvd.Sum)):
        same(scatter(tf.constant([1.0, 2.0, 3.0])), [2.0, 4.0] if rank == 0 else [6.0])


@check
def gradients_of_the_collectives() -> None:
    rank, size = hvd.rank(), hvd.size()
    cases: list[tuple[Callable[[Any], Any], Any]] = [
        (lambda x: hvd.allreduce(x, op=hvd.Sum), [size * 3.0, size * 4.0]),
        (lambda x: hvd.allgather(x), [size * 3.0, size * 4.0] if rank == 0 else [size * 5.0, size * 6.0]),
        (lambda x: hvd.broadcast(x, 1), [size * 3.0, size * 4.0] if rank == 1 else [0.0, 0.0]),
        (lambda x: hvd.alltoall(x), [3.0, 3.0] if rank == 0 else [4.0, 4.0]),
        (lambda x: hvd.reducescatter(x, op=hvd.Sum), [size * 3.0, size * 3.0]),
    ]
    factors = tf.constant([3.0, 4.0, 5.0, 6.0])

    def gradient(function: Callable[[Any], Any], value: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(value)
            result = function(value)
            loss = tf.reduce_sum(result * factors[: tf.shape(result)[0]])
        return tape.gradient(loss, value)

    for function, expected in cases:
        for run in both(lambda value, function=function: gradient(function, value)):
            same(run(tf.constant([1.0, 2.0])), expected)


@check
def objects_variables_process_sets_and_join() -> None:
    rank = hvd.rank()
    assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1}
    assert hvd.broadcast_object_fn(1)(rank) == 1
    assert hvd.broadcast_object(rank, 1, None, "named") == 1
    assert hvd.allgather_object(rank) == hvd.allgather_object(rank, None, "named") == [0, 1]
    for call in (hvd.broadcast_object, hvd.allgather_object, hvd.broadcast_object_fn):
        with fails(ValueError, f"{call.__name__}(session=)", "leave it out"):
            call(0, session=object())
    with fails(ValueError, "TensorFlowState(session=)", "leave it out"):
        hvd.elastic.TensorFlowState([], object())
    with fails(ValueError, "use_locking=True", "leave it out"):
        hvd.DistributedOptimizer(None, "named", True)
    variables = [tf.Variable([1.0 * rank, 2.0]), tf.Variable(rank, dtype=tf.int64), tf.Variable(tf.zeros([0]))]
    hvd.broadcast_variables(variables, root_rank=1)
    same(variables[0], [1.0, 2.0])
    same(variables[1], 1)
    assert hvd.broadcast_([tf.Variable(rank)], 1)[0].numpy() == 1
    own = hvd.add_process_set([1])
    if rank == 1:
        same(hvd.allreduce(tf.constant([5.0]), op=hvd.Sum, process_set=own), [5.0])
    assert hvd.remove_process_set(own)
    if rank == 0:
        same(hvd.allreduce(tf.constant([5.0]), op=hvd.Sum, name="extra"), [5.0])  # the other has joined
    assert hvd.join() == 0
    hvd.barrier()


@check
def disagreements_are_errors_everywhere_and_the_next_call_works() -> None:
    for reduce in both(lambda one: hvd.allreduce(one, name="odd")):
        with fails((hvd.HorovodInternalError, tf.errors.OpError), "'odd'", "3 on rank 0", "4 on rank 1"):
            reduce(tf.zeros([3 + hvd.rank()]))
    with fails(hvd.HorovodInternalError, "element type", "float32 on rank 0", "float64 on rank 1"):
        hvd.allreduce(tf.zeros([3], tf.float64 if hvd.rank() else tf.float32), name="odd")
    same(hvd.allreduce(tf.ones([2]), name="odd", op=hvd.Sum), [hvd.size()] * 2)
    value = tf.Variable(tf.zeros([2 + hvd.rank()]))
    with fails(hvd.HorovodInternalError, "shape"):
        hvd.broadcast_variables([value], 0)
    same(value, [0.0] * (2 + hvd.rank()))


@check
def several_operations_in_a_graph_keep_one_order() -> None:
    # Both depend on nothing: TensorFlow may start them in any order, here with one thread for each.
    @tf.function
    def independent(one: Any, other: Any) -> Any:
        results = [hvd.allreduce(one * i + other, op=hvd.Sum) for i in range(20)]
        return tf.stack(results)

    for _ in range(3):
        result = independent(tf.constant([1.0]), tf.constant([float(hvd.rank())]))
        same(result[:, 0], [hvd.size() * i + (hvd.size() * (hvd.size() - 1)) // 2 for i in range(20)])


@check
def a_rank_that_retraces_alone_has_the_same_names() -> None:
    @tf.function
    def reduce(values: Any) -> Any:
        def body(i: Any, sum_: Any) -> Any:
            return i + 1, sum_ + hvd.allreduce(tf.reduce_sum(values), op=hvd.Sum)

        return tf.while_loop(lambda i, _: i < 2, body, [0, 0.0])[1]

    for step in range(4):
        length = 3 if step % 2 and hvd.rank() else 2  # rank 1 traces a second time in step 1
        expected = 2 * (2 + 2 * (hvd.size() - 1) if not step % 2 else 2 + 3 * (hvd.size() - 1))
        same(reduce(tf.ones([length])), expected)


@check
def xla_is_refused_with_what_to_pass_instead() -> None:
    @tf.function(jit_compile=True)
    def compiled(one: Any) -> Any:
        return hvd.allreduce(one)

    with fails(ValueError, "'compiled'", "jit_compile=False"):
        compiled(tf.ones(2))


@check
def tape_averages_dense_and_sparse_gradients() -> None:
    rank, size = hvd.rank(), hvd.size()
    table = tf.Variable(tf.zeros([6, 2]))
    weights = tf.Variable([1.0, 2.0])
    unused, own = tf.Variable([9.0]), tf.Variable([4.0])

    def gradients(sparse_as_dense: bool) -> Any:
        with tf.GradientTape() as tape:
            rows = tf.gather(table, [rank, 3])
            loss = tf.reduce_sum(rows) * 2.0 + tf.reduce_sum(weights * (rank + 1.0)) + tf.reduce_sum(own * own)
        distributed = hvd.DistributedGradientTape(tape, sparse_as_dense=sparse_as_dense)
        assert isinstance(distributed, tf.GradientTape)
        distributed.register_local_source(own)
        return distributed.gradient(loss, {"table": table, "weights": weights, "unused": unused, "own": own})

    for as_dense in (False, True):
        for compute in both(lambda as_dense=as_dense: gradients(as_dense)):
            found = compute()
            assert isinstance(found["table"], tf.IndexedSlices) == (not as_dense)
            dense = np.zeros((6, 2))
            dense[3] = 2.0
            dense[:size] += 2.0 / size
            same(tf.convert_to_tensor(found["table"]), dense)
            same(found["weights"], [total() / size] * 2)
            assert found["unused"] is None
            same(found["own"], [8.0 / size])
    with fails(ValueError, "schedule", "BoundedLossState"):
        hvd.DistributedGradientTape(tf.GradientTape(), loss_bound=hvd.warm_up(0.1, 5))


@check
def local_gradients_are_divided_by_the_ranks_of_the_set() -> None:
    table, weights = tf.Variable(tf.zeros([4, 2])), tf.Variable([1.0])
    everyone, alone = hvd.global_process_set, hvd.add_process_set([0])
    for process_set in (everyone, alone) if hvd.rank() == 0 else (everyone,):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [hvd.rank()])) + tf.reduce_sum(weights * 3.0)
        distributed = hvd.DistributedGradientTape(tape, process_set=process_set)
        distributed.register_local_source(table)
        rows, gradient = distributed.gradient(loss, [table, weights])
        assert isinstance(rows, tf.IndexedSlices)
        same(rows.values, [[1.0 / process_set.size()] * 2])
        same(rows.indices, [hvd.rank()])
        same(gradient, [3.0])
    assert hvd.remove_process_set(alone)


@check
def tape_names_the_variables_that_differ() -> None:
    weights = [tf.Variable([1.0], name="common"), tf.Variable([1.0], name="extra")]
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(weights[0] * 2.0 + weights[1] * 3.0)
    distributed = hvd.DistributedGradientTape(tape)
    with fails(hvd.HorovodInternalError, "number of tensors", "1 on rank 0", "2 on rank 1", "common:0 float32 1"):
        distributed.gradient(loss, weights[: 1 + hvd.rank()])
    same(distributed.gradient(loss, weights)[1], [3.0])


@check
def tape_names_gradients_that_are_sparse_on_one_rank_only() -> None:
    table, weight = tf.Variable(tf.ones([3, 2]), name="table"), tf.Variable([1.0], name="weight")
    for options in ({}, {"loss_bound": hvd.BoundedLossState(0.1, bucket_bytes=8)}):
        for variables in ([weight, table], [table]):
            started = time.monotonic()
            with tf.GradientTape() as tape:
                rows = tf.gather(table, [0]) if hvd.rank() == 1 else table * 2.0
                loss = tf.reduce_sum(rows) + tf.reduce_sum(weight)
            place = len(variables) - 1
            with fails(hvd.HorovodInternalError, "sparse gradients", "none on rank 0", f"{place} on rank 1", "table"):
                hvd.DistributedGradientTape(tape, **options).gradient(loss, variables)
            assert time.monotonic() - started < 5.0  # at once, not once all ranks wait


@check
def lossy_gradients_are_layers_and_counted() -> None:
    seen: list[tuple[int, int]] = []

    def schedule(step: int, layer: int) -> float:
        seen.append((step, layer))
        return 0.2 if step else 0.0

    state = hvd.BoundedLossState(schedule, bucket_bytes=4_000)
    weights = [tf.Variable(tf.ones([1_000])) for _ in range(3)]
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(one * (hvd.rank() + 1.0)) for one in weights])
        found = hvd.DistributedGradientTape(tape, loss_bound=state).gradient(loss, weights)
        for one in found:
            same(one, [total() / hvd.size()] * 1_000)  # loopback loses nothing
    assert seen == [(step, layer) for step in range(2) for layer in range(3)]
    assert [(one.step, one.buckets, one.bytes, one.missing_bytes) for one in state.steps] == [
        (0, 3, 12_000, 0),
        (1, 3, 12_000, 0),
    ]
    for bad in (-0.1, 1.0, "100%"):
        with fails(ValueError, "[0, 1)"):
            hvd.BoundedLossState(bad)
    assert hvd.BoundedLossState("10%").loss_bound == 0.1
    with fails(ValueError, "Average or Sum"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum, loss_bound=0.1)


@check
def groups_are_one_operation_each() -> None:
    sizes = (3, 1, 4, 1, 5)
    weights = [tf.Variable(tf.zeros([size])) for size in sizes]
    table = tf.Variable(tf.zeros([4, 2]))

    def gradients(**options: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.add_n(
                [tf.reduce_sum(one * (hvd.rank() + 1.0) * size) for one, size in zip(weights, sizes, strict=True)]
            )
            loss += tf.reduce_sum(tf.gather(table, [hvd.rank()]))
        return hvd.DistributedGradientTape(tape, **options).gradient(loss, [*weights, table])

    def operations(**options: Any) -> list[str]:
        found: list[Any] = []
        names = operations_of(hvd, lambda: found.extend(gradients(**options)))
        for one, size in zip(found, sizes, strict=False):
            same(one, [size * total() / hvd.size()] * size)
        return names

    assert operations() == ["gradient_tape", "gradient_tape/sparse"]
    expected = ["gradient_tape/layer 0 of 2", "gradient_tape/layer 1 of 2", "gradient_tape/sparse"]
    # With the comparison before the first step, under the name of the exchange.
    assert operations(groups=2) == ["gradient_tape", *expected]
    assert operations(groups=[[weights[4], weights[0]]]) == expected
    assert operations(groups=[[weights[2]], [weights[1], table]])[-2:] == [
        "gradient_tape/layer 2 of 3",
        "gradient_tape/sparse",
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(operations(num_groups=9)) == 1 + len(sizes) + 1  # the comparison, the layers, the sparse gradients
    assert any("num_groups" in str(one.message) for one in caught)
    seen: list[int] = []
    state = hvd.BoundedLossState(lambda step, layer: seen.append(layer) or 0.1)
    assert operations(groups=3, loss_bound=state)[:3] == [f"gradient_tape/layer {i} of 3" for i in range(3)]
    assert seen == [0, 1, 2]
    assert [one.buckets for one in state.steps] == [3]
    for bad, fact in ((0, "not 0"), ([[weights[0]], [weights[0]]], "once"), ([["name"]], "tf.Variable")):
        with fails(ValueError, "groups", fact):
            hvd.DistributedGradientTape(tf.GradientTape(), groups=bad)


@check
def groups_of_an_optimizer_are_of_its_variables() -> None:
    import keras

    def trained(**options: Any) -> tuple[Any, list[str]]:
        model = model_of(keras, seed=1)
        groups = options.pop("layers", None)
        if groups is not None:
            options["groups"] = [model.layers[number].trainable_variables for number in groups]
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), name="grouped", **options)
        compile_of(keras, model, optimizer)
        data = data_of(hvd.rank(), 32)
        names = operations_of(hvd, lambda: model.fit(*data, batch_size=16, shuffle=False, verbose=0))
        return digest(model.weights), names

    plain, (name, *rest) = trained(sparse_as_dense=True)
    assert rest == []
    for options in ({"groups": 2}, {"layers": [3, 2]}, {"layers": [0, 3]}):
        weights, names = trained(sparse_as_dense=True, **options)
        assert weights == plain
        layers = 2 if "groups" in options else 3
        of_layers = [one for one in names if one != name]  # without the comparison before the first step
        assert of_layers == [f"{name}/layer {number} of {layers}" for number in range(layers)]


@check
def devices_other_than_the_cpu_are_refused() -> None:
    import keras
    import mlt.tensorflow.keras as of_keras

    same(hvd.allreduce(tf.ones(1), op=hvd.Sum, device_dense="/cpu:0", device_sparse="/CPU:0"), [hvd.size()])
    calls: list[tuple[str, Callable[..., Any]]] = [
        ("device_dense", lambda **given: hvd.allreduce(tf.ones(1), **given)),
        ("device_sparse", lambda **given: hvd.grouped_allreduce([tf.ones(1)], **given)),
        ("device_dense", lambda **given: hvd.reducescatter(tf.ones(2), **given)),
        ("device_sparse", lambda **given: hvd.DistributedGradientTape(tf.GradientTape(), **given)),
        ("device_dense", lambda **given: hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), **given)),
        ("device", lambda **given: of_keras.callbacks.BroadcastGlobalVariablesCallback(0, **given)),
        ("device", lambda **given: of_keras.callbacks.MetricAverageCallback(**given)),
    ]
    for argument, call in calls:
        with fails(ValueError, f"{argument}='/gpu:0'", f"leave {argument} out"):
            call(**{argument: "/gpu:0"})
    with fails(ValueError, "legacy_opts"):
        of_keras.load_model("model.keras", legacy_opts=True)


def model_of(keras: Any, *, seed: int, units: int = 8) -> Any:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Input((4,), dtype="int32"),
            keras.layers.Embedding(16, 6),
            keras.layers.Flatten(),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dense(3),
        ]
    )


def data_of(rank: int, rows: int = 48) -> tuple[Any, Any]:
    values = np.random.default_rng(rank)
    inputs = values.integers(0, 16, (rows, 4)).astype(np.int32)
    return inputs, (inputs.sum(1) % 3).astype(np.int32)


def recorder_of(keras: Any, rates: list[float]) -> Any:
    """A callback that appends the learning rate of every batch to ``rates``."""

    class Recorder(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate.numpy()))

    return Recorder()


def compile_of(keras: Any, model: Any, optimizer: Any, **options: Any) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"], **options)
    return model


@check
def fit_is_as_of_one_process_with_the_whole_batch() -> None:
    import keras

    inputs, labels = data_of(0, 64)
    alone = compile_of(keras, model_of(keras, seed=1), keras.optimizers.SGD(0.1, momentum=0.9))
    alone.fit(inputs, labels, batch_size=32, shuffle=False, verbose=0)
    together = compile_of(
        keras, model_of(keras, seed=1), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    )
    # Every rank has its half of each batch.
    half = [i for i in range(64) if (i % 32) // 16 == hvd.rank()]
    together.fit(inputs[half], labels[half], batch_size=16, shuffle=False, verbose=0)
    same_everywhere(together.weights)
    for one, other in zip(alone.weights, together.weights, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-6)


@check
def fit_with_callbacks_in_graph_and_eager() -> None:
    import keras
    from mlt.tensorflow.keras import callbacks

    for eagerly in (False, True):
        model = model_of(keras, seed=10 + hvd.rank())  # differs between ranks until the broadcast
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1), loss_bound=hvd.warm_up(0.1, 2))
        steps = {"run_eagerly": True} if eagerly else {"steps_per_execution": 2}
        compile_of(keras, model, optimizer, **steps)
        with tempfile.TemporaryDirectory() as folder:
            inputs, labels = data_of(hvd.rank())
            history = model.fit(
                inputs,
                labels,
                batch_size=16,
                epochs=2,
                verbose=0,
                callbacks=[
                    callbacks.BroadcastGlobalVariablesCallback(0),
                    callbacks.MetricAverageCallback(),
                    callbacks.LearningRateWarmupCallback(0.02, warmup_epochs=1),
                    callbacks.GradientLossCallback(folder),
                ],
            ).history
            written = [
                (value.tag, event.step)
                for path in Path(folder).iterdir()
                for record in tf.data.TFRecordDataset(str(path))
                for event in [tf.compat.v1.Event.FromString(record.numpy())]
                for value in event.summary.value
            ]
        same_everywhere([*model.weights, *optimizer.variables])
        assert len(set(hvd.allgather_object(str(history["loss"])))) == 1
        assert history["gradient_loss"] == [0.0, 0.0]
        assert [step for tag, step in written if tag == "mlt/gradient_loss"] == list(range(6))
        assert abs(float(optimizer.learning_rate.numpy()) - 0.02) < 1e-6
        assert optimizer.loss_state.latest.step == 5


@check
def fit_with_last_batches_of_different_sizes_retraces_on_its_own() -> None:
    import keras

    model = compile_of(keras, model_of(keras, seed=1), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    inputs, labels = data_of(hvd.rank(), 36 if hvd.rank() else 48)  # 16, 16, 4 and 16, 16, 16
    model.fit(inputs, labels, batch_size=16, epochs=2, verbose=0)
    same_everywhere(model.weights)


@check
def fit_of_models_that_differ_is_an_error_everywhere() -> None:
    import keras

    model = model_of(keras, seed=1, units=8 + hvd.rank())
    compile_of(keras, model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    before = digest(model.weights)
    with fails(tf.errors.InvalidArgumentError, "shape differs", "24x8", "24x9", "rank 1", "/dense", "/embedding"):
        model.fit(*data_of(0, 16), verbose=0)
    assert digest(model.weights) == before


@check
def warmup_raises_the_rate_from_that_of_one_process() -> None:
    import keras
    from mlt.tensorflow.keras import callbacks

    rates: list[float] = []
    model = compile_of(keras, model_of(keras, seed=1), hvd.DistributedOptimizer(keras.optimizers.SGD(0.8)))
    inputs, labels = data_of(hvd.rank(), 16)
    warmup = callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=2)
    decay = callbacks.LearningRateScheduleCallback(0.8, lambda epoch: 0.5, start_epoch=2)
    model.fit(inputs, labels, batch_size=8, epochs=3, verbose=0, callbacks=[warmup, decay, recorder_of(keras, rates)])
    np.testing.assert_allclose(rates, [0.5, 0.6, 0.7, 0.8, 0.4, 0.4], rtol=1e-5)


@check
def momentum_is_corrected_when_the_rate_changes() -> None:
    import keras
    from mlt.tensorflow.keras import callbacks

    rates = [0.5, 0.5, 0.25, 0.25, 1.0, 1.0]
    start, momentum, rho = 0.125, 0.75, 0.5

    def expected(corrects: bool, kind: str) -> float:
        """The weight, by the formulas of the optimizers for gradients of 1."""
        weight, steps, square, before = 0.0, 0.0, 0.0, start
        for rate in rates:
            square = rho * square + (1 - rho)
            now = momentum * (rate / before if corrects else 1.0)
            steps = now * steps + rate / (np.sqrt(square) if kind == "RMSprop" else 1.0)
            weight -= momentum * steps + rate if kind == "Nesterov" else steps
            before = rate
        return weight

    def trained(optimizer: Any, corrects: bool, *, in_batches: bool, **options: Any) -> float:
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.layers.Input((1,)), layer])
        model.compile(optimizer=optimizer, loss=lambda _, one: keras.ops.mean(one), **options)
        batches = 2 if in_batches else 1
        schedule = callbacks.LearningRateScheduleCallback(
            1.0,
            lambda epoch: rates[round(epoch * batches)],
            staircase=not in_batches,
            momentum_correction=corrects,
        )
        ones = np.ones((4 * batches, 1), np.float32)
        model.fit(ones, ones, batch_size=4, epochs=len(rates) // batches, verbose=0, callbacks=[schedule])
        return float(layer.kernel.numpy()[0, 0])

    def sgd(**options: Any) -> Any:
        return keras.optimizers.SGD(start, momentum=momentum, **options)

    for corrects in (True, False):
        for in_batches, options in ((False, {}), (True, {}), (True, {"run_eagerly": True})):
            found = trained(hvd.DistributedOptimizer(sgd()), corrects, in_batches=in_batches, **options)
            np.testing.assert_allclose(found, expected(corrects, "SGD"), rtol=1e-5)
        found = trained(keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=2.0), corrects, in_batches=True)
        np.testing.assert_allclose(found, expected(corrects, "SGD"), rtol=1e-5)
        rmsprop = keras.optimizers.RMSprop(start, rho=rho, momentum=momentum)
        np.testing.assert_allclose(
            trained(rmsprop, corrects, in_batches=False), expected(corrects, "RMSprop"), rtol=1e-4
        )
    assert expected(True, "SGD") != expected(False, "SGD")
    adam = [trained(keras.optimizers.Adam(start), corrects, in_batches=False) for corrects in (True, False)]
    assert adam[0] == adam[1]

    class Own(keras.optimizers.Adam):
        momentum = 0.5

    with fails(ValueError, "Own", "momentum_correction=False"):
        trained(Own(start), True, in_batches=False)
    trained(Own(start), False, in_batches=False)


@check
def local_variables_stay_as_they_are() -> None:
    import keras
    from mlt.tensorflow.keras import PartialDistributedOptimizer, callbacks

    model = model_of(keras, seed=10 + hvd.rank())
    compile_of(keras, model, keras.optimizers.SGD(0.0))  # training changes nothing
    own = model.layers[-1]
    before = digest(own.weights)
    callback = callbacks.BroadcastGlobalVariablesCallback(0, local_variables=own.trainable_variables)
    model.fit(*data_of(0, 16), verbose=0, callbacks=[callback])
    assert digest(own.weights) == before
    assert len(set(hvd.allgather_object(before))) == hvd.size()
    same_everywhere(model.weights[:-2])
    # With accumulated gradients, too.
    layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros") for _ in range(2)]
    for layer in layers:
        layer.build((None, 1))
    variables = [layer.kernel for layer in layers]
    optimizer = PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0), local_layers=layers[1], backward_passes_per_step=2
    )
    step = tf.function(lambda: optimizer.apply([tf.fill([1, 1], hvd.rank() + 1.0)] * 2, variables))
    step()
    step()
    same(variables[0], [[-2 * total() / hvd.size()]])
    same(variables[1], [[-2 * (hvd.rank() + 1.0) / hvd.size()]])


@check
def mixed_precision_and_accumulated_gradients() -> None:
    import keras

    inputs, labels = data_of(hvd.rank(), 32)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        plain = compile_of(keras, model_of(keras, seed=1), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
        with fails(ValueError, "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))"):
            plain.fit(inputs, labels, verbose=0)
        scaled = hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)))
        model = compile_of(keras, model_of(keras, seed=1), scaled)
        # Rank 0 has an infinite gradient: all ranks leave out that step.
        model.fit(inputs, labels, batch_size=16, verbose=0)
        before = digest(model.trainable_variables)
        scaled.apply(
            [tf.fill(one.shape, float("inf") if hvd.rank() == 0 else 1.0) for one in model.trainable_variables],
            model.trainable_variables,
        )
        assert digest(model.trainable_variables) == before
        same_everywhere(model.weights)
    finally:
        keras.config.set_dtype_policy("float32")
    half = tf.Variable(tf.ones([2], tf.bfloat16))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(half * tf.cast(hvd.rank() + 1, tf.bfloat16))
    (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [half])
    assert gradient.dtype == tf.bfloat16
    same(gradient, [total() / hvd.size()] * 2)
    for averages in (False, True):
        value = keras.Variable([0.0])
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=averages
        )
        for _ in range(2):
            optimizer.apply([tf.constant([hvd.rank() + 1.0])], [value])
        same(value, [-total() / hvd.size() * (1 if averages else 2)])


@check
def optimizer_in_a_loop_of_ones_own_and_with_local_layers() -> None:
    import keras
    from mlt.tensorflow.keras import PartialDistributedOptimizer

    layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros") for _ in range(2)]
    for layer in layers:
        layer.build((None, 1))
    variables = [layer.kernel for layer in layers]
    optimizer = PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=layers[1])

    @tf.function
    def step() -> None:
        optimizer.apply_gradients([(tf.fill([1, 1], hvd.rank() + 1.0), one) for one in variables])

    step()
    same(variables[0], [[-total() / hvd.size()]])
    same(variables[1], [[-(hvd.rank() + 1.0) / hvd.size()]])
    with fails(ValueError, "already"):
        hvd.DistributedOptimizer(optimizer)
    with fails(TypeError, "DistributedGradientTape"):
        hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))


@check
def saved_models_load_with_and_without_mlt() -> None:
    import keras
    import mlt.tensorflow.keras as of_keras

    model = compile_of(keras, model_of(keras, seed=1), hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    inputs, labels = data_of(hvd.rank(), 16)
    model.fit(inputs, labels, batch_size=8, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        plain, loaded = keras.models.load_model(path), of_keras.load_model(path)
    assert type(plain.optimizer) is keras.optimizers.Adam
    assert isinstance(loaded.optimizer, keras.optimizers.Adam)
    assert loaded.optimizer.loss_state.is_exact
    assert digest(loaded.optimizer.variables) == digest(model.optimizer.variables) == digest(plain.optimizer.variables)
    loaded.fit(inputs, labels, batch_size=8, verbose=0)
    same_everywhere(loaded.weights)
    assert of_keras.allreduce([1, 2], op=hvd.Sum).tolist() == [2, 4]
    assert of_keras.allgather([hvd.rank()]).tolist() == [0, 1]
    assert of_keras.broadcast(hvd.rank(), 1) == 1
    assert of_keras.reducescatter([1.0, 2.0], op=hvd.Sum).tolist() == [2.0 * (hvd.rank() + 1)]


@check
def batch_normalization_over_all_ranks_is_that_of_the_whole_batch() -> None:
    import keras

    values = np.random.default_rng(3).standard_normal((7, 5, 4)).astype(np.float32) * 3 + 100
    masks = np.random.default_rng(4).random((7, 5)) < 0.6
    own = slice(0, 3) if hvd.rank() == 0 else slice(3, 7)
    factors = tf.constant(np.random.default_rng(5).standard_normal((7, 5, 4)), tf.float32)

    def trained(layer: Any, rows: slice, mask: Any) -> list[Any]:
        def step(inputs: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = layer(inputs, training=True, mask=mask)
                loss = tf.reduce_sum(outputs * factors[rows])
            return outputs, tape.gradient(loss, inputs)

        inputs = tf.constant(values[rows])
        layer.build(inputs.shape)
        return [*tf.function(step)(inputs), layer.moving_mean, layer.moving_variance]

    for mask in (None, masks):
        whole = trained(keras.layers.BatchNormalization(), slice(0, 7), mask)
        layer = hvd.SyncBatchNormalization()
        part = trained(layer, own, None if mask is None else mask[own])
        for one, other in zip(part, [whole[0][own], whole[1][own], *whole[2:]], strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-4, atol=2e-4)
    assert type(keras.layers.deserialize(keras.layers.serialize(layer))) is hvd.SyncBatchNormalization


@check
def best_model_is_saved_by_rank_0() -> None:
    import keras
    import mlt.tensorflow.keras as of_keras

    with tempfile.TemporaryDirectory() as folder:
        for weights_only, name in ((False, "best.keras"), (True, "best.weights.h5")):
            model = compile_of(keras, model_of(keras, seed=1), of_keras.DistributedOptimizer(keras.optimizers.SGD(0.1)))
            best = of_keras.callbacks.BestModelCheckpoint(monitor="loss", save_weights_only=weights_only)
            with fails(ValueError, "filepath"):
                model.fit(*data_of(hvd.rank(), 32), verbose=0, callbacks=[best])
            best.filepath = Path(folder) / name
            average = of_keras.callbacks.MetricAverageCallback()
            model.fit(*data_of(hvd.rank(), 32), epochs=2, verbose=0, callbacks=[average, best])
            assert Path(best.filepath).exists() if hvd.rank() == 0 else not list(Path(folder).iterdir())


@check
def variables_of_a_graph_of_tensorflow_1_are_broadcast() -> None:
    with tf.Graph().as_default():
        weights = tf.compat.v1.get_variable("weights", initializer=np.full(2, hvd.rank(), np.float32))
        broadcast = hvd.broadcast_global_variables(1)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(broadcast)
            assert session.run(weights).tolist() == [1.0, 1.0]
    with fails(RuntimeError, "broadcast_variables"):
        hvd.broadcast_global_variables(0)


@check
def jit_compile_of_a_model_is_refused() -> None:
    import keras

    model = model_of(keras, seed=1)
    compile_of(keras, model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), jit_compile=True)
    with fails(ValueError, "jit_compile=False", "model.compile()"):
        model.fit(*data_of(0, 16), verbose=0)


@check
def metrics_that_one_rank_lacks_are_an_error_everywhere() -> None:
    from mlt.tensorflow.keras import callbacks

    logs = {"loss": 1.0 + hvd.rank(), **({"val_loss": 3.0} if hvd.rank() == 0 else {})}
    with fails(ValueError, "rank 1", "val_loss"):
        callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    logs = {"loss": 1.0 + hvd.rank(), "text": "x"}
    callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    assert logs == {"loss": 1.5, "text": "x"}


def uneven_batches() -> str:
    """The error of an epoch in which rank 1 has one batch more."""
    import keras
    from mlt.tensorflow.keras import callbacks

    hvd.init()
    model = compile_of(keras, model_of(keras, seed=1), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    try:
        model.fit(
            *data_of(0, 32 + 16 * hvd.rank()), batch_size=16, verbose=0, callbacks=[callbacks.MetricAverageCallback()]
        )
    except (hvd.HorovodInternalError, tf.errors.OpError) as error:
        hvd.barrier()  # the next call works
        hvd.shutdown()
        return str(error)
    return "no error"


def ends_in_fit(how: str) -> str:
    """The error of rank 0 when rank 1 ends in its second batch."""
    import keras

    class End(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 1 and hvd.rank() == 1:
                if how == "error":
                    raise ArithmeticError("in a callback")
                if how == "Ctrl-C":
                    # A shell that starts the tests in the background lets them ignore it.
                    signal.signal(signal.SIGINT, signal.default_int_handler)
                    signal.raise_signal(signal.SIGINT)
                print("kill me", flush=True)
                signal.pause()

    hvd.init()
    model = compile_of(keras, model_of(keras, seed=1), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    try:
        model.fit(*data_of(0, 160), batch_size=16, verbose=0, callbacks=[End()])
    except tf.errors.OpError as error:
        return str(error)
    return "no error"


def elastic(steps: int, killed: int) -> list[Any]:
    """Training in which the test kills a rank, once, and starts it again."""
    import keras
    from mlt.tensorflow.keras import callbacks

    hvd.init()
    model = compile_of(keras, model_of(keras, seed=hvd.rank()), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    state = hvd.elastic.TensorFlowKerasState(model, batch=0, epoch=0, restarts=0)

    def count_restart() -> None:
        state.restarts += 1

    state.register_reset_callbacks([count_restart])

    class Die(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if "AGAIN" not in os.environ and hvd.rank() == killed and (state.epoch, batch) == (1, 1):
                print("kill me", flush=True)
                signal.pause()

    @hvd.elastic.run
    def train(state: Any) -> None:
        inputs, labels = data_of(0, 16 * steps)
        model.fit(
            inputs[16 * state.batch :],
            labels[16 * state.batch :],
            batch_size=16,
            shuffle=False,
            verbose=0,
            epochs=2 - state.epoch,
            callbacks=[
                Die(),
                callbacks.UpdateBatchStateCallback(state),
                callbacks.UpdateEpochStateCallback(state),
                callbacks.CommitStateCallback(state),
            ],
        )

    train(state)
    same_everywhere(model.weights)
    iterations = int(model.optimizer.iterations.numpy())
    hvd.shutdown()
    return [iterations, state.epoch, state.restarts]


def semantics(checks: list[str]) -> dict[str, str]:
    """The failures of these checks, by name; empty: none."""
    return CHECKS.in_job(hvd, checks, after_each=hvd.barrier)


if __name__ == "__main__":
    program, options = sys.argv[1], json.loads(sys.argv[2])
    programs: dict[str, Callable[..., Any]] = {
        "elastic": elastic,
        "ends_in_fit": ends_in_fit,
        "semantics": semantics,
        "uneven_batches": uneven_batches,
    }
    print(json.dumps(programs[program](**options)), flush=True)
