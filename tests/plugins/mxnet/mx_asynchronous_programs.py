"""Programs of one rank, for the tests of asynchronous training with MXNet; started by rank_jobs.py."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("MXNET_CPU_WORKER_NTHREADS", "1")
os.environ["BYTEPS_ENABLE_ASYNC"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
import mlt.mxnet as hvd
import mlt.mxnet.byteps as bps
import mxnet as mx
import numpy as np
from mx_programs import LOSS, assert_same_parameters, images, module_of, network, same
from mxnet import autograd, gluon
from semantics import Checks, fails, step_until_rank_1_fails

CHECKS = Checks()
check = CHECKS.add


def layer_of(dtype: str = "float32") -> Any:
    layer = gluon.nn.Dense(2, in_units=3, weight_initializer=mx.init.Constant(1.0))
    layer.cast(dtype)
    layer.initialize(force_reinit=True)
    return layer


def step_by(layer: Any, trainer: Any, gradient: float) -> None:
    """A step with this gradient of each element."""
    for param in layer.collect_params().values():
        param.data()  # of the trainer's device
    with autograd.record():
        loss = sum((param.data() * gradient).sum() for param in layer.collect_params().values())
    loss.backward()
    trainer.step(1)


def trainer_of(layer: Any, **options: Any) -> Any:
    return bps.DistributedTrainer(layer.collect_params(), "sgd", {"learning_rate": 1.0, **options})


@check
def trainer_has_the_steps_of_all_workers() -> None:
    for dtype in ("float32", "float64", "float16"):
        layer = layer_of(dtype)
        layer.bias.set_data(mx.nd.full((2,), hvd.rank(), dtype=dtype))  # those of the root count
        trainer = trainer_of(layer)
        for _ in range(3 + 2 * hvd.rank()):  # each worker at its own pace
            step_by(layer, trainer, 0.25 * (hvd.rank() + 1))
        hvd.barrier()
        step_by(layer, trainer, 0.0)  # takes what the others added last
        same(layer.weight.data(), np.full((2, 3), 1 - (3 * 0.25 + 5 * 0.5)))
        same(layer.bias.data(), np.full(2, 0 - (3 * 0.25 + 5 * 0.5)))
        hvd.barrier()


@check
def no_worker_waits_for_the_step_of_another() -> None:
    layer = layer_of()
    trainer = trainer_of(layer)
    step_by(layer, trainer, 0.0)
    if hvd.rank() == 0:
        for _ in range(5):
            step_by(layer, trainer, 0.5)
    # Rank 1 begins its next step only after this.
    assert hvd.broadcast_object("five steps", root_rank=0) == "five steps"
    if hvd.rank() == 1:
        step_by(layer, trainer, 0.5)
        same(layer.weight.data(), np.full((2, 3), -2.0))
    hvd.barrier()


@check
def a_network_learns() -> None:
    net = network(hybrid=True)
    inputs, labels = images(hvd.rank())
    net(inputs)
    trainer = bps.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    losses = []
    for _ in range(15 + 5 * hvd.rank()):
        with autograd.record():
            loss = LOSS(net(inputs), labels)
        loss.backward()
        trainer.step(len(inputs))
        losses.append(float(loss.mean().asscalar()))
    assert losses[-1] < losses[0] / 2, losses
    hvd.barrier()


@check
def module_with_the_optimizer() -> None:
    inputs, labels = images(hvd.rank())
    module = module_of(inputs, labels)
    arguments, others = module.get_params()
    bps.broadcast_parameters(arguments)
    module.set_params(arguments, others)
    optimizer = bps.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.1, rescale_grad=1 / len(inputs)))
    module.init_optimizer(optimizer=optimizer)
    batch = mx.io.DataBatch([inputs], [labels])
    for _ in range(3 + hvd.rank()):
        module.forward_backward(batch)
        module.update()
    hvd.barrier()
    optimizer.set_learning_rate(0.0)
    module.update()
    assert_same_parameters(module)


@check
def optimizer_of_single_weights() -> None:
    optimizer = bps.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0))
    weights = [mx.nd.ones((2,)), mx.nd.zeros((3, 1))]
    for gradient in (0.5, 0.0):
        for index, weight in enumerate(weights):
            state = optimizer.create_state(index, weight)
            optimizer.update(index, weight, mx.nd.full(weight.shape, gradient), state)
        hvd.barrier()
    same(weights[0], [1.0 - 0.5 * hvd.size()] * 2)
    same(weights[1], np.full((3, 1), -0.5 * hvd.size()))


@check
def different_weights_are_rejected_on_all_workers() -> None:
    optimizer = bps.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0))
    for shape, facts in (((2,), ("values",)), ((2 + hvd.rank(),), ("names, shapes and types",))):
        with fails(hvd.HorovodInternalError, *facts, "rank(s) 1", "broadcast_parameters"):
            weight = mx.nd.full(shape, 1 + hvd.rank())
            optimizer.update(0, weight, mx.nd.ones(shape), optimizer.create_state(0, weight))
    hvd.barrier()


@check
def what_it_cannot_do_is_rejected() -> None:
    layer = layer_of("float16")
    with fails(ValueError, "no compression"):
        bps.DistributedTrainer(layer.collect_params(), "sgd", compression_params={"fp16": True})
    trainer = trainer_of(layer, multi_precision=True)
    with fails(ValueError, "multi_precision", "leave multi_precision out"):
        step_by(layer, trainer, 1.0)
    optimizer = bps.DistributedOptimizer(mx.optimizer.SGD())
    with fails(ValueError, "floating point", "int32"):
        weight = mx.nd.ones((2,), dtype="int32")
        shared = optimizer._shared
        assert shared is not None
        shared.update([weight], ["odd"], optimizer.unwrapped, lambda: None)
    several = gluon.nn.Dense(1, in_units=1)
    several.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    trainer = trainer_of(several)
    trainer._params_to_init = []
    with fails(ValueError, "2 devices", "mlt launch"):
        trainer.update(1, ignore_stale_grad=True)
    hvd.barrier()


@check
def a_resumed_job_begins_again() -> None:
    optimizer = bps.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0))
    weight = mx.nd.ones((2,))
    state = optimizer.create_state(0, weight)
    rank, size = bps.rank(), bps.size()
    optimizer.update(0, weight, mx.nd.full((2,), 0.5), state)
    bps.suspend()  # waits for the other's last step
    bps.resume(num_workers=size, num_servers=0, global_rank=rank)
    bps.broadcast_parameters({"weight": weight})
    before = weight.asnumpy()
    optimizer.update(0, weight, mx.nd.full((2,), 0.5), state)
    hvd.barrier()
    optimizer.update(0, weight, mx.nd.zeros((2,)), state)
    same(weight, before - 0.5 * size)
    hvd.barrier()


def semantics(checks: list[str]) -> dict[str, str]:
    """The failures of these checks, by name; empty: none."""
    return CHECKS.in_job(bps, checks)


def failing(how: str) -> str:
    """Rank 1 fails after two steps; the error of the others."""
    bps.init()
    layer = layer_of()
    trainer = trainer_of(layer)
    try:
        step_until_rank_1_fails(lambda: step_by(layer, trainer, 0.5), rank=bps.rank(), how=how)
    except hvd.HorovodInternalError as error:
        return str(error)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
