"""Programs of one rank, for the tests of BytePS's API for MXNet; started by rank_jobs.py with the program's name."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("MXNET_CPU_WORKER_NTHREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
import mlt.mxnet as hvd
import mlt.mxnet.byteps as bps
import mxnet as mx
import numpy as np
from byteps_semantics import check_ranks_and_sizes, check_rejected_variables
from mx_programs import images, module_of, network, same, same_everywhere, step, total, train_module
from mxnet import autograd, gluon
from semantics import Checks, fails

CHECKS = Checks()
check = CHECKS.add


@check
def ranks_and_sizes() -> None:
    check_ranks_and_sizes(bps, others={"torch", "mlt.torch", "tensorflow"})


@check
def push_pull_averages_and_sums_in_place() -> None:
    for dtype in ("float16", "float32", "float64", "int32", "int64"):
        for shape in ((3,), (3, 2), (40_000,)):  # the last is summed where it lies
            array = mx.nd.full(shape, 2 * (bps.rank() + 1), dtype=dtype)
            name = f"{dtype} {shape}"
            bps.byteps_declare_tensor(name)
            assert bps.byteps_push_pull(array, name=name, is_average=False) is None
            same(array, np.full(shape, 2 * total()))
            array[:] = 2 * (bps.rank() + 1)
            bps.byteps_push_pull(array, version=1, priority=-3, name=name)
            same(array, np.full(shape, 2 * total() // bps.size()))
    unnamed = mx.nd.ones((2,))
    bps.byteps_push_pull(unnamed, is_average=False)
    same(unnamed, [bps.size()] * 2)


@check
def push_pull_matches_by_name() -> None:
    arrays = {name: mx.nd.full((2,), (bps.rank() + 1) * length) for length, name in enumerate(("first", "second"))}
    order = list(arrays) if bps.rank() else list(arrays)[::-1]
    with ThreadPoolExecutor(2) as threads:  # whose calls begin in another order on each worker
        for one in [threads.submit(bps.byteps_push_pull, arrays[name], 0, 0, name, False) for name in order]:
            one.result()
    same(arrays["first"], [0, 0])
    same(arrays["second"], [total()] * 2)


@check
def arrays_that_the_engine_has_not_computed_yet_are_waited_for() -> None:
    array = mx.nd.ones((300, 300))
    for _ in range(5):
        array = mx.nd.dot(array, array) / 300
    bps.byteps_push_pull(array, name="late", is_average=False)
    same(array * 2, np.full((300, 300), 2 * bps.size()))


@check
def options_without_a_meaning_here_are_refused() -> None:
    with fails(ValueError, "byteps_compressor_type", "byteps_ef_type", "leave them out", "fp16"):
        bps.byteps_declare_tensor("weights", byteps_compressor_type="onebit", byteps_ef_type="vanilla")
    for name in (3, None):
        with fails(TypeError, "name", "'gradient_0'"):
            bps.byteps_declare_tensor(name)
    with fails(TypeError, "name is 3", "'gradient_0'"):
        bps.byteps_push_pull(mx.nd.ones((1,)), name=3)
    with fails(TypeError, "sparse"):
        bps.byteps_push_pull(mx.nd.ones((2, 2)).tostype("row_sparse"), name="sparse")
    net = network()
    params = net.collect_params()
    for given, facts in (
        ({"compressor": "topk", "k": 0.1}, ("compressor='topk'", "{'fp16': True}")),
        ({"fp16": True, "momentum": "nesterov"}, ("momentum='nesterov'", "optimizer_params")),
        ({"ef": "vanilla"}, ("ef='vanilla'",)),
        ({"bits": 2}, ("bits", "{'fp16': True}")),
    ):
        with fails(ValueError, *facts):
            bps.DistributedTrainer(params, "sgd", compression_params=given)
    bps.DistributedTrainer(params, "sgd", compression_params={"compressor": None, "seed": 1, "fp16": False})
    with fails(TypeError, "mx.optimizer.SGD()"):
        bps.DistributedOptimizer("sgd")
    with fails(ValueError, "takes a dict"):
        bps.broadcast_parameters([mx.nd.ones((1,))])
    check_rejected_variables(bps)


@check
def shapes_that_differ_are_an_error_everywhere_and_the_next_call_works() -> None:
    array = mx.nd.ones((2 + bps.rank(),))
    with fails(hvd.HorovodInternalError, "'gradient'", "shape differs", "2 on rank 0", "3 on rank 1"):
        bps.byteps_push_pull(array, name="gradient")
    same(array, np.ones(2 + bps.rank()))
    array = mx.nd.ones((2,))
    bps.byteps_push_pull(array, name="gradient", is_average=False)
    same(array, [bps.size()] * 2)


@check
def speed_counts_what_was_pushed() -> None:
    bps.get_pushpull_speed()
    bps.byteps_push_pull(mx.nd.zeros((250_000,)), name="large")
    now, rate = bps.get_pushpull_speed()
    assert abs(now / 1000 - time.time()) < 10
    assert rate > 0
    assert bps.get_pushpull_speed()[1] == 0.0
    net = network()
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd")
    step(net, trainer, *images(bps.rank()))
    assert bps.get_pushpull_speed()[1] > 0


@check
def parameters_are_broadcast_from_another_root() -> None:
    root = bps.size() - 1
    arrays = {"weight": mx.nd.full((2, 3), bps.rank()), "bias": mx.nd.full((3,), 10 * bps.rank())}
    bps.broadcast_parameters(arrays, root_rank=root)
    same(arrays["weight"], np.full((2, 3), root))
    same(arrays["bias"], [10 * root] * 3)
    bps.broadcast_parameters({})


@check
def trainer_begins_with_the_root_and_gives_the_step_of_all_batches() -> None:
    for root, hybrid, options in ((1, False, {"momentum": 0.9}), (0, True, {})):
        net = network(hybrid=hybrid)
        inputs, labels = images(bps.rank())
        net(inputs)  # the parameters come into being, different on each worker
        before = {name: one.data().copy() for name, one in net._collect_params_with_prefix().items()}
        start = {name: one.copy() for name, one in before.items()}
        bps.broadcast_parameters(start, root_rank=root)
        trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.0, **options}, root_rank=root)
        step(net, trainer, inputs, labels)
        for name, one in net._collect_params_with_prefix().items():
            if "running" not in name:  # which BatchNorm changes in each forward pass
                same(one.data(), start[name].asnumpy())
        trainer.set_learning_rate(0.1)
        for _ in range(3):
            step(net, trainer, inputs, labels)
        trained = [one for one in net.collect_params().values() if one.grad_req != "null"]
        own = b"".join(one.data().asnumpy().tobytes() for one in trained)
        assert len(set(hvd.allgather_object(own))) == 1
        assert trainer.root_rank == root
    # One step by the formula: weights 0, gradients of the sum of outputs.
    layer = gluon.nn.Dense(1, use_bias=False, in_units=2, weight_initializer="zeros")
    layer.initialize()
    trainer = bps.DistributedTrainer(layer.collect_params(), "sgd", {"learning_rate": 1.0})
    with autograd.record():
        loss = layer(mx.nd.full((4, 2), bps.rank() + 1)).sum()
    loss.backward()
    trainer.step(4, ignore_stale_grad=False)
    same(layer.weight.data(), [[-total() / bps.size()] * 2])
    with fails(UserWarning, "stale"):
        trainer.step(4)
    trainer.step(4, ignore_stale_grad=True)
    same(layer.weight.data(), [[-total() / bps.size()] * 2])


@check
def trainer_waits_for_parameters_that_come_into_being_later() -> None:
    net = gluon.nn.Sequential()
    net.add(gluon.nn.Dense(3, in_units=3), gluon.nn.Dense(2))
    mx.random.seed(bps.rank())
    net.initialize(mx.init.Xavier(), force_reinit=True)
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.0}, root_rank=1)
    trainer._init_params()
    assert len(trainer._params_to_init) == 1  # the weight whose width is not known yet
    step(net, trainer, mx.nd.ones((4, 3)), mx.nd.zeros((4,)))
    assert trainer._params_to_init == []
    same_everywhere(net)


@check
def trainer_sends_float16_if_asked() -> None:
    layer = gluon.nn.Dense(1, use_bias=False, in_units=1, weight_initializer="zeros")
    layer.initialize()
    trainer = bps.DistributedTrainer(
        layer.collect_params(), "sgd", {"learning_rate": 1.0}, compression_params={"fp16": True}
    )
    with autograd.record():
        loss = layer(mx.nd.full((1, 1), 0.1)).sum()
    loss.backward()
    trainer.step(1)
    same(layer.weight.data(), [[-float(np.float32(np.float16(0.1)))]])
    assert layer.weight.data().dtype == np.float32


@check
def trainer_with_different_parameters_is_an_error_that_lists_them() -> None:
    layer = gluon.nn.Dense(2 + bps.rank(), in_units=3)
    layer.initialize()
    trainer = bps.DistributedTrainer(layer.collect_params(), "sgd")
    with autograd.record():
        loss = layer(mx.nd.ones((1, 3))).sum()
    loss.backward()
    with fails(hvd.HorovodInternalError, "parameters of the trainer", "2x3 on rank 0", "3x3 on rank 1"):
        trainer.step(1)


@check
def trainer_unwraps_an_optimizer() -> None:
    net = network()
    inner = mx.optimizer.SGD()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert bps.DistributedTrainer(net.collect_params(), bps.DistributedOptimizer(inner)).optimizer is inner
    assert any("not a DistributedOptimizer" in str(one.message) for one in caught)


@check
def module_with_the_optimizer() -> None:
    inputs, labels = images(bps.rank())
    module = module_of(inputs, labels)
    arguments, others = module.get_params()
    bps.broadcast_parameters(arguments, root_rank=1)
    module.set_params(arguments, others)
    optimizer = bps.DistributedOptimizer(
        mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, rescale_grad=1 / len(inputs))
    )
    module.init_optimizer(optimizer=optimizer)
    train_module(module, inputs, labels)
    optimizer.set_learning_rate(0.05)
    assert optimizer.lr == 0.05


@check
def suspends_and_resumes_under_other_ranks() -> None:
    rank = bps.rank()
    bps.suspend()
    with fails(ValueError):
        bps.rank()
    bps.resume(num_workers=2, num_servers=0, global_rank=1 - rank)
    assert (bps.rank(), bps.size(), bps.local_size()) == (1 - rank, 2, 2)
    bps.suspend()
    bps.resume(num_workers=2, num_servers=0, global_rank=rank)
    array = mx.nd.array([bps.rank() + 1])
    bps.byteps_push_pull(array, name="large", is_average=False)
    same(array, [total()])


def semantics(checks: list[str]) -> dict[str, str]:
    """The failures of these checks, by name; empty: none."""
    return CHECKS.in_job(bps, checks, after_each=hvd.barrier)


if __name__ == "__main__":
    options: dict[str, Any] = json.loads(sys.argv[2])
    print(json.dumps(globals()[sys.argv[1]](**options)), flush=True)
