"""Programs of one rank, for the Horovod tests; started by job.py with the program's name and its options."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlt.torch
import mlt.torch.byteps as bps
import mlt.torch.horovod as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
import torch
from checks import until
from semantics import Checks, fails, operations_of
from torch import nn

CHECKS = Checks()
check = CHECKS.add


def same(one: torch.Tensor, other: Any) -> None:
    expected = torch.as_tensor(other, dtype=one.dtype)
    assert torch.equal(one, expected), f"{one} is not {expected}"


def total() -> int:
    """Sum of all ranks + 1."""
    return hvd.size() * (hvd.size() + 1) // 2


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@check
def ranks_and_sizes() -> None:
    assert (hvd.rank(), hvd.size()) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    assert (hvd.local_rank(), hvd.local_size()) == (hvd.rank(), hvd.size())
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
    assert hvd.global_process_set.ranks == list(range(hvd.size()))
    hvd.init()  # again: nothing
    with fails(ValueError, "process_sets='all'", "dynamic"):
        hvd.init(process_sets="all")
    hvd.init(process_sets="dynamic")
    assert not hvd.mpi_enabled()
    assert hvd.nccl_built() == 0


@check
def allreduce_of_every_type() -> None:
    own = hvd.rank() + 1
    product = math.factorial(hvd.size())
    for dtype in (*FLOATS, *INTEGERS):
        tensor = torch.full((3, 2), own, dtype=dtype)
        same(hvd.allreduce(tensor, op=hvd.Sum), torch.full((3, 2), total()))
        same(hvd.allreduce(tensor, op=hvd.Min), torch.full((3, 2), 1))
        same(hvd.allreduce(tensor, op=hvd.Max), torch.full((3, 2), hvd.size()))
        same(hvd.allreduce(tensor, op=hvd.Product), torch.full((3, 2), product))
        same(tensor, torch.full((3, 2), own))
    flags = torch.tensor([hvd.rank() == 0, True, False])
    same(hvd.allreduce(flags, op=hvd.Max), [True, True, False])
    same(hvd.allreduce(flags, op=hvd.Min), [False, True, False])


@check
def average_of_integers_truncates_toward_zero() -> None:
    one = 1 if hvd.rank() == 0 else 0
    same(hvd.allreduce(torch.tensor([5 * one, -5 * one], dtype=torch.int32)), [5 // hvd.size(), -(5 // hvd.size())])


@check
def average_and_op_together_are_an_error() -> None:
    with fails(ValueError, "average"):
        hvd.allreduce(torch.zeros(1), average=True, op=hvd.Sum)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        same(hvd.allreduce(torch.ones(1), average=False), [hvd.size()])
    assert [one.category for one in caught] == [DeprecationWarning]


@check
def prescale_before_and_postscale_after() -> None:
    for dtype in (torch.float32, torch.int32):
        tensor = torch.tensor([3], dtype=dtype)
        scaled = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=2.0)
        same(scaled, [(1.5 if dtype == torch.float32 else 1) * hvd.size() * 2])
    halved = hvd.allreduce(torch.tensor([4.0]), op=hvd.Average, postscale_factor=0.5)
    same(halved, [2.0])


@check
def shapes_strides_and_empty_tensors() -> None:
    same(hvd.allreduce(torch.tensor(2.0), op=hvd.Sum), 2.0 * hvd.size())
    strided = torch.arange(6.0).reshape(2, 3).t()
    same(hvd.allreduce(strided), strided)
    hvd.allreduce_(strided, op=hvd.Sum)
    same(strided, torch.arange(6.0).reshape(2, 3).t() * hvd.size())
    assert hvd.allreduce(torch.zeros(0, 4)).shape == (0, 4)
    with fails(ValueError, "not supported"):
        hvd.allreduce(torch.zeros(1, dtype=torch.complex64))


@check
def in_place_keeps_the_memory() -> None:
    tensor = torch.ones(4)
    address = tensor.data_ptr()
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
    same(tensor, torch.full((4,), hvd.size()))
    assert hvd.broadcast_(tensor, 0) is tensor
    assert tensor.data_ptr() == address


@check
def handles_may_be_waited_for_in_any_order() -> None:
    handles = [hvd.allreduce_async(torch.full((2,), float(i)), name=f"handle {i}", op=hvd.Sum) for i in range(30)]
    while not all(hvd.poll(handle) for handle in handles):
        time.sleep(0.001)
    for i in reversed(range(30)):
        same(hvd.synchronize(handles[i]), [float(i * hvd.size())] * 2)
    assert hvd.synchronize(handles[0]) is None
    assert hvd.poll(handles[0])


@check
def names_match_in_different_orders() -> None:
    for _ in range(3):
        order = list(range(12))
        if hvd.rank() % 2:
            order.reverse()
        handles = {i: hvd.allreduce_async_(torch.full((2,), float(i)), name=f"order {i}", op=hvd.Sum) for i in order}
        for i, handle in handles.items():
            same(hvd.synchronize(handle), [float(i * hvd.size())] * 2)


@check
def two_of_one_name_are_an_error_and_the_first_completes() -> None:
    if hvd.rank() == 0:
        first = hvd.allreduce_async(torch.ones(1), name="double", op=hvd.Sum)
        with fails(ValueError, "double", "rank 0"):
            hvd.allreduce_async(torch.ones(1), name="double", op=hvd.Sum)
        hvd.broadcast(torch.ones(1), 0, name="rejected")
    else:
        hvd.broadcast(torch.ones(1), 0, name="rejected")  # the first of rank 0 has not completed before
        first = hvd.allreduce_async(torch.ones(1), name="double", op=hvd.Sum)
    same(hvd.synchronize(first), [hvd.size()])


def disagree(function: Callable[[], Any], *facts: str) -> None:
    """An error on every rank, after which the next call works."""
    with fails(hvd.HorovodInternalError, *facts):
        function()
    same(hvd.allreduce(torch.ones(1), name="after an error", op=hvd.Sum), [hvd.size()])


@check
def what_ranks_disagree_on_is_an_error_on_each_of_them() -> None:
    odd = hvd.rank() % 2
    disagree(lambda: hvd.allreduce(torch.ones(2 + odd), name="s"), "'s'", "shape", "rank 1")
    disagree(lambda: hvd.allreduce(torch.ones(2, dtype=FLOATS[2 + odd]), name="t"), "'t'", "float32", "float64")
    disagree(lambda: hvd.allreduce(torch.ones(2), name="o", op=(hvd.Sum, hvd.Max)[odd]), "'o'", "sum", "max")
    disagree(lambda: hvd.allreduce(torch.ones(2), name="p", prescale_factor=1.0 + odd), "'p'", "prescale")
    disagree(lambda: hvd.broadcast(torch.ones(2), odd, name="r"), "'r'", "root rank")
    disagree(lambda: hvd.allgather(torch.ones(2, 2 + odd), name="g"), "'g'", "first dimension")
    disagree(lambda: hvd.allgather(torch.tensor(1.0), name="g"), "scalar")
    disagree(lambda: hvd.reducescatter(torch.tensor(1.0), name="x"), "scalar")
    kinds = (lambda: hvd.allreduce(torch.ones(2), name="k"), lambda: hvd.allgather(torch.ones(2), name="k"))
    disagree(kinds[odd], "'k'", "allreduce", "allgather")
    disagree(lambda: hvd.alltoall(torch.ones(hvd.size() + 1)), "rows")
    disagree(lambda: hvd.alltoall(torch.ones(1), torch.ones(hvd.size(), dtype=torch.int32)), "splits")
    disagree(lambda: hvd.broadcast(torch.ones(1), hvd.size()), "root rank")


@check
def grouped_allreduce_waits_for_the_whole_group() -> None:
    tensors = [torch.full((size,), float(hvd.rank() + 1), dtype=dtype) for size in (1, 5) for dtype in FLOATS[2:]]
    for reduced in (hvd.grouped_allreduce(tensors, op=hvd.Sum), hvd.grouped_allreduce_(tensors, op=hvd.Sum)):
        assert [one.tolist() for one in reduced] == [[total()] * size for size in (1, 1, 5, 5)]
    assert tensors[0].item() == total()


@check
def fused_and_large_tensors() -> None:
    tensors = [torch.full((size,), float(hvd.rank() + 1)) for size in (1, 100_000, 600_000, 7)]
    handles = [hvd.allreduce_async_(one, name=f"large {i}", op=hvd.Sum) for i, one in enumerate(tensors)]
    for handle, tensor in zip(handles, tensors, strict=True):
        assert hvd.synchronize(handle) is tensor
        assert tensor.unique().tolist() == [total()]


@check
def allgather_of_different_first_dimensions() -> None:
    own = torch.full((hvd.rank(), 2), hvd.rank(), dtype=torch.bfloat16)
    expected = [rank for rank in range(hvd.size()) for _ in range(rank)]
    same(hvd.allgather(own)[:, 0], expected)
    same(hvd.allgather(torch.tensor([hvd.rank() == 1])), [rank == 1 for rank in range(hvd.size())])
    first, second = hvd.grouped_allgather([own, torch.tensor([hvd.rank()])])
    same(first[:, 1], expected)
    same(second, list(range(hvd.size())))


@check
def broadcast_from_every_rank() -> None:
    for root in range(hvd.size()):
        own = torch.full((2, 2), hvd.rank(), dtype=torch.int16)
        same(hvd.broadcast(own, root), torch.full((2, 2), root))
        same(own, torch.full((2, 2), hvd.rank()))


@check
def alltoall_with_and_without_splits() -> None:
    size, rank = hvd.size(), hvd.rank()
    same(hvd.alltoall(torch.arange(size) + rank * 10), [sender * 10 + rank for sender in range(size)])
    splits = torch.tensor([(rank + other) % 3 for other in range(size)], dtype=torch.int32)
    output, received = hvd.alltoall(torch.full((int(splits.sum()), 2), rank), splits)
    same(received, [(rank + other) % 3 for other in range(size)])
    same(output[:, 0], [other for other in range(size) for _ in range((rank + other) % 3)])
    with fails(ValueError, "integers"):
        hvd.alltoall(torch.ones(size), torch.ones(size))


@check
def reducescatter_gives_the_first_ranks_one_row_more() -> None:
    size, rank = hvd.size(), hvd.rank()
    rows = 2 * size + 1
    tensor = torch.arange(rows, dtype=torch.float32).repeat(2, 1).t().contiguous()
    starts = [0, *(2 * i + 1 for i in range(1, size + 1))]
    same(hvd.reducescatter(tensor, op=hvd.Sum), tensor[starts[rank] : starts[rank + 1]] * size)
    same(hvd.reducescatter(tensor), tensor[starts[rank] : starts[rank + 1]])
    one, other = hvd.grouped_reducescatter([tensor, tensor * 2], op=hvd.Max, postscale_factor=2.0)
    same(other, one * 2)
    counts = torch.full((size,), rank, dtype=torch.int64)
    same(hvd.reducescatter(counts, op=hvd.Sum, prescale_factor=2.0), [size * (size - 1)])


@check
def gradients_of_the_operations() -> None:
    size, rank = hvd.size(), hvd.rank()

    def gradient(function: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> torch.Tensor:
        tensor = torch.ones(*shape, requires_grad=True)
        output = function(tensor)
        output.backward(torch.full_like(output, float(rank + 1)))
        assert tensor.grad is not None
        return tensor.grad

    same(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum), 2), [total()] * 2)
    same(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5), 2), [total() * 0.5] * 2)
    same(gradient(lambda x: hvd.grouped_allreduce([x, x], op=hvd.Sum)[1], 2), [total()] * 2)
    average = torch.tensor(float(total())) / size
    torch.testing.assert_close(gradient(hvd.allreduce, 2), average.expand(2))
    torch.testing.assert_close(gradient(hvd.allgather, rank + 1, 2), average.expand(rank + 1, 2))
    expected = average.expand(2) if rank == 1 else torch.zeros(2)
    torch.testing.assert_close(gradient(lambda x: hvd.broadcast(x, 1), 2), expected)
    splits = torch.full((size,), 2, dtype=torch.int32)
    same(gradient(lambda x: hvd.alltoall(x, splits)[0], 2 * size), [i // 2 + 1 for i in range(2 * size)])
    same(gradient(hvd.alltoall, size), [i + 1 for i in range(size)])
    same(gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), size), [(i + 1) * size for i in range(size)])
    same(gradient(hvd.reducescatter, size), [i + 1 for i in range(size)])


@check
def compression_travels_as_half_precision() -> None:
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        tensor = torch.full((3,), 1.5)
        reduced = hvd.allreduce(tensor, compression=compression)
        assert reduced.dtype == torch.float32
        same(reduced, tensor)
        same(hvd.allreduce(torch.tensor([3]), compression=compression, op=hvd.Max), [3])


@check
def sparse_allreduce_gathers_indices_and_values() -> None:
    own = torch.sparse_coo_tensor([[hvd.rank(), 0]], [1.0, 2.0], (4,))
    result = hvd.sparse_allreduce_async(own, "sparse", hvd.Sum)().to_dense()
    expected = torch.zeros(4)
    for rank in range(hvd.size()):
        expected[rank] += 1
        expected[0] += 2
    same(result, expected)


@check
def adasum_of_parallel_and_orthogonal_tensors() -> None:
    if hvd.size() & (hvd.size() - 1):
        disagree(lambda: hvd.allreduce(torch.ones(2), op=hvd.Adasum), "power of two")
        return
    same(hvd.allreduce(torch.tensor([1.0, 2.0]), op=hvd.Adasum), [1.0, 2.0])
    own = torch.zeros(hvd.size())
    own[hvd.rank()] = 3.0
    same(hvd.allreduce(own, op=hvd.Adasum), [3.0] * hvd.size())


@check
def objects_of_any_size() -> None:
    text = {"rank": hvd.rank(), "filler": "x" * (100_000 * hvd.rank())}
    assert hvd.broadcast_object(text, 1) == {"rank": 1, "filler": "x" * 100_000}
    everything = hvd.allgather_object(text, name="objects")
    assert [len(one["filler"]) for one in everything] == [100_000 * rank for rank in range(hvd.size())]
    assert everything[hvd.rank()] == text


@check
def barrier_waits_for_the_last() -> None:
    folder = Path(hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0))
    if hvd.rank() == 0:  # the others come to the barrier before it
        until(lambda: len(list(folder.iterdir())) == hvd.size() - 1)
    (folder / str(hvd.rank())).touch()
    hvd.barrier()
    assert (folder / "0").exists()


@check
def a_joined_rank_contributes_zeros() -> None:
    last = hvd.size() - 1
    for _ in range(2):  # the second time from the cache
        if hvd.rank() == 0:
            assert hvd.join() == last
            continue
        same(hvd.allreduce(torch.tensor([6.0]), name="uneven", op=hvd.Sum), [6.0 * last])
        averaged = hvd.allreduce(torch.tensor([6.0]), name="uneven mean")
        torch.testing.assert_close(averaged, torch.tensor([6.0 * last / hvd.size()]))
        with fails(hvd.HorovodInternalError, "join", "rank 0"):
            hvd.allgather(torch.ones(1))
        if hvd.rank() == last:
            time.sleep(0.1)  # the others have joined by then, which nothing shows
        assert hvd.join() == last
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))


@check
def process_sets_have_operations_of_their_own() -> None:
    rank = hvd.rank()
    first = hvd.add_process_set([0])
    others = hvd.add_process_set(hvd.ProcessSet(range(hvd.size() - 1, 0, -1)))
    assert others.ranks == list(range(1, hvd.size()))
    with fails(ValueError, "exists"):
        hvd.add_process_set([0])
    mine = first if rank == 0 else others
    assert (mine.size(), mine.included()) == (1 if rank == 0 else hvd.size() - 1, True)
    assert mine.rank() == max(rank - 1, 0)
    same(hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=mine, name="mine"), [mine.size()] * 2)
    same(
        hvd.broadcast(torch.tensor([rank]), hvd.size() - 1 if rank else 0, process_set=mine),
        [hvd.size() - 1 if rank else 0],
    )
    assert hvd.allgather_object(rank, process_set=mine) == mine.ranks
    hvd.barrier(process_set=mine)
    with fails(ValueError, f"rank {rank}"):
        hvd.allreduce(torch.ones(2), process_set=others if rank == 0 else first)
    assert hvd.remove_process_set(first)
    assert hvd.remove_process_set(others)
    assert not hvd.remove_process_set(others)
    assert not hvd.remove_process_set(hvd.global_process_set)
    with fails(ValueError, "not registered"):
        hvd.allreduce(torch.ones(2), process_set=first)


@check
def loss_bound_only_where_asked() -> None:
    with mlt.torch.lossy(0.1):
        same(hvd.allreduce(torch.ones(1000), op=hvd.Sum), torch.full((1000,), float(hvd.size())))
    with mlt.torch.lossy(0.1 if hvd.rank() else 0.0):
        disagree_text = "loss bound"
        with fails(hvd.HorovodInternalError, disagree_text):
            hvd.allreduce(torch.ones(10), op=hvd.Sum)
    same(hvd.allreduce(torch.ones(1), op=hvd.Sum), [hvd.size()])


def model_of(seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def batch_of(rank: int) -> torch.Tensor:
    return torch.linspace(-1, 1, 12).reshape(3, 4) * (rank + 1)


def expected_after(steps: int, *, passes: int = 1) -> list[torch.Tensor]:
    """Parameters after training on all ranks' batches in one process."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(passes):
            for rank in range(hvd.size()):
                (model(batch_of(rank)).square().sum() / hvd.size()).backward()
        optimizer.step()
    return [one.detach() for one in model.parameters()]


def train(steps: int, *, passes: int = 1, **options: Any) -> tuple[nn.Module, Any]:
    model = model_of(hvd.rank() + 1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    groups = options.get("groups")
    if callable(groups):
        options["groups"] = groups(model)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        named_parameters=model.named_parameters(),
        backward_passes_per_step=passes,
        **options,
    )
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(passes):
            model(batch_of(hvd.rank())).square().sum().backward()
        optimizer.step()
    return model, optimizer


@check
def optimizer_trains_as_one_process_would() -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"passes": 2},
        {"groups": 2},
        {"groups": lambda model: [[model[0].weight, model[2].bias]]},
        {"gradient_predivide_factor": 2.0},
        {"loss_bound": mlt.torch.warm_up(0.1, steps=1)},
    ]
    for options in variants:
        model, optimizer = train(3, **options)
        assert isinstance(optimizer, torch.optim.SGD)
        for own, expected in zip(model.parameters(), expected_after(3, passes=options.get("passes", 1)), strict=True):
            torch.testing.assert_close(own.detach(), expected)
        mlt_bits = hvd.allgather_object([one.detach().numpy().tobytes() for one in model.parameters()])
        assert all(one == mlt_bits[0] for one in mlt_bits), options


@check
def optimizer_compresses() -> None:
    model, _ = train(2, compression=hvd.Compression.fp16)
    for own, expected in zip(model.parameters(), expected_after(2), strict=True):
        torch.testing.assert_close(own.detach(), expected, rtol=1e-2, atol=1e-2)


@check
def optimizer_synchronizes_before_clipping() -> None:
    model, optimizer = train(1)
    model(batch_of(hvd.rank())).square().sum().backward()
    with fails(AssertionError, "zero_grad"):
        optimizer.zero_grad()
    optimizer.synchronize()
    norms = hvd.allgather_object(float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
    assert len(set(norms)) == 1
    with optimizer.skip_synchronize(), warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    model(batch_of(hvd.rank())).square().sum().backward()
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    assert any("skip_synchronize" in str(one.message) for one in caught)


@check
def optimizer_reduces_parameters_without_a_gradient() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    before = model[0].weight.detach().clone()
    part = model[0] if hvd.rank() == 0 else model[2]
    (part.weight * (hvd.size() if hvd.rank() == 0 else 0.0)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(model[0].weight.detach(), before - 1.0)


@check
def optimizer_refuses_bad_arguments() -> None:
    model = model_of()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with fails(ValueError, "unique", "twice"):
        hvd.DistributedOptimizer(sgd, [("twice", one) for one in model.parameters()])
    with fails(ValueError, "not named", "(2,)"):
        hvd.DistributedOptimizer(sgd, list(model.named_parameters())[:-1])
    with fails(ValueError, "tuples"):
        hvd.DistributedOptimizer(sgd, model.parameters())
    with fails(ValueError, "backward_passes_per_step"):
        hvd.DistributedOptimizer(sgd, backward_passes_per_step=0)
    with fails(ValueError, "op != Average"):
        hvd.DistributedOptimizer(sgd, op=hvd.Sum, gradient_predivide_factor=2.0)
    for op in (hvd.Max, hvd.Adasum):
        with fails(ValueError, "loss_bound", op.name):
            hvd.DistributedOptimizer(sgd, op=op, loss_bound=0.1)
    with fails(ValueError, "positive integer", "not -1"):
        hvd.DistributedOptimizer(sgd, groups=-1)
    with fails(ValueError, "once"):
        hvd.DistributedOptimizer(sgd, groups=[[model[0].weight], [model[0].weight]])
    optimizer = hvd.DistributedOptimizer(sgd)
    model(batch_of(0)).sum().backward()
    with fails(AssertionError, "backward_passes_per_step"):
        model(batch_of(0)).sum().backward()
    optimizer.step()


@check
def groups_with_a_sparse_gradient_reduce_all_their_members() -> None:
    torch.manual_seed(1)
    table, layer = nn.Embedding(6, 2, sparse=True), nn.Linear(2, 1)
    parameters = [table.weight, *layer.parameters()]
    sgd = torch.optim.SGD(parameters, lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, groups=[parameters])
    before = [one.detach().clone() for one in parameters]
    (table(torch.tensor([hvd.rank()])).sum() + sum(one.sum() for one in layer.parameters()) * hvd.rank()).backward()
    optimizer.step()
    mean = (hvd.size() - 1) / 2
    for one, start in zip(parameters[1:], before[1:], strict=True):
        torch.testing.assert_close(one.detach(), start - mean)
    expected = before[0].clone()
    expected[: hvd.size()] -= 1.0 / hvd.size()
    torch.testing.assert_close(table.weight.detach(), expected)


@check
def optimizer_of_sparse_gradients() -> None:
    for dense in (False, True):
        torch.manual_seed(1)
        table = nn.Embedding(6, 2, sparse=True)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), sparse_as_dense=dense
        )
        before = table.weight.detach().clone()
        table(torch.tensor([hvd.rank(), 5])).sum().backward()
        optimizer.step()
        expected = before.clone()
        expected[: hvd.size()] -= 1.0 / hvd.size()
        expected[5] -= 1.0
        torch.testing.assert_close(table.weight.detach(), expected)


@check
def optimizer_of_gradients_that_are_sparse_on_one_rank_only() -> None:
    table = nn.Embedding(6, 2, sparse=hvd.rank() == 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters())
    for _ in range(2):
        started = time.monotonic()
        table(torch.tensor([hvd.rank()])).sum().backward()
        with fails(hvd.HorovodInternalError, "'weight'", "allgather on rank 1", "sparse_as_dense"):
            optimizer.step()
        assert time.monotonic() - started < 5.0  # at once, not once all ranks wait
        optimizer.zero_grad()


@check
def optimizer_of_a_process_set() -> None:
    others = hvd.add_process_set(range(1, hvd.size()))
    model = model_of()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), process_set=others
    )
    before = model[2].bias.detach().clone()
    (model[2].bias * float(hvd.rank())).sum().backward()
    optimizer.step()
    ranks = range(1, hvd.size())
    average = 0.0 if hvd.rank() == 0 else sum(ranks) / len(ranks)
    torch.testing.assert_close(model[2].bias.detach(), before - average)
    hvd.remove_process_set(others)


@check
def optimizer_adds_changes_by_adasum() -> None:
    if hvd.size() & (hvd.size() - 1):
        return
    model = model_of()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), op=hvd.Adasum
    )
    before = model[2].bias.detach().clone()
    model[2].bias.sum().backward()  # the same on all ranks: parallel changes, of which Adasum takes the mean
    optimizer.step()
    torch.testing.assert_close(model[2].bias.detach(), before - 1.0)


@check
def optimizer_of_adasum_has_groups_and_sparse_gradients() -> None:
    if hvd.size() & (hvd.size() - 1):
        return
    own = f"{hvd.rank()} of {hvd.size()}"
    found = {}
    for number, options in enumerate(({}, {"groups": 2}, {"num_groups": 3}, {"groups": "lists"})):
        torch.manual_seed(1)
        table, layer = nn.Embedding(6, 2, sparse=True), nn.Linear(2, 1)
        parameters = [table.weight, *layer.parameters()]
        if options == {"groups": "lists"}:
            options = {"groups": [[table.weight, layer.bias]]}
        sgd = torch.optim.SGD(parameters, lr=0.5)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DeprecationWarning)
            optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Adasum, sparse_as_dense=number % 2 == 0, **options)
        assert len(caught) == ("num_groups" in options)
        for step in range(2):
            optimizer.zero_grad()
            layer(table(torch.tensor([hvd.rank(), 5]))).square().sum().backward()
            with fails(AssertionError, "Skipping synchronization"), optimizer.skip_synchronize():
                pass
            operations = operations_of(hvd, optimizer.step)
            assert len(operations) == (1, 2, 3, 2)[number], f"{own}, step {step}: {operations}"
        found[number] = [one.detach().clone() for one in parameters]
    # Adasum is computed for each tensor: the groups do not change the result.
    for number in (1, 2, 3):
        assert all(torch.equal(one, other) for one, other in zip(found[number], found[0], strict=True)), own
    with fails(ValueError, "positive integer", "not 0"):
        hvd.DistributedOptimizer(sgd, op=hvd.Adasum, groups=0)
    with fails(ValueError, "once"):
        hvd.DistributedOptimizer(sgd, op=hvd.Adasum, groups=[[table.weight], [table.weight]])


@check
def optimizer_state_of_the_root_reaches_new_optimizers() -> None:
    for kind in (torch.optim.Adam, torch.optim.SGD, torch.optim.LBFGS):
        model = model_of()
        options = {"lr": 0.1 + hvd.rank(), **({"momentum": 0.9} if kind is torch.optim.SGD else {})}
        optimizer: Any = kind(model.parameters(), **options)
        if hvd.rank() == 1:

            def closure(model: nn.Module = model, optimizer: Any = optimizer) -> torch.Tensor:
                optimizer.zero_grad()
                loss: torch.Tensor = model(batch_of(0)).square().sum()
                loss.backward()
                return loss

            optimizer.step(closure)
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        states = hvd.allgather_object(optimizer.state_dict())
        assert all(str(one) == str(states[1]) for one in states), kind
        assert optimizer.param_groups[0]["lr"] == 1.1


@check
def sync_batch_norm_has_the_statistics_of_all_ranks() -> None:
    everything = torch.randn(4 * hvd.size() + 3, 3, 2, generator=torch.Generator().manual_seed(7)) * 3 + 5
    bounds = [0, *(4 * (i + 1) + 3 for i in range(hvd.size()))]  # rank 0 has more
    alone, shared = nn.BatchNorm1d(3), hvd.SyncBatchNorm(3)
    for norm in (alone, shared):
        nn.init.constant_(norm.weight, 2.0)
    for _ in range(2):
        whole = everything.clone().requires_grad_()
        part = everything[bounds[hvd.rank()] : bounds[hvd.rank() + 1]].clone().requires_grad_()
        expected, output = alone(whole), shared(part)
        mine = slice(bounds[hvd.rank()], bounds[hvd.rank() + 1])
        torch.testing.assert_close(output, expected[mine])
        expected.pow(3).sum().backward()
        output.pow(3).sum().backward()
        assert whole.grad is not None
        torch.testing.assert_close(part.grad, whole.grad[mine], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(shared.running_mean, alone.running_mean)
    torch.testing.assert_close(shared.running_var, alone.running_var)
    assert shared.num_batches_tracked == 2
    torch.testing.assert_close(shared.eval()(everything), alone.eval()(everything))


@check
def elastic_state_goes_back_to_the_last_commit() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=3, losses=[1.0])
    state.commit()
    state.epoch = 4
    state.losses.append(2.0)
    before = model[0].bias.detach().clone()
    with torch.no_grad():
        model[0].bias.add_(1.0)
    state.restore()
    assert (state.epoch, state.losses) == (3, [1.0])
    same(model[0].bias.detach(), before)
    # The rank that committed most has the state that counts.
    state.epoch = hvd.rank()
    if hvd.rank() == 1:
        state.save()
        state._commits += 1
    state.sync()
    assert state.epoch == 1


@check
def elastic_sampler_divides_what_is_left() -> None:
    sampler = hvd.elastic.ElasticSampler(range(20), shuffle=True)
    first = hvd.allgather_object(list(sampler)[:2])
    sampler.record_batch(0, 2)
    sampler.load_state_dict(sampler.state_dict())
    rest = hvd.allgather_object(list(sampler))
    seen = {index for part in (*first, *rest) for index in part}
    assert seen == set(range(20))
    assert {len(part) for part in rest} == {len(sampler)}
    sampler.set_epoch(1)
    assert len(sampler) == math.ceil(20 / hvd.size())


@check
def hosts_updated_on_one_rank_interrupts_all() -> None:
    state = hvd.elastic.ObjectState(epoch=0)
    state.commit()
    if hvd.rank() == 1:
        state.on_hosts_updated()
    with fails(hvd.elastic.HostsUpdatedInterrupt):
        state.commit()


@check
def timeline_has_every_operation() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timeline.json"
        hvd.start_timeline(str(path), mark_cycles=True)
        hvd.allreduce(torch.ones(3), name="recorded")
        hvd.stop_timeline()
        hvd.allreduce(torch.ones(3), name="not recorded")
        events = json.loads(path.read_text())
    (row,) = [event["pid"] for event in events if event["ph"] == "M"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [(event["name"], event["pid"]) for event in spans] == [("NEGOTIATE_ALLREDUCE", row), ("ALLREDUCE", row)]
    assert spans[0]["ts"] + spans[0]["dur"] == spans[1]["ts"]
    assert any(event["name"] == "CYCLE_START" for event in events)


@check
def byteps_push_pull_in_every_form() -> None:
    own = torch.full((3,), float(hvd.rank() + 1))
    same(bps.push_pull(own, average=False), [total()] * 3)
    torch.testing.assert_close(bps.push_pull(own, name="averaged"), torch.full((3,), total() / hvd.size()))
    same(bps.push_pull(own, average=False, compression=bps.Compression.fp16), [total()] * 3)
    assert bps.declare("first") == bps.declare("first") == bps.declare("second") - 1
    handle = bps.push_pull_async(own, average=False, name="first", priority=3)
    same(bps.synchronize(handle), [total()] * 3)
    same(own, [float(hvd.rank() + 1)] * 3)
    handle, declared = bps.push_pull_group_sync_inplace(own, average=False, name="third")
    assert declared == bps.declare("third") + 1
    assert bps.synchronize(handle) is own
    same(bps.push_pull_inplace(own), [total()] * 3)
    tensor = torch.ones(2, requires_grad=True)
    bps.push_pull(tensor, average=False).sum().backward()
    same(tensor.grad, [hvd.size()] * 2)
    now, rate = bps.get_pushpull_speed()
    assert rate > 0
    assert abs(now / 1000 - time.time()) < 10


@check
def byteps_optimizer_and_module_train_as_one_process_would() -> None:
    for uses_module in (False, True):
        model = model_of(hvd.rank() + 1)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        replica: nn.Module = model
        if uses_module:
            replica = bps.parallel.DistributedDataParallel(model)
        else:
            optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
            bps.broadcast_parameters(model.state_dict(), root_rank=0)
            bps.broadcast_optimizer_state(optimizer, root_rank=0)
        for _ in range(3):
            optimizer.zero_grad()
            replica(batch_of(hvd.rank())).square().sum().backward()
            optimizer.step()
        for own, expected in zip(model.parameters(), expected_after(3), strict=True):
            torch.testing.assert_close(own.detach(), expected)


@check
def byteps_module_accumulates_and_shares_buffers() -> None:
    replica = bps.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
    inputs = batch_of(hvd.rank())
    with replica.no_sync():
        replica(inputs).square().sum().backward()
    replica(inputs).square().sum().backward()
    gradients = hvd.allgather_object([one.grad.tolist() for one in replica.parameters()])
    assert all(one == gradients[0] for one in gradients)
    replica(inputs)
    replica.eval()(inputs)  # its forward took the buffers of rank 0
    means = hvd.allgather_object(replica.module[1].running_mean.tolist())
    assert all(one == means[0] for one in means)
    with fails(ValueError, "one device"):
        bps.parallel.DistributedDataParallel(nn.Linear(1, 1), device_ids=[0, 1])


@check
def byteps_suspends_and_resumes() -> None:
    assert bps.broadcast_object(bps.rank(), root_rank=1) == 1
    rank = bps.rank()
    bps.suspend()
    bps.resume(num_workers=2, num_servers=0, global_rank=1 - rank)
    assert (bps.rank(), bps.size(), bps.local_size()) == (1 - rank, 2, 2)
    bps.suspend()
    bps.resume(num_workers=2, num_servers=0, global_rank=rank)
    same(bps.push_pull(torch.ones(1), average=False), [2])


@check
def init_and_shutdown_a_hundred_times() -> None:
    for turn in range(100):
        hvd.shutdown()
        assert not hvd.is_initialized()
        with fails(ValueError, "hvd.init()"):
            hvd.rank()
        hvd.init(process_sets=[[0]] if turn % 10 == 0 else None)
        same(hvd.allreduce(torch.ones(1), op=hvd.Sum, name="again"), [hvd.size()])


def semantics(checks: list[str]) -> dict[str, str]:
    """The failures of these checks, by name; empty: none."""
    return CHECKS.in_job(hvd, checks)


def ended_rank() -> str:
    """Rank 1 ends with an error; what the others are told."""
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        raise ArithmeticError("of the program")
    try:
        hvd.allreduce(torch.ones(1), name="never")
    except hvd.HorovodInternalError as error:
        return str(error)
    return "no error"


def threads_apart(late_seconds: float) -> list[float]:
    """Each rank waits for something else, until a second thread of it is in time for the other."""
    hvd.init()
    names = ["first", "second"] if hvd.rank() == 0 else ["second", "first"]
    results: dict[str, Any] = {}

    def call(name: str) -> None:
        results[name] = hvd.broadcast_object(name, root_rank=0, name=name)

    def call_late() -> None:
        time.sleep(late_seconds)
        call(names[1])

    thread = threading.Thread(target=call_late, name="slow")
    thread.start()
    call(names[0])
    thread.join()
    hvd.shutdown()
    return [results["first"] == "first", results["second"] == "second"]


def waits_apart() -> str:
    """The error of a rank that waits for something else than the other."""
    hvd.init()
    try:
        hvd.synchronize(hvd.allreduce_async(torch.ones(1), name=f"of rank {hvd.rank()}"))
    except hvd.HorovodInternalError as error:
        hvd.barrier()  # the next call works
        hvd.shutdown()
        return str(error)
    return "no error"


def elastic(steps: int, killed: int) -> list[float]:
    """Training in which the test kills a rank, once, and starts it again."""
    hvd.init()
    model = nn.Linear(1, 1, bias=False)  # without an optimizer, whose first step imports for seconds
    nn.init.constant_(model.weight, 0.0)
    state = hvd.elastic.TorchState(model=model, step=0, restarts=0)

    def count_restart() -> None:
        state.restarts += 1

    state.register_reset_callbacks([count_restart])

    @hvd.elastic.run
    def training(state: Any) -> list[float]:
        while state.step < steps:
            if hvd.rank() == killed and state.step == steps // 2 and "AGAIN" not in os.environ:
                print("kill me", flush=True)
                time.sleep(60)
            with torch.no_grad():
                model.weight += hvd.allreduce(torch.ones(1, 1), name="change")
            state.step += 1
            state.commit()
        return [model.weight.item(), state.step, state.restarts]

    return training(state)


def elastic_members(steps: int, killed: int) -> list[Any]:
    """Training of an elastic job. Without ``killed``, ``steps`` steps; else the worker of this rank kills itself
    ``steps`` steps after the third one joined, and the others end as many steps later. Each size comes with the step
    that was the first one with it."""
    hvd.init()
    model = nn.Linear(3, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5), named_parameters=model.named_parameters()
    )
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0, sizes=[])

    @hvd.elastic.run
    def training(state: Any) -> None:
        while not is_over(state):
            if hvd.rank() == killed and hvd.size() == 3 and state.step >= state.sizes[-1][1] + steps:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(10 * state.step + hvd.rank())
            model(torch.randn(4, 3, generator=generator)).square().sum().backward()
            optimizer.step()
            if not state.sizes or hvd.size() != state.sizes[-1][0]:
                state.sizes = [*state.sizes, [hvd.size(), state.step]]
                print("size", hvd.size(), flush=True)
            state.step += 1
            time.sleep(0.01)
            state.commit()

    def is_over(state: Any) -> bool:
        if killed < 0:
            return state.step >= steps
        return len(state.sizes) >= 3 and state.step >= state.sizes[2][1] + steps

    training(state)
    return [model.weight.flatten().tolist(), state.step, state.sizes, os.getpid()]


ELASTIC_SAMPLES = 16


def elastic_training(killed: int) -> dict[str, Any]:
    """Two epochs with momentum and an ``ElasticSampler``; the test kills a rank in the second and starts it again."""
    again = "AGAIN" in os.environ
    hvd.init()
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 99.0 if again else 0.0)
    plain = torch.optim.SGD(model.parameters(), lr=9.0 if again else 0.5, momentum=0.5)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(range(ELASTIC_SAMPLES), seed=3)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, seen=[[], []])

    @hvd.elastic.run
    def training(state: Any) -> None:
        while state.epoch < 2:
            left = list(state.sampler)
            for batch in range(len(left) // 2):
                if hvd.rank() == killed and state.epoch == 1 and len(state.seen[1]) == 4 and not again:
                    print("kill me", flush=True)
                    time.sleep(60)
                own = left[2 * batch : 2 * batch + 2]
                state.optimizer.zero_grad()
                state.model(torch.tensor([[float(one)] for one in own])).mean().backward()
                state.optimizer.step()
                state.seen[state.epoch] += [one for part in hvd.allgather_object(own) for one in part]
                state.sampler.record_batch(batch, 2)
                state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            state.commit()

    training(state)
    (momentum,) = [one["momentum_buffer"].item() for one in optimizer.state_dict()["state"].values()]
    rates = [group["lr"] for group in optimizer.param_groups]
    return {"weight": model.weight.item(), "momentum": momentum, "rates": rates, "seen": state.seen}


def interrupted(skip_sync: bool) -> list[Any]:
    """A rank learns of other hosts in its third step: all connect again, and continue from where they are."""
    hvd.init()
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 0.0)
    synced, resets = [], []

    class Counted(hvd.elastic.TorchState):
        def sync(self) -> None:
            synced.append(self.step)
            super().sync()

    state = Counted(model=model, step=0)
    state.register_reset_callbacks([lambda: resets.append(state.step)])

    @hvd.elastic.run
    def training(state: Any) -> None:
        while state.step < 5:
            with torch.no_grad():
                model.weight += hvd.allreduce(torch.ones(1, 1), name="change")
            state.step += 1
            if state.step == 3 and not resets:
                if skip_sync:
                    raise hvd.elastic.HostsUpdatedInterrupt(skip_sync=True)
                if hvd.rank() == 1:
                    state.on_hosts_updated(1.0, 1)
            state.commit()

    training(state)
    return [model.weight.item(), state.step, synced, resets, hvd.is_initialized()]


def starts_twice() -> str:
    """Two jobs of a process, one after another."""
    for _ in range(2):
        hvd.init()
        hvd.barrier()
        hvd.shutdown()
    return "done"


def main() -> None:
    program, options = sys.argv[1], json.loads(sys.argv[2])
    print(json.dumps(globals()[program](**options)))


if __name__ == "__main__":
    main()
