"""The programs of the multi-process tests; ``job.run_job`` runs one of them per process: programs.py NAME OPTIONS."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import mlt

SERVICES = int(os.environ["MLT_SERVICES"])
WORKERS = int(os.environ["WORLD_SIZE"])
RANK = int(os.environ["RANK"])


def packet_options(options: dict[str, Any]) -> dict[str, Any]:
    """The context's options; where packets are lost, there are as many of them as on an Ethernet."""
    drop = options.get("drop", 0.0)
    faults = mlt.Faults(drop=drop, seed=options.get("seed", 1) + RANK)
    return {"faults": faults, "segment_bytes": 1_432 if drop else None}


def service(options: dict[str, Any]) -> None:
    with mlt.Context(RANK, WORKERS, SERVICES, **packet_options(options)) as context:
        mlt.SummationService(context).run()


def worker(name: str, options: dict[str, Any]) -> None:
    import mlt.torch
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    with mlt.Context(RANK, WORKERS, SERVICES, **packet_options(options)) as context:
        mlt.torch.use_context(context)
        dist.init_process_group("mlt")
        answer = PROGRAMS[name](context, options)
        dist.destroy_process_group()
    print(json.dumps(answer))


def collectives(context: mlt.Context, options: dict[str, Any]) -> Any:
    """Every operation of the backend against its definition; each element type that models use."""
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    everyone = range(size)
    for count in (1, 7, 100_003):
        for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
            x = torch.full((count,), rank + 1, dtype=dtype)
            dist.all_reduce(x)
            assert torch.equal(x, torch.full((count,), sum(r + 1 for r in everyone), dtype=dtype)), (count, dtype)
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar, op=dist.ReduceOp.AVG)
    assert scalar.item() == (size - 1) / 2
    for dtype in (torch.uint8, torch.int32, torch.int64):
        whole = torch.full((5,), rank + 1, dtype=dtype)
        dist.all_reduce(whole, op=dist.ReduceOp.AVG)
        assert torch.equal(whole, torch.full((5,), (size + 1) // 2, dtype=dtype)), dtype
        whole = torch.full((5,), rank + 1, dtype=dtype)
        dist.reduce(whole, 0, op=dist.ReduceOp.AVG)
        assert whole[0].item() == ((size + 1) // 2 if rank == 0 else rank + 1), dtype
        part = torch.zeros(2, dtype=dtype)
        dist.reduce_scatter_tensor(part, torch.full((2 * size,), rank + 1, dtype=dtype), op=dist.ReduceOp.AVG)
        assert torch.equal(part, torch.full((2,), (size + 1) // 2, dtype=dtype)), dtype
    strided = torch.zeros(6, 4).t()
    strided += rank
    dist.all_reduce(strided, op=dist.ReduceOp.MAX)
    assert torch.equal(strided, torch.full((4, 6), float(size - 1)))
    x = torch.full((5,), float(rank))
    dist.broadcast(x, src=size - 1)
    assert torch.equal(x, torch.full((5,), float(size - 1)))
    gathered = [torch.zeros(3, dtype=torch.int32) for _ in everyone]
    dist.all_gather(gathered, torch.full((3,), rank, dtype=torch.int32))
    assert [int(t[2]) for t in gathered] == list(everyone)
    flat = torch.zeros(2 * size)
    dist.all_gather_into_tensor(flat, torch.full((2,), float(rank)))
    assert flat.tolist() == [float(r) for r in everyone for _ in range(2)]
    mine = torch.zeros(3)
    dist.reduce_scatter_tensor(mine, torch.arange(3.0 * size) + rank)
    assert torch.equal(mine, (torch.arange(3.0) + 3 * rank) * size + sum(everyone))
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert [o["rank"] for o in objects] == list(everyone)
    empty = torch.zeros(0)
    dist.all_reduce(empty)
    return collectives_in_groups(rank, size)


def collectives_in_groups(rank: int, size: int) -> Any:
    import torch
    import torch.distributed as dist

    # An unfinished send may not hold up a collective that is called after it, nor one receive another.
    token = torch.full((4,), float(rank))
    if rank == 0:
        sent = [dist.isend(token + tag, 1, tag=tag) for tag in (0, 1)]
    dist.barrier()
    if rank == 1:
        received = [torch.zeros(4), torch.zeros(4)]
        waits = [dist.irecv(received[tag], 0, tag=tag) for tag in (0, 1)]
        for wait in reversed(waits):
            wait.wait()
        assert [t[0].item() for t in received] == [0.0, 1.0]
    elif rank == 0:
        for work in sent:
            work.wait()
    group = dist.new_group([0, 1])
    if rank < 2:
        x = torch.ones(1)
        dist.all_reduce(x, group=group)
        assert x.item() == 2.0
    # Rank order decides the sum, so floating-point sums agree to the last bit.
    torch.manual_seed(rank)
    x = torch.randn(50_000) * 1e3
    dist.all_reduce(x)
    return {"sha256": hashlib.sha256(x.numpy().tobytes()).hexdigest(), "size": size}


def verbs(context: mlt.Context, options: dict[str, Any]) -> Any:
    """The other verbs of c10d against their definition, coalesced and uneven forms included."""
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional

    rank, size = dist.get_rank(), dist.get_world_size()
    last = size - 1

    for operation, combine in [
        (dist.ReduceOp.BAND, lambda a, b: a & b),
        (dist.ReduceOp.BOR, lambda a, b: a | b),
        (dist.ReduceOp.BXOR, lambda a, b: a ^ b),
    ]:
        x = torch.arange(20_000) * (rank + 3)
        expected = torch.arange(20_000) * 3
        for other in range(1, size):
            expected = combine(expected, torch.arange(20_000) * (other + 3))
        dist.all_reduce(x, op=operation)
        assert torch.equal(x, expected), operation

    callbacks(size)
    sparse(rank, size)

    # As torch 2.14 looks for a group's backend, before it sends.
    assert not dist.group.WORLD._get_backend(torch.device("cpu")).supports_coalescing
    after, before = torch.empty(3), torch.full((3,), float(rank))
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.irecv, after, (rank - 1) % size), dist.P2POp(dist.isend, before, (rank + 1) % size)]
    ):
        work.wait()
    assert after.tolist() == [float((rank - 1) % size)] * 3

    x = torch.full((7,), float(rank + 1))
    dist.reduce(x, dst=last)
    assert torch.equal(x, torch.full((7,), float(sum(range(1, size + 1)) if rank == last else rank + 1)))

    gathered = [torch.zeros(2, 3) for _ in range(size)] if rank == last else None
    dist.gather(torch.full((2, 3), float(rank)), gathered, dst=last)
    assert gathered is None or [float(one[1, 2]) for one in gathered] == [float(r) for r in range(size)]

    mine = torch.zeros(4)
    dist.scatter(mine, [torch.full((4,), float(r)) for r in range(size)] if rank == last else None, src=last)
    assert mine.tolist() == [float(rank)] * 4

    # Rank i sends i + j + 1 elements to rank j.
    parts = [torch.full((rank + to + 1,), float(10 * rank + to)) for to in range(size)]
    arrived = [torch.zeros(source + rank + 1) for source in range(size)]
    dist.all_to_all(arrived, parts)
    assert [one.tolist() for one in arrived] == [[float(10 * s + rank)] * (s + rank + 1) for s in range(size)]
    flat = torch.zeros(sum(one.numel() for one in arrived))
    splits = [[one.numel() for one in many] for many in (arrived, parts)]
    dist.all_to_all_single(flat, torch.cat(parts), *splits)
    assert torch.equal(flat, torch.cat(arrived))
    even = torch.zeros(2 * size, 3)
    dist.all_to_all_single(even, torch.arange(6.0 * size).reshape(2 * size, 3) + 100 * rank)
    wanted = [torch.arange(6.0 * size).reshape(2 * size, 3)[2 * rank : 2 * rank + 2] + 100 * r for r in range(size)]
    assert torch.equal(even, torch.cat(wanted))

    whole = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD)
    assert whole.tolist() == [float(r) for r in range(size) for _ in range(2)]
    share = functional.reduce_scatter_tensor(torch.arange(2.0 * size), "sum", 0, dist.group.WORLD)
    assert share.tolist() == [size * (2.0 * rank + i) for i in range(2)]
    several = [torch.full((5,), float(rank)), torch.full((70_000,), rank + 1.0), torch.full((2, 2), rank + 2.0)]
    dist.all_reduce_coalesced(several)
    total = sum(range(size))
    assert [(float(one.min()), float(one.max())) for one in several] == [
        (float(total + i * size),) * 2 for i in range(3)
    ]
    many = functional.all_gather_into_tensor_coalesced([torch.full((1,), float(rank))] * 2, dist.group.WORLD)
    assert [one.tolist() for one in many] == [[float(r) for r in range(size)]] * 2

    # In one piece, each on its own because they are long, and of sizes that differ.
    for rows in ([(2, 3)] * size, [(200, 300)] * size, [(i + 1, 2) for i in range(size)]):
        for dtype in (torch.complex64, torch.bool, torch.bfloat16):
            columns = torch.full(rows[rank][::-1], rank % 2, dtype=dtype).t()
            copies = [torch.zeros(shape, dtype=dtype) for shape in rows]
            dist.all_gather(copies, columns)
            assert all(torch.equal(one, torch.full(rows[r], r % 2, dtype=dtype)) for r, one in enumerate(copies))
    # A caller that only polls finds the results too: a gathered list is filled, a mean of integers divided.
    copies, sums = [torch.zeros(5) for _ in range(size)], torch.full((4,), 3 * size)
    for work in (
        dist.all_gather(copies, torch.full((5,), float(rank)), async_op=True),
        dist.all_reduce(sums, op=dist.ReduceOp.AVG, async_op=True),
    ):
        while not work.is_completed():
            time.sleep(0.001)
    assert [float(one[4]) for one in copies] == [float(r) for r in range(size)]
    assert sums.tolist() == [3 * size] * 4
    into = torch.zeros(3, 2 * size).t()
    share = torch.zeros(2 * size, 3)
    dist.all_gather_into_tensor(share, torch.full((3, 2), float(rank)).t())
    assert [float(one) for one in share[:, 1]] == [float(r) for r in range(size) for _ in range(2)]
    try:
        dist.all_gather_into_tensor(into, torch.full((2, 3), float(rank)))
    except (ValueError, RuntimeError):
        pass
    else:
        raise AssertionError("an output that is not contiguous was taken")

    # A parameter, and a result of one, are values here: no part of a graph.
    parameter = torch.nn.Parameter(torch.ones(3))
    with torch.no_grad():
        dist.all_reduce(parameter)
    assert parameter.tolist() == [float(size)] * 3
    copies = [torch.zeros(3) for _ in range(size)]
    dist.all_gather(copies, parameter)
    assert not any(copy.requires_grad for copy in copies)

    # Tags of 31 bits, and every rank's message once, from whichever source.
    for peer in range(size):
        if peer != rank:
            dist.isend(torch.full((5,), float(rank)), peer, tag=2**31 - 1)
    heard: dict[int, float] = {}
    for _ in range(size - 1):
        token = torch.zeros(5)
        source = dist.recv(token, tag=2**31 - 1)
        heard[source] = float(token[0])
    assert heard == {peer: float(peer) for peer in range(size) if peer != rank}, heard

    # What a callback of a finished call waits for.
    second = torch.ones(1)

    def wait_for_another(_: Any) -> float:
        dist.all_reduce(second)
        return float(second)

    first = dist.all_reduce(torch.ones(1), async_op=True)
    assert first.get_future().then(wait_for_another).wait() == float(size)
    return {"size": size}


def expect_near(found: Any, part: slice, what: str, *, dtype: Any, model: Any, limit: Any) -> None:
    assert found.dtype == dtype
    assert bool(((found.double() - model[part]).abs() <= limit[part]).all()), (what, dtype)


def premultiplied(context: mlt.Context, options: dict[str, Any]) -> Any:
    """PREMUL_SUM in every verb that reduces against a model in float64; each rank has a factor of its own."""
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    factors = [0.37 + 0.5 * one for one in range(size)]
    root = size - 1
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        count = 6_000 * size
        torch.manual_seed(7)
        terms = [torch.randn(count, dtype=torch.float64).to(dtype) for _ in range(size)]
        model = sum(term.double() * factor for term, factor in zip(terms, factors, strict=True))
        magnitude = sum(term.double().abs() * factor for term, factor in zip(terms, factors, strict=True))
        # One rounding of each product, one of each partial sum.
        check = partial(expect_near, dtype=dtype, model=model, limit=magnitude * torch.finfo(dtype).eps * size)
        for factor in (factors[rank], torch.tensor([factors[rank]], dtype=torch.float64)):
            op = dist._make_nccl_premul_sum(factor)

            everything, own = slice(0, count), slice(count // size * rank, count // size * (rank + 1))
            x = terms[rank].clone()
            dist.all_reduce(x, op=op)
            check(x, everything, "all_reduce")
            matrix = terms[rank].reshape(6, -1).t().contiguous().t()
            dist.all_reduce(matrix, op=op)
            check(matrix.flatten(), everything, "all_reduce of a strided tensor")
            x = terms[rank].clone()
            dist.reduce(x, root, op=op)
            if rank == root:
                check(x, everything, "reduce")
            else:
                assert torch.equal(x, terms[rank]), "reduce changed the input of another rank"
            given, part = terms[rank].clone(), torch.empty(count // size, dtype=dtype)
            dist.reduce_scatter_tensor(part, given, op=op)
            check(part, own, "reduce_scatter_tensor")
            dist.reduce_scatter(part.zero_(), list(given.chunk(size)), op=op)
            check(part, own, "reduce_scatter")
            assert torch.equal(given, terms[rank]), "reduce_scatter changed its input"
            sizes = [1 + owner for owner in range(size)]
            uneven = torch.empty(sizes[rank], dtype=dtype)
            dist.reduce_scatter(uneven, list(given[: sum(sizes)].split(sizes)), op=op)
            start = sum(sizes[:rank])
            check(uneven, slice(start, start + sizes[rank]), "reduce_scatter of uneven parts")
    # The factor comes before the sum, which would overflow float16.
    large = torch.full((9,), 32_768.0, dtype=torch.float16)
    dist.all_reduce(large, op=dist._make_nccl_premul_sum(1 / 64))
    assert large.tolist() == [512.0 * size] * 9
    z = torch.full((5,), 1 + 2j, dtype=torch.complex64)
    dist.all_reduce(z, op=dist._make_nccl_premul_sum(0.5))
    assert z.tolist() == [size * (0.5 + 1j)] * 5
    # An earlier call in progress on the same tensor comes first.
    x = torch.ones(200_000)
    works = [dist.all_reduce(x, op=op, async_op=True) for op in (dist.ReduceOp.SUM, dist._make_nccl_premul_sum(0.5))]
    for work in works:
        work.wait()
    assert x.unique().tolist() == [size * size / 2]
    return {"size": size}


def split(context: mlt.Context, options: dict[str, Any]) -> Any:
    """The error of splitting a group, and the sum over this rank's part as a user makes the parts instead."""
    import torch
    import torch.distributed as dist

    errors = []
    for call in (
        lambda: dist.split_group(split_ranks=options["parts"]),
        lambda: dist.group.WORLD.split_group([0, 1]),
        lambda: dist.group.WORLD.merge_remote_group(dist.HashStore(), 2),
    ):
        try:
            call()
        except RuntimeError as error:
            errors.append(str(error))
    group, _ = dist.new_subgroups_by_enumeration(options["parts"])
    dist.all_reduce(x := torch.tensor([1 << RANK]), group=group)
    return {"errors": errors, "sum": x.item(), "ranks": dist.get_process_group_ranks(group)}


def straggler(context: mlt.Context, options: dict[str, Any]) -> Any:
    """A barrier waits for the last rank."""
    import torch.distributed as dist

    started = time.monotonic()
    if dist.get_rank() == 1:
        time.sleep(options["seconds"])  # the straggler
    dist.barrier()
    return time.monotonic() - started


def callbacks(size: int) -> None:
    """A callback waits for a later collective; calls of the transport and of the plugin follow one another in order."""
    import torch
    import torch.distributed as dist

    first, second = torch.ones(30_000), torch.ones(5)
    earlier = dist.all_reduce(first, async_op=True)
    chained = earlier.get_future().then(lambda _: dist.all_reduce(second))
    chained.wait()
    assert first[0].item() == second[0].item() == size
    # On one tensor, without a wait between them: all-reduces are the transport's, the broadcast is the plugin's.
    x = torch.ones(50_000)
    works = []
    for _ in range(3):
        works += [dist.all_reduce(x, async_op=True), dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)]
        works += [dist.broadcast(x, src=0, async_op=True)]
    for work in works:
        work.wait()
    assert x.unique().tolist() == [float(size**3)]


def sparse(rank: int, size: int) -> None:
    import torch
    import torch.distributed as dist

    # Rank i has the elements 0 to i; rank 0 has one of them twice.
    index = [[0, 0]] if rank == 0 else [list(range(rank + 1))]
    tensor = torch.sparse_coo_tensor(index, torch.ones(len(index[0]), 2), (size + 1, 2), check_invariants=True)
    dist.all_reduce(tensor)
    expected = [float(size + 1)] + [float(size - i) for i in range(1, size)] + [0.0]
    assert tensor.to_dense()[:, 1].tolist() == expected, tensor
    refusal = ""
    try:
        dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (4,)), op=dist.ReduceOp.MAX)
    except ValueError as error:
        refusal = str(error)
    assert "SUM" in refusal, "a maximum of sparse tensors was accepted"


def barriers(context: mlt.Context, options: dict[str, Any]) -> Any:
    """The monitored barrier names the ranks that do not come (``absent``); collectives continue."""
    from datetime import timedelta

    import torch.distributed as dist

    group: Any = dist.group.WORLD
    group.monitored_barrier(timedelta(seconds=20))
    told = ""
    if dist.get_rank() not in options["absent"]:
        try:
            group.monitored_barrier(timedelta(seconds=1), wait_all_ranks=options["all"])
        except RuntimeError as error:
            told = str(error)
    dist.barrier()
    return told


def lossy(context: mlt.Context, options: dict[str, Any]) -> Any:
    """Sums of ones, exact outside of ``lossy`` and short inside; answers the shares of short elements and a digest."""
    import mlt.torch
    import torch
    import torch.distributed as dist

    def sum_of_ones() -> torch.Tensor:
        tensor = torch.ones(1 << 20)
        dist.all_reduce(tensor)
        return tensor

    size = dist.get_world_size()
    before = sum_of_ones()
    with mlt.torch.lossy(0.1):
        inside = sum_of_ones()
    after = sum_of_ones()
    return {
        "short": [float((tensor < size).float().mean()) for tensor in (before, inside, after)],
        "sha256": hashlib.sha256(inside.numpy().tobytes()).hexdigest(),
    }


def fsdp(context: mlt.Context, options: dict[str, Any]) -> Any:
    """Trains with FSDP2 as each of ``runs`` says; answers its loss accounting and a digest of its parameters."""
    return {name: fsdp_run(**run) for name, run in options["runs"].items()}


def fsdp_run(
    *, steps: int, bound: float | None = None, phases: Any = None, factor: float | None = None, reduce: str = "float32"
) -> Any:
    import mlt.torch
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = network(seed=0)
    policy = MixedPrecisionPolicy(reduce_dtype=getattr(torch, reduce))
    modules = (model[0], model[3], model)
    for module in modules:
        fully_shard(module, mp_policy=policy)
        if factor is not None:
            module.set_gradient_divide_factor(factor)
    layers: list[int] = []
    reduce_scatter = None
    if bound is not None or phases is not None:
        schedule = mlt.torch.phases(*phases) if phases is not None else lambda _step, _layer: bound

        def noted(step: int, layer: int) -> float:
            layers.append(layer)
            return schedule(step, layer)

        reduce_scatter = mlt.torch.LossyReduceScatter(loss_bound=noted)
        reduce_scatter.set_on(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(RANK)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
    whole = [parameter.full_tensor() for parameter in model.parameters()]
    found = reduce_scatter.steps if reduce_scatter is not None else ()
    return {
        "layers": layers,
        "steps": [{**vars(step), "loss_fraction": step.loss_fraction} for step in found],
        "sha256": hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in whole)).hexdigest(),
    }


def fsdp_failure(context: mlt.Context, options: dict[str, Any]) -> Any:
    """FSDP2 that accumulates gradients, then a backward pass that fails, then one of a new model, with one object."""
    import mlt.torch
    import torch
    from torch.distributed.fsdp import fully_shard

    def sharded() -> Any:
        model = network(seed=0)
        for module in (model[3], model):
            fully_shard(module)
        reduce_scatter.set_on(model)
        return model

    def fail(_: Any) -> None:
        raise RuntimeError("the program failed")

    asked: list[tuple[int, int]] = []
    reduce_scatter = mlt.torch.LossyReduceScatter(loss_bound=lambda step, layer: asked.append((step, layer)) or 0.1)
    model = sharded()
    for is_last in (False, True):
        model.set_requires_gradient_sync(is_last)
        model(torch.randn(8, 64)).square().mean().backward()
    # Once the layer behind has reduced its gradients.
    model[1].register_forward_hook(lambda _, __, output: output.register_hook(fail) and None)
    error = ""
    try:
        model(torch.randn(8, 64)).square().mean().backward()
    except RuntimeError as failure:
        error = str(failure)
    model = sharded()
    for _ in range(2):
        model(torch.randn(8, 64)).square().mean().backward()
    return {"asked": asked, "error": error, "steps": [[step.step, step.buckets] for step in reduce_scatter.steps]}


def fsdp_victim(context: mlt.Context, options: dict[str, Any]) -> Any:
    """Rank 1 is killed between two steps of FSDP2; what the backward pass of the other raises."""
    import mlt.torch
    import torch
    from torch.distributed.fsdp import fully_shard

    model = network(seed=0)
    # The parameters stay gathered, so that the backward pass begins with a reduce-scatter.
    fully_shard(model, reshard_after_forward=False)
    mlt.torch.LossyReduceScatter(loss_bound=0.1).set_on(model)
    model(torch.randn(16, 64)).square().mean().backward()
    loss = model(torch.randn(16, 64)).square().mean()
    torch.distributed.barrier()
    if RANK == 1:
        print("kill me", flush=True)
        time.sleep(60)  # killed before that
    return failing(loss.backward)


def fsdp_over_gloo(context: mlt.Context, options: dict[str, Any]) -> Any:
    """``set_on`` a model of which one module is sharded over gloo; answers the error, and whether anything was set."""
    import mlt.torch
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    group = dist.new_group(backend="gloo")
    model = network(seed=0)
    fully_shard(model[0])
    fully_shard(model[3], mesh=DeviceMesh.from_group(group, "cpu"))
    reduce_scatter = mlt.torch.LossyReduceScatter(loss_bound=0.1)
    error = ""
    try:
        reduce_scatter.set_on(model)
    except TypeError as refusal:
        error = str(refusal)
    model[0](torch.randn(8, 64)).square().mean().backward()
    return {"error": error, "steps": len(reduce_scatter.steps)}


def lossy_shares(context: mlt.Context, options: dict[str, Any]) -> Any:
    """Reduce-scatters of ones outside of a backward pass; answers the values of the shares, and what was lost."""
    import mlt.torch
    import torch
    import torch.distributed as dist

    warnings.simplefilter("error", FutureWarning)  # torch would tell every user so
    size = dist.get_world_size()
    reduce_scatter = mlt.torch.LossyReduceScatter(loss_bound=0.2)
    told = {}
    for name, dtype, operation in (
        ("sum", torch.float16, dist.ReduceOp.SUM),
        ("mean", torch.float32, dist.ReduceOp.AVG),
        ("product", torch.bfloat16, dist.ReduceOp.PREMUL_SUM(0.5)),
    ):
        ones = torch.ones(size << 18, dtype=dtype)
        for is_async in (False, True):
            share = reduce_scatter.allocate((1 << 18,), dtype=dtype, device=torch.device("cpu"))
            work = reduce_scatter(share, ones, dist.group.WORLD, operation, is_async)
            assert (work is not None) == is_async
            if work is not None:
                work.wait()
            told[f"{name}{' later' * is_async}"] = share.double().unique().tolist()
    share = torch.empty(1 << 18)
    reduce_scatter(share, torch.ones(size << 18), dist.group.WORLD, dist.ReduceOp.PREMUL_SUM(float(RANK + 1)))
    told["own factors"] = [share.median().item()]  # most elements lack nothing
    errors = []
    for tensor, operation in (
        (torch.ones(size, dtype=torch.int32), dist.ReduceOp.SUM),
        (torch.ones(size), dist.ReduceOp.MAX),
    ):
        try:
            reduce_scatter(tensor[:1], tensor, dist.group.WORLD, operation)
        except TypeError as error:
            errors.append(str(error))
    return {"values": told, "missing": [step.missing_bytes for step in reduce_scatter.steps], "errors": errors}


def replicas(context: mlt.Context, options: dict[str, Any]) -> Any:
    """``verify_replicas`` of equal models, of one that differs in one bit, of one with a tensor less."""
    import mlt.torch
    import torch

    model = network(seed=0)
    mlt.torch.verify_replicas(model)
    told = []
    if RANK == 1:
        with torch.no_grad():
            model[3].bias[7] += 1e-6
    for _ in range(2):
        try:
            mlt.torch.verify_replicas(model)
        except RuntimeError as error:
            told.append(str(error))
        if RANK == 1:
            model[3].bias = None
    return told


def replicas_with_buffers(context: mlt.Context, options: dict[str, Any]) -> Any:
    """``verify_replicas`` of DDP with BatchNorm after a step, with buffers and without; then of a parameter too."""
    import mlt.torch
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))
    replica = DistributedDataParallel(model)
    told = []
    for step in range(2):
        replica(torch.full((3, 4), float(RANK + 1)) + torch.rand(3, 4)).sum().backward()
        if step == 1 and RANK == 1:
            with torch.no_grad():
                model[1].bias[0] += 1
        for buffers in (True, False):
            try:
                mlt.torch.verify_replicas(replica, buffers=buffers)
                told.append("")
            except RuntimeError as error:
                told.append(str(error))
    return told


def replicas_of_shards(context: mlt.Context, options: dict[str, Any]) -> Any:
    """``verify_replicas`` of a model of FSDP2, of one that DTensor replicates, and of shards as if they were alike."""
    import mlt.torch
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import distribute_module

    def error_of(model: torch.nn.Module, group: dist.ProcessGroup | None = None) -> str:
        try:
            mlt.torch.verify_replicas(model, group)
        except (RuntimeError, TypeError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    mesh = init_device_mesh("cpu", (WORKERS,))
    torch.manual_seed(0)
    sharded = torch.nn.Linear(4, 4)
    fully_shard(sharded, mesh=mesh)
    alike = distribute_module(torch.nn.Linear(4, 4), mesh)
    return [error_of(sharded), error_of(alike), error_of(sharded, dist.group.WORLD)]


def unanswered() -> None:
    """Rank 0's program fails while one of its collectives waits for rank 1, which lives on and watches how it goes."""
    import mlt.torch
    import torch
    import torch.distributed as dist

    dist.init_process_group("mlt")
    dist.barrier()  # else rank 0 may be gone before rank 1 has seen it come up
    if RANK == 0:
        dist.all_reduce(torch.ones(1), async_op=True)
        raise RuntimeError("the program failed")
    context = mlt.torch.current_context()
    started = time.monotonic()
    while context.is_peer_up(0) and time.monotonic() - started < 40:
        time.sleep(0.1)
    print(json.dumps({"gone_after": time.monotonic() - started}), flush=True)
    dist.destroy_process_group()


def network(seed: int) -> Any:
    import torch

    torch.manual_seed(seed)
    layers = [torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.ReLU(), torch.nn.Linear(256, 256)]
    return torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(256, 10))


def ddp(context: mlt.Context, options: dict[str, Any]) -> Any:
    """Train a small model with DDP and the hook; answers a digest of the parameters and the hook's statistics."""
    import mlt.torch
    import torch

    calls: list[dict[str, Any]] = []

    class Recording(mlt.PushPull):
        def push_pull(self, tensor: Any, **arguments: Any) -> Any:
            seen = {name: arguments[name] for name in ("key", "layer", "layers", "loss_bound")}
            calls.append({"elements": tensor.numel(), **seen})
            return super().push_pull(tensor, **arguments)

    dtype = getattr(torch, options.get("dtype", "float32"))
    model = network(seed=0).to(dtype)
    replica = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.1)
    transport = Recording(context) if SERVICES else torch.distributed.group.WORLD
    bound = mlt.torch.phases(*options["phases"]) if "phases" in options else options["bound"]
    state = mlt.torch.BoundedLossState(transport, loss_bound=bound)
    if options.get("hook", True):
        replica.register_comm_hook(state, mlt.torch.bounded_loss_hook)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.05)
    torch.manual_seed(100 + RANK)
    for step in range(options["steps"]):
        if options.get("die_at") == step:
            if options["victim"] == RANK:
                print("kill me", flush=True)
                time.sleep(60)  # killed before that
            return failing_step(replica)
        optimizer.zero_grad()
        replica(torch.randn(16, 64).to(dtype)).square().mean().backward()
        optimizer.step()
    parameters = b"".join(p.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for p in model.parameters())
    digest = hashlib.sha256(parameters).hexdigest()
    return {
        "sha256": digest,
        "gradient_bytes": 4 * sum(p.numel() for p in model.parameters()),
        "steps": [{**vars(s), "loss_fraction": s.loss_fraction} for s in state.steps],
        "calls": [
            {name: call[name] for name in ("key", "layer", "layers", "elements", "loss_bound")} for call in calls
        ],
        "counters": context.counters(),
    }


def hook_on(context: mlt.Context, options: dict[str, Any]) -> Any:
    """A backward pass of DDP with the hook on some ranks; answers its error, and the sum of an all-reduce after it."""
    import mlt.torch
    import torch
    import torch.distributed as dist

    replica = torch.nn.parallel.DistributedDataParallel(network(seed=0))
    if RANK in options["ranks"]:
        rotate, by_services = RANK in options.get("rotating", []), options.get("by_services")
        ratio = 100 if RANK in options.get("comparing", []) else None
        transport = mlt.PushPull(context) if by_services == "given" else None
        state = mlt.torch.BoundedLossState(
            transport, loss_bound=0.1, rotate=rotate, services=by_services and True, max_norm_ratio=ratio
        )
        replica.register_comm_hook(state, mlt.torch.bounded_loss_hook)
    started, error = time.monotonic(), None
    try:
        replica(torch.randn(16, 64)).square().mean().backward()
    except RuntimeError as raised:
        error = str(raised)
    answer = {"error": error, "seconds": time.monotonic() - started}
    after = torch.ones(3)
    dist.all_reduce(after)
    return {**answer, "after": after.tolist()}


def failing_step(replica: Any) -> Any:
    import torch

    return failing(lambda: replica(torch.randn(16, 64)).square().mean().backward())


def failing(step: Callable[[], Any]) -> Any:
    """The error that ``step`` raises, and after how long."""
    started = time.monotonic()
    try:
        step()
    except RuntimeError as error:
        print(json.dumps({"error": str(error), "seconds": time.monotonic() - started}), flush=True)
        os._exit(0)
    return {"error": None}


def staged(context: mlt.Context, options: dict[str, Any]) -> Any:
    """Every collective on tensors of the stand-in accelerator; then the hook on its buckets."""
    import torch
    from device_checks import all_checks
    from mlt.torch import staging
    from stand_in import StandIn

    device = StandIn()
    staging.add_device(device)

    class Lab:
        def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
            return device.tensor(torch.full(shape, 3, dtype=dtype))

        def fill_late(self, tensor: torch.Tensor, value: float) -> None:
            device.compute.enqueue(lambda: tensor.fill_(value))

        def host(self, tensor: torch.Tensor) -> torch.Tensor:
            return device.host(tensor)

    return all_checks(Lab())


def failures(context: mlt.Context, options: dict[str, Any]) -> Any:
    import failing_verbs

    return failing_verbs.failures(options["failure"])


def death(context: mlt.Context, options: dict[str, Any]) -> Any:
    import failing_verbs

    print(json.dumps(failing_verbs.death()), flush=True)
    os._exit(0)  # without the end of groups of which a rank is gone


PROGRAMS = {
    "barriers": barriers,
    "collectives": collectives,
    "ddp": ddp,
    "death": death,
    "failures": failures,
    "fsdp": fsdp,
    "fsdp_failure": fsdp_failure,
    "fsdp_over_gloo": fsdp_over_gloo,
    "fsdp_victim": fsdp_victim,
    "hook_on": hook_on,
    "lossy": lossy,
    "lossy_shares": lossy_shares,
    "premultiplied": premultiplied,
    "replicas": replicas,
    "replicas_of_shards": replicas_of_shards,
    "replicas_with_buffers": replicas_with_buffers,
    "split": split,
    "staged": staged,
    "straggler": straggler,
    "verbs": verbs,
}


def main() -> None:
    chosen, arguments = sys.argv[1], json.loads(sys.argv[2])
    if chosen == "service":
        service(arguments)
    elif chosen == "unanswered":
        unanswered()
    else:
        worker(chosen, arguments)


if __name__ == "__main__":
    main()
