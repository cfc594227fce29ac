"""Programs of one rank, for the MXNet tests; started by rank_jobs.py with the program's name and its options."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("MXNET_CPU_WORKER_NTHREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
import mlt.mxnet as hvd
import mxnet as mx
import numpy as np
from mlt.mxnet.arrays import Arrays
from mxnet import autograd, gluon
from semantics import Checks, fails

CHECKS = Checks()
check = CHECKS.add


def same(one: Any, other: Any) -> None:
    values = one.asnumpy().astype(np.float64)
    assert np.array_equal(values, np.asarray(other, np.float64)), f"{values} is not {other}"


def total() -> int:
    """Sum of all ranks + 1."""
    return hvd.size() * (hvd.size() + 1) // 2


def same_everywhere(net: Any) -> None:
    """All ranks have the same bits."""
    own = b"".join(param.data().asnumpy().tobytes() for _, param in sorted(net._collect_params_with_prefix().items()))
    assert len(set(hvd.allgather_object(own))) == 1


def network(*, hybrid: bool = False, wide: int = 8) -> Any:
    """A small network with convolutions, differently initialised on each rank."""
    mx.random.seed(5 + hvd.rank())
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(wide, 3, activation="relu"), gluon.nn.BatchNorm(), gluon.nn.Flatten(), gluon.nn.Dense(10))
    net.initialize(mx.init.Xavier(), force_reinit=True)
    if hybrid:
        net.hybridize()
    return net


def images(rank: int, count: int = 16) -> tuple[Any, Any]:
    """The share of a rank."""
    random = np.random.RandomState(rank)
    values = random.rand(count, 1, 8, 8).astype("float32")
    return mx.nd.array(values), mx.nd.array(values.reshape(count, -1)[:, :10].argmax(1))


LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def step(net: Any, trainer: Any, inputs: Any, labels: Any, batch_size: int | None = None) -> float:
    """One step of training; its loss."""
    with autograd.record():
        loss = LOSS(net(inputs), labels)
    loss.backward()
    trainer.step(batch_size or len(inputs))
    return float(loss.mean().asscalar())


@check
def ranks_and_sizes() -> None:
    assert (hvd.rank(), hvd.size()) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    assert (hvd.local_rank(), hvd.local_size()) == (hvd.rank(), hvd.size())
    assert not {"torch", "mlt.torch", "tensorflow", "jax"} & sys.modules.keys()


@check
def allreduce_of_every_type_and_in_place() -> None:
    for dtype in ("float16", "float32", "float64", "uint8", "int8", "int32", "int64"):
        array = mx.nd.full((3, 2), hvd.rank() + 1, dtype=dtype)
        for op, expected in ((hvd.Sum, total()), (hvd.Min, 1), (hvd.Max, hvd.size())):
            result = hvd.allreduce(array, op=op)
            assert (result.dtype, result.shape) == (array.dtype, array.shape)
            same(result, np.full((3, 2), expected))
        same(array, np.full((3, 2), hvd.rank() + 1))
        assert hvd.allreduce_(array, op=hvd.Sum) is array
        same(array, np.full((3, 2), total()))
    flags = mx.nd.array([hvd.rank() == 0, True, False], dtype="bool")
    assert hvd.allreduce(flags, op=hvd.Max).asnumpy().tolist() == [True, True, False]
    bfloat16 = np.dtype([("bfloat16", np.uint16)])
    same(hvd.allreduce(mx.nd.ones((4,)).astype(bfloat16), op=hvd.Sum).astype("float32"), [hvd.size()] * 4)


@check
def allreduce_with_factors_and_bad_arguments() -> None:
    same(hvd.allreduce(mx.nd.array([3.0]), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), [6.0 * hvd.size()])
    same(hvd.allreduce(mx.nd.array([1.0 + hvd.rank()])), [total() / hvd.size()])
    one, other = hvd.grouped_allreduce([mx.nd.ones((2,)), mx.nd.ones((3,), dtype="int32")], op=hvd.Sum)
    same(one, [hvd.size()] * 2)
    same(other, [hvd.size()] * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(hvd.allreduce(mx.nd.ones((1,)), average=False), [hvd.size()])
    with fails(ValueError, "average"):
        hvd.allreduce(mx.nd.ones((1,)), average=True, op=hvd.Sum)
    with fails(TypeError, "ndarray", "mx.nd.array"):
        hvd.allreduce(np.ones(1))
    with fails(TypeError, "row_sparse", "tostype('default')"):
        hvd.allreduce(mx.nd.zeros((2, 2)).tostype("row_sparse"))
    with mx.util.np_shape(True):
        numbers = hvd.allreduce(mx.np.ones((2, 2)), op=hvd.Sum)
        assert isinstance(numbers, mx.np.ndarray)
        same(numbers, np.full((2, 2), hvd.size()))


@check
def allgather_broadcast_alltoall_reducescatter() -> None:
    rank, size = hvd.rank(), hvd.size()
    same(hvd.allgather(mx.nd.full((rank + 1, 2), rank)), [[r, r] for r in range(size) for _ in range(r + 1)])
    one, other = hvd.grouped_allgather([mx.nd.array([rank]), mx.nd.array([rank], dtype="int64")])
    same(one, range(size))
    same(other, range(size))
    array = mx.nd.array([rank, 7])
    same(hvd.broadcast(array, 1), [1, 7])
    same(array, [rank, 7])
    assert hvd.broadcast_(array, 1) is array
    same(array, [1, 7])
    received, counts = hvd.alltoall(mx.nd.array([10 * rank, 10 * rank + 1, 10 * rank + 2]), splits=mx.nd.array([1, 2]))
    same(received, [0, 10] if rank == 0 else [1, 2, 11, 12])
    same(counts, [1, 1] if rank == 0 else [2, 2])
    same(hvd.alltoall(mx.nd.array([rank, rank + 5])), [0, 1] if rank == 0 else [5, 6])
    same(hvd.reducescatter(mx.nd.array([1.0, 2.0, 3.0]), op=hvd.Sum), [2.0, 4.0] if rank == 0 else [6.0])
    (part,) = hvd.grouped_reducescatter([mx.nd.array([[1.0]])])
    assert part.shape == ((1, 1) if rank == 0 else (0, 1))  # the second rank gets no row


@check
def arrays_that_the_engine_has_not_computed_yet_are_waited_for() -> None:
    """The product takes a while, and the calls below come before its end."""
    side = 600
    for _ in range(5):
        array = mx.nd.full((side, side), hvd.rank() + 1.0)
        product = mx.nd.dot(array, array)  # each element: side * (rank + 1) ** 2
        reader = product * 2  # reads what the next line writes
        hvd.allreduce_(product, op=hvd.Sum)
        after = product + 0.0
        expected = side * sum((rank + 1) ** 2 for rank in range(hvd.size()))
        assert (after.asnumpy() == expected).all()
        assert (reader.asnumpy() == 2 * side * (hvd.rank() + 1) ** 2).all()


@check
def large_arrays_are_reduced_where_they_lie() -> None:
    array = mx.nd.full((1 << 16,), hvd.rank() + 1.0)
    held = Arrays([array], in_place=True)
    assert np.shares_memory(held.input(0), held.allocate(0, array.shape))
    held.input(0)[:4] = 0
    assert array[0].asscalar() == 0.0
    view = array[8:]  # begins within the memory of another
    hvd.allreduce_(view, op=hvd.Sum)
    same(array[8:12], [total()] * 4)
    same(array[4:8], [hvd.rank() + 1.0] * 4)


@check
def arrays_that_onednn_has_put_into_an_order_of_its_own_are_read_and_written_in_rows() -> None:
    net = gluon.nn.Conv2D(32, 3, in_channels=16)
    net.initialize()
    net.hybridize(static_alloc=True, static_shape=True)
    net(mx.nd.ones((1, 16, 12, 12))).wait_to_read()  # outside of training, which lets oneDNN reorder the weights
    weight = net.weight.data()
    values = weight.asnumpy().astype(np.float64)
    theirs = sum(hvd.allgather_object(values))
    assert np.allclose(hvd.allreduce(weight, op=hvd.Sum).asnumpy(), theirs, atol=1e-6)
    net(mx.nd.ones((1, 16, 12, 12))).wait_to_read()
    hvd.allreduce_(weight, op=hvd.Sum)
    assert np.allclose(weight.asnumpy(), theirs, atol=1e-6)
    out = net(mx.nd.ones((1, 16, 12, 12)))[0, 0, 0, 0].asscalar()
    assert np.isclose(out, theirs[0].sum() + net.bias.data()[0].asscalar(), atol=1e-4)


@check
def arrays_outside_of_the_hosts_memory_are_copied() -> None:
    shared = mx.nd.full((3,), hvd.rank() + 1.0, ctx=mx.Context("cpu_shared", 0))  # as one of a GPU
    same(hvd.allreduce(shared, op=hvd.Sum), [total()] * 3)
    hvd.allreduce_(shared, op=hvd.Sum)
    same(shared, [total()] * 3)


@check
def objects_process_sets_join_and_barrier() -> None:
    assert hvd.broadcast_object({"rank": hvd.rank()}, 1) == {"rank": 1}
    own = hvd.add_process_set([1])
    if hvd.rank() == 1:
        same(hvd.allreduce(mx.nd.array([5.0]), op=hvd.Sum, process_set=own), [5.0])
    assert hvd.remove_process_set(own)
    if hvd.rank() == 0:
        same(hvd.allreduce(mx.nd.array([5.0]), op=hvd.Sum, name="extra"), [5.0])  # the other has joined
    assert hvd.join() == 0
    hvd.barrier()


@check
def disagreements_are_errors_everywhere_and_the_next_call_works() -> None:
    with fails(hvd.HorovodInternalError, "'odd'", "3 on rank 0", "4 on rank 1"):
        hvd.allreduce(mx.nd.zeros((3 + hvd.rank(),)), name="odd")
    with fails(hvd.HorovodInternalError, "element type", "float32 on rank 0", "float64 on rank 1"):
        hvd.allreduce(mx.nd.zeros((3,), dtype="float64" if hvd.rank() else "float32"), name="odd")
    same(hvd.allreduce(mx.nd.ones((2,)), name="odd", op=hvd.Sum), [hvd.size()] * 2)


@check
def parameters_are_broadcast_at_once_or_when_they_come_into_being() -> None:
    net = network()
    hvd.broadcast_parameters(net.collect_params(), prefix="deferred ")  # no shape is known yet
    inputs, _ = images(0)
    net(inputs)
    same_everywhere(net)
    again = network()
    again(inputs)
    hvd.broadcast_parameters(again.collect_params(), root_rank=1)
    same_everywhere(again)
    own = {"weight": mx.nd.array([hvd.rank()])}
    hvd.broadcast_parameters(own, root_rank=1)
    same(own["weight"], [1])
    with fails(ValueError, "list", "collect_params()"):
        hvd.broadcast_parameters([mx.nd.ones((1,))])


@check
def trainer_gives_the_step_of_all_batches_hybridized_and_not() -> None:
    """Two ranks with half a batch each end where one with the whole batch ends, and with the same bits."""
    (inputs, labels), (others, other_labels) = images(hvd.rank()), images(1 - hvd.rank())
    for hybrid in (False, True):
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Conv2D(4, 3, in_channels=1), gluon.nn.Flatten(), gluon.nn.Dense(10, in_units=144))
        net.initialize(mx.init.Xavier())
        hvd.broadcast_parameters(net.collect_params())
        if hybrid:
            net.hybridize()
        alone = gluon.nn.HybridSequential()
        alone.add(gluon.nn.Conv2D(4, 3, in_channels=1), gluon.nn.Flatten(), gluon.nn.Dense(10, in_units=144))
        alone.initialize()
        for mine, theirs in zip(alone.collect_params().values(), net.collect_params().values(), strict=True):
            mine.set_data(theirs.data())
        sgd = {"learning_rate": 0.5, "momentum": 0.9}
        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", dict(sgd))
        whole = gluon.Trainer(alone.collect_params(), "sgd", dict(sgd), kvstore=None)
        for _ in range(3):
            step(net, trainer, inputs, labels)
            step(alone, whole, mx.nd.concat(inputs, others, dim=0), mx.nd.concat(labels, other_labels, dim=0))
        same_everywhere(net)
        for mine, theirs in zip(alone.collect_params().values(), net.collect_params().values(), strict=True):
            assert np.allclose(mine.data().asnumpy(), theirs.data().asnumpy(), atol=1e-4)


@check
def trainer_with_layers_groups_compression_and_loss() -> None:
    inputs, labels = images(hvd.rank())
    cases: list[dict[str, Any]] = [
        {"loss_bound": hvd.BoundedLossState(0.0, bucket_bytes=64)},
        {"loss_bound": hvd.BoundedLossState(hvd.warm_up(0.2, steps=2), bucket_bytes=64)},
        {"num_groups": 2},
        {"compression": hvd.Compression.fp16, "gradient_predivide_factor": 2.0},
    ]
    for number, options in enumerate(cases):
        net = network(hybrid=True)
        hvd.broadcast_parameters(net.collect_params(), prefix=f"case {number} ")
        # The averages of BatchNorm are each rank's, so that this rank's mean gradient is the same function on all.
        trainer = hvd.DistributedTrainer(
            net.collect_params(), "adam", {"learning_rate": 0.02}, prefix=str(number), **options
        )
        losses = [step(net, trainer, inputs, labels) for _ in range(8)]
        assert losses[-1] < losses[0], losses
        trained = [param.data().asnumpy().tobytes() for param in net.collect_params(".*weight|.*bias").values()]
        assert len(set(hvd.allgather_object(b"".join(trained)))) == 1
        assert len(trainer.loss_state.steps) == 8
        latest = trainer.loss_state.latest
        assert latest is not None
        assert latest.buckets > 1 or number == 3
    with fails(ValueError, "num_groups is -1"):
        hvd.DistributedTrainer(network().collect_params(), "sgd", num_groups=-1)


@check
def trainer_rejects_sparse_gradients_several_devices_and_wrapped_optimizers() -> None:
    layer = gluon.nn.Embedding(4, 2, sparse_grad=True)
    layer.initialize()
    trainer = hvd.DistributedTrainer(layer.collect_params(), "sgd")
    with autograd.record():
        loss = layer(mx.nd.array([1])).sum()
    loss.backward()
    with fails(TypeError, "embedding", "row_sparse", "sparse_grad=False"):
        trainer.step(1)
    dense = gluon.nn.Dense(1, in_units=1)
    dense.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    trainer = hvd.DistributedTrainer(dense.collect_params(), "sgd")
    with fails(ValueError, "2 devices", "cpu(1)", "mlt launch -n"):
        trainer.allreduce_grads()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one = gluon.nn.Dense(1, in_units=1)
        one.initialize()
        inner = mx.optimizer.SGD()
        assert hvd.DistributedTrainer(one.collect_params(), hvd.DistributedOptimizer(inner)).optimizer is inner
    assert any("not a DistributedOptimizer" in str(one.message) for one in caught)


@check
def trainer_with_different_parameters_is_an_error_that_lists_them() -> None:
    layer = gluon.nn.Dense(2 + hvd.rank(), in_units=3)
    layer.initialize()
    trainer = hvd.DistributedTrainer(layer.collect_params(), "sgd")
    before = layer.weight.data().asnumpy()
    with autograd.record():
        loss = layer(mx.nd.ones((1, 3))).sum()
    loss.backward()
    with fails(hvd.HorovodInternalError, "rank 0", "rank 1", "weight float32", "bias float32"):
        trainer.step(1)
    assert np.array_equal(layer.weight.data().asnumpy(), before)


@check
def trainer_with_more_layers_than_another_is_an_error_that_lists_the_gradients() -> None:
    net = gluon.nn.Sequential()
    for _ in range(2 + hvd.rank()):
        net.add(gluon.nn.Dense(3, in_units=3))
    net.initialize()
    layers = hvd.BoundedLossState(0.0, bucket_bytes=1)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", loss_bound=layers)
    before = [param.data().asnumpy() for param in net.collect_params().values()]
    for _ in range(2):
        with autograd.record():
            loss = net(mx.nd.ones((1, 3))).sum()
        loss.backward()
        with fails(hvd.HorovodInternalError, "4 on rank 0", "6 on rank 1", "weight float32"):
            trainer.step(1)
    for values, param in zip(before, net.collect_params().values(), strict=True):
        assert np.array_equal(values, param.data().asnumpy())


def network_symbol() -> Any:
    data = mx.sym.Variable("data")
    first = mx.sym.FullyConnected(mx.sym.Flatten(data), num_hidden=16, name="first")
    second = mx.sym.FullyConnected(mx.sym.Activation(first, act_type="relu"), num_hidden=10, name="second")
    return mx.sym.SoftmaxOutput(second, name="softmax")


def module_of(inputs: Any, labels: Any) -> Any:
    """A module of the older API, differently initialised on each rank."""
    module = mx.mod.Module(network_symbol())
    module.bind([("data", inputs.shape)], [("softmax_label", labels.shape)])
    mx.random.seed(7 + hvd.rank())
    module.init_params(mx.init.Xavier())
    return module


def train_module(module: Any, inputs: Any, labels: Any) -> None:
    batch = mx.io.DataBatch([inputs], [labels])
    for _ in range(3):
        module.forward_backward(batch)
        module.update()
    assert_same_parameters(module)


def assert_same_parameters(module: Any) -> None:
    """All ranks have the same."""
    arguments, _ = module.get_params()
    own = b"".join(arguments[name].asnumpy().tobytes() for name in sorted(arguments))
    assert len(set(hvd.allgather_object(own))) == 1


@check
def module_with_the_optimizer() -> None:
    inputs, labels = images(hvd.rank())
    module = module_of(inputs, labels)
    arguments, others = module.get_params()
    hvd.broadcast_parameters(arguments)
    module.set_params(arguments, others)
    inner = mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, rescale_grad=1 / len(inputs))
    optimizer = hvd.DistributedOptimizer(inner)
    module.init_optimizer(optimizer=optimizer)
    train_module(module, inputs, labels)
    assert len(optimizer.loss_state.steps) == 3  # one exchange in each step
    optimizer.set_learning_rate(0.05)
    assert (optimizer.learning_rate, inner.lr) == (0.05, 0.05)
    assert inner.idx2name  # set by the module on the wrapper
    with fails(TypeError, "mx.optimizer.SGD()", "'sgd'"):
        hvd.DistributedOptimizer("sgd")


@check
def module_with_the_kvstore() -> None:
    inputs, labels = images(hvd.rank())
    module = module_of(inputs, labels)
    with fails(ValueError, "rank 1 differ", "broadcast_parameters", "set_params"):
        module.init_optimizer(kvstore="dist_sync_mlt", optimizer_params={"learning_rate": 0.1})
    module = module_of(inputs, labels)
    arguments, others = module.get_params()
    hvd.broadcast_parameters(arguments)
    module.set_params(arguments, others)
    module.init_optimizer(kvstore="dist_sync_mlt", optimizer_params={"learning_rate": 0.1})
    assert module._optimizer.rescale_grad == 1 / (len(inputs) * hvd.size())
    train_module(module, inputs, labels)


@check
def module_fit_with_the_kvstore_and_with_the_optimizer() -> None:
    inputs, labels = images(hvd.rank(), count=32)
    inner = mx.optimizer.SGD(learning_rate=0.1, rescale_grad=1 / 8)
    for options in ({"kvstore": "dist_sync_mlt"}, {"optimizer": hvd.DistributedOptimizer(inner)}):
        batches = mx.io.NDArrayIter(inputs, labels, batch_size=8)
        module = mx.mod.Module(network_symbol())
        mx.random.seed(3)  # the same on all ranks, and so are the weights
        module.fit(batches, num_epoch=2, initializer=mx.init.Xavier(), **options)
        arguments, _ = module.get_params()
        own = b"".join(arguments[name].asnumpy().tobytes() for name in sorted(arguments))
        assert len(set(hvd.allgather_object(own))) == 1


@check
def kvstore_in_a_trainer() -> None:
    inputs, labels = images(hvd.rank())
    for kvstore in ("dist_sync_mlt", mx.kv.create("mlt")):
        net = network()
        net(inputs)
        trainer = gluon.Trainer(net.collect_params(".*weight|.*bias"), "sgd", {"learning_rate": 0.1}, kvstore=kvstore)
        for _ in range(3):
            step(net, trainer, inputs, labels, batch_size=len(inputs) * hvd.size())
        trained = [param.data().asnumpy().tobytes() for param in net.collect_params(".*weight|.*bias").values()]
        assert len(set(hvd.allgather_object(b"".join(trained)))) == 1
    store = mx.kv.create("mlt")
    assert (store.type, store.rank, store.num_workers) == ("dist_sync_mlt", hvd.rank(), hvd.size())
    values = [mx.nd.ones((2,)), mx.nd.ones((2,))]  # of two devices
    out = mx.nd.zeros((2,))
    store.pushpull("key", values, out=out)
    same(out, [2 * hvd.size()] * 2)
    same(values[0], [1, 1])
    store.pushpull("key", values[0])
    same(values[0], [hvd.size()] * 2)
    store.broadcast("key", mx.nd.array([hvd.rank() + 3.0, 1.0]), out=[out])
    same(out, [3.0, 1.0])


@check
def kvstore_that_mxnet_would_ignore_is_rejected() -> None:
    net = network()
    inputs, labels = images(0)
    net(inputs)
    trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore="mlt")
    with fails(ValueError, 'kvstore="mlt"', 'write kvstore="dist_sync_mlt"'):
        step(net, trainer, inputs, labels)
    with fails(ValueError, 'write kvstore="dist_sync_mlt"'):
        module_of(inputs, labels).init_optimizer(kvstore="mlt")
    other = gluon.Trainer(net.collect_params(), "sgd", kvstore="dist_sync_mlt", update_on_kvstore=True)
    with fails(ValueError, "update_on_kvstore=False"):
        step(net, other, inputs, labels)
    with fails(ValueError, "compression_params", "Compression.fp16"):
        mx.kv.create("mlt").set_gradient_compression({"type": "2bit"})


def semantics(checks: list[str]) -> dict[str, str]:
    """The failures of these checks, by name; empty: none."""
    return CHECKS.in_job(hvd, checks)


def ends_in_training(how: str) -> str:
    """Rank 1 ends after some steps; the error that rank 0 gets."""
    hvd.init()
    inputs, labels = images(hvd.rank())
    net = network()
    hvd.broadcast_parameters(net.collect_params())
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for number in range(1000):
        if hvd.rank() == 1 and number == 3:
            if how == "signal":
                print("kill me", flush=True)
                signal.pause()
            if how == "operator":  # which fails in a thread of MXNet's engine
                inputs = inputs * mx.nd.random.normal(0, -1, (1,))
            else:
                raise KeyboardInterrupt if how == "Ctrl-C" else ArithmeticError("as a test")
        try:
            step(net, trainer, inputs, labels)
        except hvd.HorovodInternalError as error:
            assert hvd.rank() == 0
            return str(error)
    return "no error"


def uneven_batches() -> str:
    """Rank 1 has one batch fewer, and continues with the average of a metric."""
    hvd.init()
    inputs, labels = images(hvd.rank())
    net = network()
    hvd.broadcast_parameters(net.collect_params())
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    try:
        for _ in range(3 - hvd.rank()):
            step(net, trainer, inputs, labels)
        hvd.allreduce(mx.nd.array([1.0]), name="metric")
    except hvd.HorovodInternalError as error:
        return str(error)
    return "no error"


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
