"""Collectives of a group over real sockets: exact without a loss bound, within it with one; one cause if one fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from checks import assert_names, names, until
from collective_calls import FLOATING, REDUCING, UFUNCS, VERBS, Call, encoded, outcome
from transport_jobs import ETHERNET_SEGMENT, local_job, open_rank, process_job

import mlt
from mlt import Reduction
from mlt.collectives import ALGORITHMS, ROOTED_ALGORITHMS

# What a rank sends at most of a tensor that takes one round (docs/collectives.md).
DIRECT_BYTES = 64 << 10
# Elements: none, one, a few, the most in one round between 4, between 2 and one more, an odd number over a megabyte,
# what a small model has.
SIZES = [0, 1, 7, 5_461, 16_384, 16_385, (1 << 18) + 3, 25 << 18]
FAULTS = mlt.Faults(drop=0.02, duplicate=0.01, reorder=0.02, seed=31)
PEER_TIMEOUT = 1.0


@pytest.fixture(scope="module", params=[2, 3, 4])
def job(request: pytest.FixtureRequest) -> Iterator[list[mlt.Context]]:
    with local_job(request.param) as contexts:
        yield contexts


@pytest.fixture(scope="module")
def lossy() -> Iterator[list[mlt.Context]]:
    with local_job(3, faults=FAULTS, segment_bytes=ETHERNET_SEGMENT) as contexts:
        yield contexts


def random_tensors(ranks: int, elements: int) -> list[np.ndarray]:
    rng = np.random.default_rng(elements + ranks)
    return [rng.standard_normal(elements).astype(np.float32) for _ in range(ranks)]


def ring_sum(tensors: list[np.ndarray], *, average: bool) -> np.ndarray:
    """The sum in the ring's order: chunk ``c`` from rank ``c`` on."""
    n = len(tensors)
    chunks = [np.array_split(tensor, n) for tensor in tensors]
    sums = []
    for c in range(n):
        total = chunks[c][c].copy()
        for hop in range(1, n):
            total = chunks[(c + hop) % n][c] + total
        sums.append(total)
    result = np.concatenate(sums)
    return result * np.float32(1 / n) if average else result


def exact_sum(tensors: list[np.ndarray], *, average: bool) -> np.ndarray:
    """The sum of up to four ranks in the ring's order, of a small tensor in the order of the ranks."""
    if (len(tensors) - 1) * tensors[0].nbytes > DIRECT_BYTES:
        return ring_sum(tensors, average=average)
    total = tensors[0].copy()
    for tensor in tensors[1:]:
        total += tensor
    return total * np.float32(1 / len(tensors)) if average else total


def all_reduce(contexts: list[mlt.Context], tensors: list[Any], **options: Any) -> list[mlt.Completion]:
    operations = [context.post_all_reduce(tensor, **options) for context, tensor in zip(contexts, tensors, strict=True)]
    return [operation.wait(60) for operation in operations]


@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize("average", [True, False])
def test_all_reduce__is_the_sum_in_a_fixed_order_bit_for_bit(
    job: list[mlt.Context], elements: int, average: bool
) -> None:
    tensors = random_tensors(len(job), elements)
    expected = exact_sum(tensors, average=average)
    for completion in all_reduce(job, tensors, op=Reduction.MEAN if average else Reduction.SUM):
        assert (completion.kind, completion.status, completion.bytes) == ("all_reduce", "complete", 4 * elements)
        assert (completion.missing_bytes, completion.missing, completion.peer) == (0, [], -1)
    for tensor in tensors:
        np.testing.assert_array_equal(tensor, expected)


def test_all_reduce__of_one_rank_is_its_own_tensor() -> None:
    with local_job(1) as [context]:
        tensor = np.arange(5, dtype=np.float32)
        assert context.all_reduce(tensor).status == "complete"
        assert tensor.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("elements", [1, 7, (1 << 18) + 3])
def test_all_reduce__without_a_bound_is_exact_over_a_network_that_loses(
    lossy: list[mlt.Context], elements: int
) -> None:
    tensors = random_tensors(3, elements)
    expected = exact_sum(tensors, average=True)
    all_reduce(lossy, tensors)
    for tensor in tensors:
        np.testing.assert_array_equal(tensor, expected)


def test_all_reduce__with_a_bound_loses_no_more_and_ends_with_the_same_bits(lossy: list[mlt.Context]) -> None:
    elements, bound = 1 << 20, 0.1
    tensors = [np.ones(elements, np.float32) for _ in range(3)]
    completions = all_reduce(lossy, tensors, op=Reduction.SUM, loss_bound=bound)
    assert all(tensor.tobytes() == tensors[0].tobytes() for tensor in tensors)
    terms, counts = np.unique(tensors[0], return_counts=True)
    assert set(terms.tolist()) <= {1.0, 2.0, 3.0}
    lost = sum(completion.missing_bytes for completion in completions) // 4
    short = int(counts[terms < 3].sum())
    assert 0 < short <= lost <= 2 * bound * elements  # two hops
    assert any(completion.status == "within_bound" for completion in completions)


@pytest.mark.parametrize("op", [Reduction.SUM, Reduction.MEAN])
def test_all_reduce__with_lossy_results_every_element_is_of_some_of_the_terms(
    lossy: list[mlt.Context], op: Reduction
) -> None:
    elements, bound = 1 << 20, 0.1
    tensors = [np.full(elements, 4.0**rank, np.float32) for rank in range(3)]
    completions = all_reduce(lossy, tensors, op=op, loss_bound=bound, lossy_results=True)
    lost = [completion.missing_bytes // 4 for completion in completions]
    assert all(0 < one <= 2 * bound * elements * 2 / 3 for one in lost)  # of two chunks each way
    assert any(tensor.tobytes() != tensors[0].tobytes() for tensor in tensors)
    # Sums of some of 1, 4 and 16, or their means by weights: of what a rank holds, never of memory of another origin.
    sums = {1.0, 4.0, 16.0, 5.0, 17.0, 20.0, 21.0}
    for tensor in tensors:
        values = set(np.unique(tensor).tolist())
        if op == Reduction.SUM:
            assert values <= sums
        else:
            assert min(values) >= 1.0
            assert max(values) <= 16.0
        assert np.mean(tensor == np.float32(21.0 if op == Reduction.SUM else 7.0)) > 1 - 4 * bound


def test_all_reduce__streams_of_the_same_ranks_need_no_common_order(job: list[mlt.Context]) -> None:
    tensors = {stream: [np.full(40_000, rank + stream, np.float32) for rank in range(len(job))] for stream in (1, 2)}
    operations = [
        context.post_all_reduce(tensors[stream][rank], stream=stream)
        for rank, context in enumerate(job)
        for stream in ((1, 2) if rank % 2 else (2, 1))
    ]
    for operation in operations:
        operation.wait(30)
    for stream, per_rank in tensors.items():
        for tensor in per_rank:
            np.testing.assert_array_equal(tensor, np.float32((len(job) - 1) / 2 + stream))


def test_all_reduce__several_at_once_and_of_several_groups(job: list[mlt.Context]) -> None:
    tensors = [[np.full(5_000 + i, rank + i, np.float32) for i in range(30)] for rank in range(len(job))]
    pair = [np.full(999, rank, np.float32) for rank in range(2)]
    operations = []
    for rank, context in enumerate(job):
        operations += [context.post_all_reduce(tensor, layer=i, layers=30) for i, tensor in enumerate(tensors[rank])]
        if rank < 2:
            operations.append(context.post_all_reduce(pair[rank], op=Reduction.SUM, ranks=[1, 0]))
    for operation in operations:
        operation.wait(30)
    mean = (len(job) - 1) / 2
    for per_rank in tensors:
        for i, tensor in enumerate(per_rank):
            np.testing.assert_allclose(tensor, mean + i, rtol=1e-6)
    assert all((tensor == 1).all() for tensor in pair)


DTYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]
DTYPES += ["float16", "float32", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", list(Reduction))
@pytest.mark.parametrize("elements", [5, 50_001])
def test_all_reduce__of_every_type_by_every_operation(
    job: list[mlt.Context], dtype: str, op: Reduction, elements: int
) -> None:
    is_float = dtype.startswith("float")
    rng = np.random.default_rng(elements)
    tensors = [rng.integers(0, 2 if dtype == "bool" else 12, elements).astype(dtype) for _ in job]
    if op == (Reduction.MEAN if not is_float else None) or (is_float and op.name in ("AND", "OR", "XOR")):
        with pytest.raises(mlt.InvalidBufferError, match=names("rank 0", dtype)):
            job[0].post_all_reduce(tensors[0], op=op)
        return
    expected: np.ndarray
    with np.errstate(over="ignore"):
        if op == Reduction.MEAN:
            expected = np.mean(np.stack(tensors).astype(np.float64), axis=0).astype(dtype)
        else:
            expected = UFUNCS[op].reduce(np.stack(tensors), axis=0, dtype=dtype)
    completions = all_reduce(job, tensors, op=op)
    assert {completion.bytes for completion in completions} == {tensors[0].nbytes}
    for tensor in tensors:
        assert tensor.tobytes() == tensors[0].tobytes()
        if is_float:
            np.testing.assert_allclose(tensor, expected, rtol=4e-3 if dtype == "float16" else 1e-6)
        else:
            np.testing.assert_array_equal(tensor, expected)


def test_all_reduce__takes_bfloat16_of_torch_and_as_bits(job: list[mlt.Context]) -> None:
    torch = pytest.importorskip("torch")
    tensors = [torch.full((1_000,), 0.5 + rank, dtype=torch.bfloat16) for rank in range(len(job))]
    bits = [tensor.view(torch.int16).numpy().view(np.uint16).copy() for tensor in tensors]
    all_reduce(job, tensors)
    all_reduce(job, bits, dtype="bfloat16")
    mean = torch.tensor(0.5 + (len(job) - 1) / 2, dtype=torch.bfloat16)
    for tensor, raw in zip(tensors, bits, strict=True):
        assert bool((tensor == mean).all())
        np.testing.assert_array_equal(raw, tensor.view(torch.int16).numpy().view(np.uint16))


def test_all_reduce__takes_torch_tensors_in_place(job: list[mlt.Context]) -> None:
    torch = pytest.importorskip("torch")
    tensors = [torch.full((100, 30), float(rank)) for rank in range(len(job))]
    pointers = [tensor.data_ptr() for tensor in tensors]
    all_reduce(job, tensors, op=Reduction.SUM)
    assert [tensor.data_ptr() for tensor in tensors] == pointers
    total = sum(range(len(job)))
    assert all(bool((tensor == total).all()) for tensor in tensors)


def test_all_to_all__equal_parts_and_given_splits(job: list[mlt.Context]) -> None:
    n = len(job)
    inputs = [np.arange(4 * n, dtype=np.int64).reshape(2 * n, 2) + 1_000 * rank for rank in range(n)]
    outputs = [np.zeros((2 * n, 2), np.int64) for _ in range(n)]
    operations = [job[rank].post_all_to_all(outputs[rank], inputs[rank]) for rank in range(n)]
    for operation in operations:
        assert operation.wait(20).kind == "all_to_all"
    for rank in range(n):
        expected = np.concatenate([sent[2 * rank : 2 * rank + 2] for sent in inputs])
        np.testing.assert_array_equal(outputs[rank], expected)

    # Rank i sends i + j rows to rank j.
    splits = [[i + j for j in range(n)] for i in range(n)]
    inputs = [np.full((sum(splits[i]), 3), i, np.float32) for i in range(n)]
    outputs = [np.full((sum(splits[i]), 3), -1, np.float32) for i in range(n)]
    operations = [
        job[rank].post_all_to_all(outputs[rank], inputs[rank], output_splits=splits[rank], input_splits=splits[rank])
        for rank in range(n)
    ]
    for operation in operations:
        operation.wait(20)
    for rank in range(n):
        assert outputs[rank][:, 0].tolist() == [i for i in range(n) for _ in range(i + rank)]


@pytest.mark.parametrize("elements", [0, 3, 1_500_000])
def test_lists_of_parts__are_carried_where_they_are(job: list[mlt.Context], elements: int) -> None:
    n, root = len(job), len(job) - 1
    inputs = random_tensors(n, elements)

    def parts() -> list[list[np.ndarray]]:
        return [[np.full(elements, -1, np.float32) for _ in range(n)] for _ in range(n)]

    outputs = parts()
    for own in (outputs[root][root], inputs[root]):  # the second time in place
        outputs[root][root] = own
        for operation in [
            context.post_gather(inputs[rank], outputs[rank] if rank == root else None, root=root)
            for rank, context in enumerate(job)
        ]:
            operation.wait(20)
        assert all(np.array_equal(part, inputs[rank]) for rank, part in enumerate(outputs[root]))
    outputs = parts()
    for operation in [context.post_all_gather(outputs[rank], inputs[rank]) for rank, context in enumerate(job)]:
        operation.wait(20)
    assert all(np.array_equal(part, inputs[rank]) for gathered in outputs for rank, part in enumerate(gathered))

    received = parts()[0]
    for operation in [
        context.post_scatter(received[rank], tuple(inputs) if rank == root else None, root=root)
        for rank, context in enumerate(job)
    ]:
        operation.wait(20)
    assert all(np.array_equal(part, inputs[rank]) for rank, part in enumerate(received))
    sums = parts()[0]
    for operation in [
        context.post_reduce_scatter(sums[rank], [inputs[(rank + part) % n] for part in range(n)], op=Reduction.MAX)
        for rank, context in enumerate(job)
    ]:
        operation.wait(20)
    assert all(np.array_equal(part, np.max(inputs, axis=0)) for part in sums)


def test_all_to_all__lists_of_any_sizes_with_the_own_part_in_place(job: list[mlt.Context]) -> None:
    n = len(job)
    inputs = [[np.full(i * j, 10 * i + j) for j in range(n)] for i in range(n)]  # none to and from rank 0
    outputs = [[inputs[i][i] if i == j else np.full(i * j, -1) for j in range(n)] for i in range(n)]
    for operation in [context.post_all_to_all(outputs[rank], inputs[rank]) for rank, context in enumerate(job)]:
        operation.wait(20)
    assert all(outputs[i][j].tolist() == [10 * j + i] * (i * j) for i in range(n) for j in range(n))
    # The same tensor to all; a list on one side only.
    sent, flat = [np.full(3, rank) for rank in range(n)], [np.zeros(3 * n, int) for _ in range(n)]
    for operation in [context.post_all_to_all(flat[rank], [sent[rank]] * n) for rank, context in enumerate(job)]:
        operation.wait(20)
    assert all(one.tolist() == [rank for rank in range(n) for _ in range(3)] for one in flat)


def test_lists_of_parts__rejected_before_anything_is_sent(job: list[mlt.Context]) -> None:
    context, n = job[0], len(job)
    one, parts, whole = np.zeros(2), [np.zeros(2) for _ in range(n)], np.zeros(2 * n)
    for texts, call in (
        (("output", "1 parts", f"{n} ranks"), lambda: context.post_all_gather([one], np.zeros(2))),
        (("part 0 of the output", "16 bytes", "24"), lambda: context.post_gather(np.zeros(3), parts)),
        (("part 0 of the input", "16 bytes", "24"), lambda: context.post_scatter(np.zeros(3), parts)),
        (("rank 1", "output"), lambda: context.post_gather(one, parts, root=1)),
        (("its input", "one tensor"), lambda: context.post_all_gather(whole, parts)),
        (("list", "empty"), lambda: context.post_all_to_all(parts, [])),
        (("float64", "float32"), lambda: context.post_all_to_all([*parts[1:], np.zeros(2, np.float32)], parts)),
        (("parts 0 and 1 of the output",), lambda: context.post_all_gather([one] * n, np.zeros(2))),
        (("output overlaps the input",), lambda: context.post_all_gather([*parts[1:], one], one)),
        (("output overlaps the input",), lambda: context.post_all_to_all(parts, [*parts[1:], one])),
        (("input_splits", "list"), lambda: context.post_all_to_all(whole, parts, input_splits=[2] * n)),
    ):
        with pytest.raises(mlt.InvalidBufferError, match=names(*texts)):
            call()
    bad = [np.full(2, np.nan) if part == n - 1 else np.zeros(2) for part in range(n)]
    operations = [each.post_all_to_all([np.zeros(2) for _ in range(n)], bad, check_finite=True) for each in job[:1]]
    operations += [each.post_all_to_all(np.zeros(2 * n), np.zeros(2 * n)) for each in job[1:]]
    for operation in operations:
        with pytest.raises(mlt.CancelledError, match=names("rank 0", f"element 0 of part {n - 1}")):
            operation.wait(20)


@pytest.mark.parametrize("elements", [0, 3, 1_500_000])
def test_gather__the_root_gets_all_at_once(job: list[mlt.Context], elements: int) -> None:
    root, n = len(job) - 1, len(job)
    inputs = random_tensors(n, elements)
    output = np.zeros((n, elements), np.float32)
    operations = [
        context.post_gather(tensor, output if context.rank == root else None, root=root)
        for context, tensor in zip(job, inputs, strict=True)
    ]
    for operation in operations:
        assert operation.wait(30).kind == "gather"
    np.testing.assert_array_equal(output, np.stack(inputs))


def test_gather__lossy_within_the_bound(lossy: list[mlt.Context]) -> None:
    elements, bound = 500_000, 0.05
    output = np.full((3, elements), 7, np.float32)
    operations = [
        context.post_gather(np.ones(elements, np.float32), output if context.rank == 0 else None, loss_bound=bound)
        for context in lossy
    ]
    completions = [operation.wait(30) for operation in operations]
    missing = int((output == 0).sum())
    assert completions[0].missing_bytes == 4 * missing
    assert 0 < missing <= 2 * bound * elements
    assert int((output == 1).sum()) == 3 * elements - missing


def finish(operations: list[mlt.Operation], kind: str) -> None:
    for operation in operations:
        assert operation.wait(30).kind == kind


@pytest.mark.parametrize("elements", [0, 3, 1_200_000])
def test_all_gather__everybody_gets_all(job: list[mlt.Context], elements: int) -> None:
    n = len(job)
    inputs = random_tensors(n, elements)
    outputs = [np.zeros((n, elements), np.float32) for _ in job]
    finish([job[i].post_all_gather(outputs[i], inputs[i]) for i in range(n)], "all_gather")
    for output in outputs:
        np.testing.assert_array_equal(output, np.stack(inputs))


@pytest.mark.parametrize("elements", [0, 3, 300_000])
def test_reduce_scatter__everybody_gets_a_part_of_the_sum(job: list[mlt.Context], elements: int) -> None:
    n = len(job)
    inputs = [np.arange(n * elements, dtype=np.int64).reshape(n, elements) * (rank + 1) for rank in range(n)]
    outputs = [np.zeros(elements, np.int64) for _ in job]
    operations = [job[i].post_reduce_scatter(outputs[i], inputs[i], op=Reduction.SUM) for i in range(n)]
    finish(operations, "reduce_scatter")
    for rank in range(n):
        np.testing.assert_array_equal(outputs[rank], inputs[0][rank] * (n * (n + 1) // 2))


@pytest.mark.parametrize("elements", [0, 3, 1_200_000])
def test_broadcast_and_scatter__take_the_roots(job: list[mlt.Context], elements: int) -> None:
    n, root = len(job), len(job) - 1
    tensors = random_tensors(n, elements)
    expected = tensors[root].copy()
    tensors[root].flags.writeable = False
    finish([job[i].post_broadcast(tensors[i], root=root) for i in range(n)], "broadcast")
    for tensor in tensors:
        np.testing.assert_array_equal(tensor, expected)
    parts = np.random.default_rng(1).standard_normal((n, elements))
    outputs = [np.zeros(elements) for _ in job]
    finish([job[i].post_scatter(outputs[i], parts if i == root else None, root=root) for i in range(n)], "scatter")
    np.testing.assert_array_equal(np.stack(outputs), parts)


@pytest.mark.parametrize("elements", [0, 3, 300_000])
def test_reduce__the_root_gets_the_mean_in_place(job: list[mlt.Context], elements: int) -> None:
    n, root = len(job), 0
    tensors = [np.full(elements, 2.0 * rank, np.float16) for rank in range(n)]
    outputs = [tensors[i] if i == root else None for i in range(n)]
    finish([job[i].post_reduce(tensors[i], outputs[i], root=root) for i in range(n)], "reduce")
    assert (tensors[root] == n - 1).all()
    assert all((tensors[i] == 2 * i).all() for i in range(1, n))


def test_barrier__waits_for_the_last(job: list[mlt.Context]) -> None:
    operations = [context.post_barrier() for context in job[1:]]
    with pytest.raises(mlt.WaitTimeoutError):
        operations[0].wait(0.1)
    operations.append(job[0].post_barrier())
    finish(operations, "barrier")


def test_streams__of_the_same_ranks_may_be_used_in_opposite_orders(job: list[mlt.Context]) -> None:
    n = len(job)
    gradients = [np.full(70_000, rank, np.float32) for rank in range(n)]
    steps = [np.array([rank], np.int32) for rank in range(n)]
    operations = []
    for rank, context in enumerate(job):
        calls = [
            lambda context=context, rank=rank: context.post_all_reduce(gradients[rank], op=Reduction.SUM),
            lambda context=context, rank=rank: context.post_all_reduce(steps[rank], op=Reduction.MAX, stream=1),
        ]
        operations += [call() for call in (reversed(calls) if rank % 2 else calls)]
    for operation in operations:
        operation.wait(30)
    assert all((gradient == n * (n - 1) / 2).all() for gradient in gradients)
    assert all(step[0] == n - 1 for step in steps)
    with pytest.raises(mlt.ConfigError, match=names("stream", "-1")):
        job[0].post_barrier(stream=-1)


def test_calls_that_differ__are_named_at_every_rank_at_once() -> None:
    with local_job(3) as contexts:
        tensors = [np.ones(8, np.float32) for _ in contexts]
        operations = [context.post_broadcast(tensor, root=0) for context, tensor in zip(contexts, tensors, strict=True)]
        for operation in operations:
            operation.wait(10)
        start = time.monotonic()
        # Without the shapes between neighbours, both would wait for a root that never sends.
        operations = [
            contexts[0].post_broadcast(tensors[0], root=1),
            contexts[1].post_broadcast(tensors[1], root=2),
            contexts[2].post_broadcast(tensors[2], root=1),
        ]
        failures = []
        for operation in operations:
            try:
                operation.wait(10)
            except mlt.SizeMismatchError as error:
                failures.append(str(error))
        assert time.monotonic() - start < 5
        assert len(failures) >= 2
        for failure in failures:
            assert_names(failure, "rank 1 called broadcast number 2", "root 2", "root 1")


def test_bad_input__is_refused_before_anything_is_counted(job: list[mlt.Context]) -> None:
    context = job[0]
    with pytest.raises(mlt.InvalidBufferError, match=names("rank 0", "all-reduce", "mean of int64", "not exact")):
        context.post_all_reduce(np.zeros(3, np.int64))
    with pytest.raises(mlt.InvalidBufferError, match=names("rank 0", "bitwise or of float64")):
        context.post_all_reduce(np.zeros(3), op=Reduction.OR)
    with pytest.raises(mlt.InvalidBufferError, match=names("rank 0", "max", "loss bound")):
        context.post_all_reduce(np.zeros(3), op=Reduction.MAX, loss_bound=0.1)
    with pytest.raises(mlt.InvalidBufferError, match=names("rank 0", "floating-point")):
        context.post_all_reduce(np.zeros(3, np.int32), op=Reduction.SUM, loss_bound=0.1)
    with pytest.raises(mlt.InvalidBufferError, match=names("rank 0", "results of a sum of int32 must not be lost")):
        context.post_all_reduce(np.zeros(3, np.int32), op=Reduction.SUM, lossy_results=True)
    with pytest.raises(mlt.InvalidBufferError, match=names("rank 0", "results of a max of float32 must not be lost")):
        context.post_all_reduce(np.zeros(3, np.float32), op=Reduction.MAX, lossy_results=True)
    with pytest.raises(mlt.InvalidBufferError, match=names("rank 0", "unsupported element type")):
        context.post_all_reduce(np.zeros(3, np.complex128), op=Reduction.SUM)
    with pytest.raises(mlt.InvalidBufferError, match="below 1"):
        context.post_all_reduce(np.zeros(3, np.float32), loss_bound=1.0)
    with pytest.raises(mlt.InvalidBufferError, match="rank 0 is not in its group"):
        context.post_all_reduce(np.zeros(3, np.float32), ranks=[1])
    with pytest.raises(mlt.UnknownPeerError, match="rank 9"):
        context.post_all_reduce(np.zeros(3, np.float32), ranks=[0, 9])
    with pytest.raises(mlt.ConfigError, match="ranks is empty"):
        context.post_all_reduce(np.zeros(3, np.float32), ranks=[])
    with pytest.raises(mlt.ConfigError, match="layer 3 of 2"):
        context.post_all_reduce(np.zeros(3, np.float32), layer=3, layers=2)
    with pytest.raises(mlt.ConfigError, match="stream is -1"):
        context.post_all_reduce(np.zeros(3, np.float32), stream=-1)
    with pytest.raises(mlt.ConfigError, match="timeout"):
        context.all_reduce(np.zeros(3, np.float32), timeout=0)
    with pytest.raises(mlt.InvalidBufferError, match="output_splits"):
        context.post_all_to_all(np.zeros(4), np.zeros(4), output_splits=[4])
    both = np.zeros((2, 12), np.float32)
    with pytest.raises(mlt.InvalidBufferError, match="overlaps"):
        context.post_all_to_all(both[0], both.reshape(-1)[6:18])
    with pytest.raises(mlt.InvalidBufferError, match=names("gather", "output has 40 bytes")):
        context.post_gather(np.zeros(4), np.zeros(5))
    with pytest.raises(mlt.InvalidBufferError, match=names("rank 1", "output")):
        context.post_gather(np.zeros(4), np.zeros(8), root=1)
    with pytest.raises(mlt.InvalidBufferError, match=names("rank 1", "input")):
        context.post_scatter(np.zeros(4), np.zeros(8), root=1)
    with pytest.raises(mlt.InvalidBufferError, match=names("all-gather", "output has")):
        context.post_all_gather(np.zeros(5), np.zeros(4))
    with pytest.raises(mlt.InvalidBufferError, match=names("reduce-scatter", "input has")):
        context.post_reduce_scatter(np.zeros(4), np.zeros(5))
    with pytest.raises(mlt.InvalidBufferError, match=names("gather", "input", "output")):
        context.post_gather(None)
    with pytest.raises(mlt.InvalidBufferError, match=names("float64", "float32", "same element type")):
        context.post_reduce(np.zeros(4), np.zeros(4, np.float32))
    with pytest.raises(mlt.UnknownPeerError, match=names("rank 0", "broadcast from rank 9")):
        context.post_broadcast(np.zeros(4), root=9)
    # No sequence number was used up: the group still works.
    tensors = [np.ones(3, np.float32) for _ in job]
    all_reduce(job, tensors, op=Reduction.SUM)
    assert tensors[0].tolist() == [len(job)] * 3


def test_cancel__ends_it_at_every_member_and_the_group_with_it() -> None:
    with local_job(3) as contexts:
        tensors = [np.ones(1_000, np.float32) for _ in contexts]
        first, second = (contexts[rank].post_all_reduce(tensors[rank]) for rank in range(2))
        with pytest.raises(mlt.WaitTimeoutError, match=names("all_reduce", "in progress")):
            first.wait(0.05)
        second.cancel(reason="out of data")
        for operation in (first, second):
            with pytest.raises(mlt.CancelledError, match="rank 1 cancelled the collective: out of data") as caught:
                operation.wait(10)
            assert caught.value.peer == 1
        with pytest.raises(mlt.CancelledError, match="rank 1 cancelled"):
            contexts[2].all_reduce(tensors[2])
        assert [context.engine.pinned for context in contexts] == [0, 0, 0]
        # Another group of the same ranks is another group.
        pair = [np.full(5, rank, np.float32) for rank in range(3)]
        operations = [contexts[rank].post_all_reduce(pair[rank], ranks=[2, 1, 0]) for rank in range(3)]
        for operation in operations:
            operation.wait(10)
        assert pair[0].tolist() == [1] * 5


def test_timeout__names_the_rank_that_never_called() -> None:
    with local_job(2) as contexts:
        start = time.monotonic()
        with pytest.raises(mlt.OperationTimeoutError, match="waiting for rank 1") as caught:
            contexts[0].all_reduce(np.ones(10, np.float32), timeout=0.3)
        assert time.monotonic() - start < 5
        assert caught.value.peer == 1
        # And says so to a rank that comes too late.
        with pytest.raises(mlt.OperationTimeoutError, match="rank 0 timed out"):
            contexts[1].all_reduce(np.ones(10, np.float32))


# A ring of each, one round of each, and one of each.
@pytest.mark.parametrize(
    ("first", "other"), [(1_000_000, 2_000_000), (10, 11), (10, 0), (1_000_000, 11), (16_384, 16_385)]
)
def test_all_reduce__of_another_size_fails_at_both_naming_the_sizes(first: int, other: int) -> None:
    with local_job(2) as contexts:
        operations = [
            contexts[0].post_all_reduce(np.ones(first, np.float32)),
            contexts[1].post_all_reduce(np.ones(other, np.float32)),
        ]
        start = time.monotonic()
        for operation in operations:
            with pytest.raises(mlt.SizeMismatchError, match=names("rank")) as caught:
                operation.wait(10)
            assert f"of {4 * first} bytes of float32" in str(caught.value).split(" failed: ")[1]
            assert f"of {4 * other} bytes of float32" in str(caught.value).split(" failed: ")[1]
        assert time.monotonic() - start < 1


@pytest.mark.parametrize(
    "options", [{"op": Reduction.SUM}, {"loss_bound": 0.1}, {"loss_bound": 0.9}, {"lossy_results": True}]
)
def test_all_reduce__called_otherwise_fails_at_both_naming_what_each_called(options: dict[str, Any]) -> None:
    with local_job(2) as contexts:
        tensors = [np.ones(1_000, np.float32) for _ in contexts]
        operations = [contexts[0].post_all_reduce(tensors[0]), contexts[1].post_all_reduce(tensors[1], **options)]
        for operation in operations:
            with pytest.raises(mlt.SizeMismatchError, match="loss bound 0, mean") as caught:
                operation.wait(10)
            ((option, value),) = options.items()
            texts = {"op": ", sum", "lossy_results": "loss bound 0, lossy results, mean"}
            assert texts.get(option, f"loss bound {value}") in str(caught.value)
        assert all((tensor == 1).all() for tensor in tensors)


@pytest.mark.parametrize("algorithm", [one for one in ALGORITHMS if one != "two-level"])
@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_all_reduce__by_each_algorithm_is_the_sum_at_every_rank(algorithm: str, ranks: int) -> None:
    with local_job(ranks) as contexts:
        for elements in (1, 1_000, 300_001):
            tensors = [np.arange(elements, dtype=np.int64) * (rank + 1) for rank in range(ranks)]
            all_reduce(contexts, tensors, op=Reduction.SUM, algorithm=algorithm)
            for tensor in tensors:
                assert (tensor == np.arange(elements) * (ranks * (ranks + 1) // 2)).all()


def hosts_of(count: int, ranks_per_host: int) -> list[str]:
    return [f"127.0.0.{host + 1}" for host in range(count) for _ in range(ranks_per_host)]


@pytest.mark.parametrize(("hosts", "ranks_per_host"), [(2, 2), (3, 2), (2, 3), (4, 2)])
def test_all_reduce__by_two_levels_is_the_sum_at_every_rank(hosts: int, ranks_per_host: int) -> None:
    ranks = hosts * ranks_per_host
    with local_job(ranks, hosts=hosts_of(hosts, ranks_per_host)) as contexts:
        for elements in (1, 1_000, 700_001):
            tensors = [np.arange(elements, dtype=np.int64) * (rank + 1) for rank in range(ranks)]
            all_reduce(contexts, tensors, op=Reduction.SUM, algorithm="two-level")
            for tensor in tensors:
                assert (tensor == np.arange(elements) * (ranks * (ranks + 1) // 2)).all()


@pytest.mark.parametrize("algorithm", ["two-level", None])
@pytest.mark.parametrize(("hosts", "ranks_per_host"), [(2, 2), (3, 2)])
def test_others__by_two_levels_have_the_right_results(hosts: int, ranks_per_host: int, algorithm: str | None) -> None:
    n = hosts * ranks_per_host
    with local_job(n, hosts=hosts_of(hosts, ranks_per_host)) as contexts:
        for elements in (1, 5_000, 400_001):
            parts = [np.arange(elements, dtype=np.int64) + 1_000 * rank for rank in range(n)]
            wholes = [np.zeros((n, elements), np.int64) for _ in range(n)]
            rows = [np.stack([part + rank for part in parts]) for rank in range(n)]
            sums = [np.zeros(elements, np.int64) for _ in range(n)]
            copies = [part.copy() for part in parts]
            total = np.zeros(elements, np.int64)
            started = []
            for context in contexts:
                rank = context.rank
                started += [
                    context.post_all_gather(wholes[rank], parts[rank], algorithm=algorithm),
                    context.post_reduce_scatter(sums[rank], rows[rank], op=Reduction.SUM, algorithm=algorithm),
                    context.post_broadcast(copies[rank], root=1, algorithm=algorithm),
                    context.post_reduce(
                        parts[rank], total if rank == 2 else None, op=Reduction.SUM, root=2, algorithm=algorithm
                    ),
                ]
            for operation in started:
                operation.wait(30)
            for rank in range(n):
                np.testing.assert_array_equal(wholes[rank], np.stack(parts))
                np.testing.assert_array_equal(sums[rank], n * parts[rank] + n * (n - 1) // 2)
                np.testing.assert_array_equal(copies[rank], parts[1])
            np.testing.assert_array_equal(total, np.sum(parts, axis=0))


def test_others__by_two_levels_take_lists_and_are_rejected_where_ranks_do_not_share_hosts() -> None:
    with local_job(4, hosts=hosts_of(2, 2)) as contexts:
        outputs = [[np.zeros(3_000, np.float32) for _ in contexts] for _ in contexts]
        started = [
            context.post_all_gather(
                outputs[context.rank], np.full(3_000, context.rank, np.float32), algorithm="two-level"
            )
            for context in contexts
        ]
        for operation in started:
            operation.wait(10)
        for output in outputs:
            assert [part[-1] for part in output] == [0, 1, 2, 3]
        one = np.ones(3, np.float32)
        for post in (
            lambda: contexts[0].post_all_gather(np.zeros(6, np.float32), one, ranks=[0, 2], algorithm="two-level"),
            lambda: contexts[0].post_reduce_scatter(one, np.zeros(6, np.float32), ranks=[0, 2], algorithm="two-level"),
            lambda: contexts[0].post_broadcast(one, ranks=[0, 2], algorithm="two-level"),
            lambda: contexts[0].post_reduce(one, one, ranks=[0, 2], algorithm="two-level"),
        ):
            with pytest.raises(mlt.InvalidBufferError, match="two or more hosts with equally many ranks"):
                post()
        with pytest.raises(mlt.ConfigError, match=names("algorithm is 'ring'", "direct, two-level")):
            contexts[0].post_all_gather(np.zeros(12, np.float32), one, algorithm="ring")


# In a ring, in halving and in two levels most members share no transfer with the one that is absent.
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("absent", [0, 2, 5])
def test_timeout__every_member_names_the_one_that_never_called(algorithm: str, absent: int) -> None:
    with local_job(6, hosts=hosts_of(3, 2)) as contexts:
        present = [context for rank, context in enumerate(contexts) if rank != absent]
        start = time.monotonic()
        operations = [
            context.post_all_reduce(np.ones(5_000, np.float32), algorithm=algorithm, timeout=0.5) for context in present
        ]
        for operation in operations:
            with pytest.raises(mlt.OperationTimeoutError, match=f"waiting for rank {absent}: check that") as caught:
                operation.wait(10)
            assert caught.value.peer == absent
        assert time.monotonic() - start < 5


def test_all_reduce__over_udp_between_two_addresses_of_one_interface() -> None:
    # The system would connect from the interface's first address, where the other rank has no datagrams.
    with local_job(4, hosts=hosts_of(2, 2), datapath="udp", faults=mlt.Faults(drop=0.02, seed=5)) as contexts:
        for elements in (1, 300_000):
            tensors = [np.arange(elements, dtype=np.int64) * (rank + 1) for rank in range(4)]
            all_reduce(contexts, tensors, op=Reduction.SUM)
            for tensor in tensors:
                assert (tensor == np.arange(elements) * 10).all()


def test_all_reduce__of_two_hosts_takes_two_levels_by_itself_and_names_ranks_that_take_another() -> None:
    with local_job(4, hosts=hosts_of(2, 2)) as contexts:
        tensors = [np.full(100_000, rank, np.float32) for rank in range(4)]
        all_reduce(contexts, tensors)
        assert all((tensor == 1.5).all() for tensor in tensors)
        operations = [
            context.post_all_reduce(tensor, algorithm="ring" if context.rank == 3 else None)
            for context, tensor in zip(contexts, tensors, strict=True)
        ]
        for operation in operations:
            with pytest.raises(mlt.SizeMismatchError, match=names("algorithm two-level of 2 ranks per host")) as caught:
                operation.wait(10)
            assert "algorithm ring" in str(caught.value)
        all_reduce(contexts, tensors)


def test_all_reduce__by_two_levels_is_rejected_where_ranks_do_not_share_hosts_evenly() -> None:
    with local_job(4, hosts=["127.0.0.1", "127.0.0.2", "127.0.0.1", "127.0.0.2"]) as contexts:
        tensor = np.ones(10, np.float32)
        for ranks in (None, [0, 2], [0, 1], [0, 2, 1]):
            with pytest.raises(mlt.InvalidBufferError, match="two or more hosts with equally many ranks"):
                contexts[0].post_all_reduce(tensor, algorithm="two-level", ranks=ranks)
        tensors = [np.full(4, rank, np.float32) for rank in range(4)]
        group = [0, 2, 1, 3]  # in this order the ranks of each host are adjacent
        operations = [
            contexts[rank].post_all_reduce(tensors[rank], algorithm="two-level", ranks=group) for rank in group
        ]
        for operation in operations:
            operation.wait(10)
        assert all((tensor == 1.5).all() for tensor in tensors)


def test_all_reduce__by_halving_loses_nothing_and_has_the_same_bits_at_every_rank() -> None:
    with local_job(3, faults=mlt.Faults(drop=0.05, seed=3)) as contexts:
        tensors = [np.random.default_rng(rank).random(100_000, np.float32) for rank in range(3)]
        mean = np.mean(tensors, axis=0, dtype=np.float64)
        done = all_reduce(contexts, tensors, loss_bound=0.2, algorithm="halving")
        assert [one.missing_bytes for one in done] == [0, 0, 0]
        assert tensors[0].tobytes() == tensors[1].tobytes() == tensors[2].tobytes()
        np.testing.assert_allclose(tensors[0], mean, rtol=1e-5)


def test_all_reduce__by_algorithms_that_differ_fails_at_every_rank_naming_both_and_the_next_call_works() -> None:
    with local_job(3) as contexts:
        for turn, other in enumerate(("direct", "central", "ring")):
            algorithms = ["halving"] * 3
            algorithms[turn] = other
            tensors = [np.ones(1_000, np.float32) for _ in contexts]
            operations = [
                context.post_all_reduce(tensor, algorithm=algorithm)
                for context, tensor, algorithm in zip(contexts, tensors, algorithms, strict=True)
            ]
            for operation in operations:
                with pytest.raises(mlt.SizeMismatchError, match=names(f"rank {turn} called")) as caught:
                    operation.wait(10)
                assert f"algorithm {other}" in str(caught.value)
                assert "algorithm halving" in str(caught.value)
            all_reduce(contexts, [np.ones(1_000, np.float32) for _ in contexts], algorithm="halving")


@pytest.mark.parametrize("algorithm", [None, "direct", "chain"])
def test_broadcast__by_each_algorithm_is_the_root_s_tensor_at_every_rank(algorithm: str | None) -> None:
    with local_job(4, faults=mlt.Faults(drop=0.02, seed=3)) as contexts:
        for elements in (0, 1, 1_000, 700_001):
            tensors = [np.arange(elements, dtype=np.int64) * (rank + 1) for rank in range(4)]
            operations = [
                context.post_broadcast(tensor, root=2, algorithm=algorithm)
                for context, tensor in zip(contexts, tensors, strict=True)
            ]
            for operation in operations:
                operation.wait(30)
            for tensor in tensors:
                assert (tensor == np.arange(elements) * 3).all()


def test_broadcast__by_algorithms_that_differ_fails_naming_both_and_an_all_reduce_s_is_rejected() -> None:
    with local_job(2) as contexts:
        tensors = [np.ones(1_000, np.float32) for _ in contexts]
        operations = [contexts[i].post_broadcast(tensors[i], algorithm=ROOTED_ALGORITHMS[i]) for i in range(2)]
        for operation in operations:
            with pytest.raises(mlt.SizeMismatchError, match=names("algorithm direct", "algorithm chain")):
                operation.wait(10)
        with pytest.raises(mlt.ConfigError, match="'ring'; expected one of direct, chain"):
            contexts[0].post_broadcast(tensors[0], algorithm="ring")


@pytest.mark.parametrize("algorithm", [None, "direct", "chain"])
@pytest.mark.parametrize("in_place", [False, True])
def test_reduce__by_each_algorithm_is_the_sum_at_the_root(algorithm: str | None, in_place: bool) -> None:
    with local_job(4, faults=mlt.Faults(drop=0.02, seed=3)) as contexts:
        for elements in (0, 1, 1_000, 1_400_001):
            tensors = [np.arange(elements, dtype=np.int64) * (rank + 1) for rank in range(4)]
            output = tensors[2] if in_place else np.zeros(elements, np.int64)
            operations = [
                context.post_reduce(
                    tensors[rank],
                    output if rank == 2 else None,
                    op=Reduction.SUM,
                    root=2,
                    algorithm=algorithm,
                )
                for rank, context in enumerate(contexts)
            ]
            for operation in operations:
                operation.wait(30)
            assert (output == np.arange(elements) * 10).all()
            for rank in (0, 1, 3):
                assert (tensors[rank] == np.arange(elements) * (rank + 1)).all()


def test_reduce__with_a_bound_that_may_save_a_packet_goes_directly_to_the_root() -> None:
    with local_job(3, faults=mlt.Faults(drop=0.05, seed=3)) as contexts:
        tensors = [np.ones(200_000, np.float32) for _ in contexts]
        total = np.zeros_like(tensors[0])
        outputs = [total, None, None]
        sum_with_bound = {"op": Reduction.SUM, "loss_bound": 0.2}
        operations = [contexts[i].post_reduce(tensors[i], outputs[i], **sum_with_bound) for i in range(3)]
        missing = [operation.wait(30).missing_bytes for operation in operations]
        assert total.sum(dtype=np.float64) == 600_000 - missing[0] // 4
        operations = [
            contexts[i].post_reduce(tensors[i], outputs[i], algorithm="chain", **sum_with_bound) for i in range(3)
        ]
        assert [operation.wait(30).missing_bytes for operation in operations] == [0, 0, 0]
        assert (total == 3).all()


def test_reduce__by_algorithms_that_differ_fails_naming_both_and_an_all_reduce_s_is_rejected() -> None:
    with local_job(2) as contexts:
        tensors = [np.ones(1_000, np.float32) for _ in contexts]
        outputs = [np.zeros_like(tensors[0]), None]
        operations = [contexts[i].post_reduce(tensors[i], outputs[i], algorithm=ROOTED_ALGORITHMS[i]) for i in range(2)]
        for operation in operations:
            with pytest.raises(mlt.SizeMismatchError, match=names("algorithm direct", "algorithm chain")):
                operation.wait(10)
        with pytest.raises(mlt.ConfigError, match="'ring'; expected one of direct, chain"):
            contexts[0].post_reduce(tensors[0], outputs[0], algorithm="ring")


def test_all_reduce__an_algorithm_that_does_not_exist_or_fit_is_rejected_before_the_group_sees_it() -> None:
    with local_job(2) as contexts:
        with pytest.raises(mlt.ConfigError, match="'tree'; expected one of direct, central, ring, halving"):
            contexts[0].post_all_reduce(np.ones(10, np.float32), algorithm="tree")
        with pytest.raises(mlt.InvalidBufferError, match="the direct algorithm holds 2 tensors of 138412032 bytes"):
            contexts[0].post_all_reduce(np.empty(33 << 20, np.float32), algorithm="direct")
        all_reduce(contexts, [np.ones(10, np.float32) for _ in contexts])


def test_calls_that_differ__leave_a_group_that_works() -> None:
    with local_job(3) as contexts:
        for turn in range(3):
            tensors = [np.ones(1_000 * (turn + 1) + (rank == turn), np.float32) for rank in range(3)]
            operations = [context.post_all_reduce(one) for context, one in zip(contexts, tensors, strict=True)]
            for operation in operations:
                with pytest.raises(mlt.SizeMismatchError, match=names(f"rank {turn} called")):
                    operation.wait(10)
            tensors = [np.full(2_000, rank, np.float32) for rank in range(3)]
            all_reduce(contexts, tensors)
            assert all((tensor == 1).all() for tensor in tensors)


def test_cancel__leaves_a_group_that_works() -> None:
    with local_job(2) as contexts:
        tensors = [np.full(500_000, rank, np.float32) for rank in range(2)]
        contexts[0].post_all_reduce(tensors[0]).cancel()
        with pytest.raises(mlt.CancelledError, match="rank 0 cancelled"):
            contexts[1].all_reduce(tensors[1])
        tensors = [np.full(500_000, rank, np.float32) for rank in range(2)]
        all_reduce(contexts, tensors, op=Reduction.SUM)
        assert all((tensor == 1).all() for tensor in tensors)


def test_call__with_members_that_are_gone_names_one_that_failed_before_those_that_left() -> None:
    with local_job(3) as contexts:
        contexts[0].close()
        contexts[1].close(failure="ended by ValueError")
        until(lambda: not contexts[2].is_peer_up(0) and not contexts[2].is_peer_up(1))
        with pytest.raises(mlt.PeerFailedError, match=names("rank 1", "ended by ValueError")) as caught:
            contexts[2].barrier()
        assert caught.value.peer == 1


def test_end_group__fails_the_calls_in_progress_and_all_later_ones_of_that_group_only() -> None:
    with local_job(3) as contexts:
        tensors = [np.ones(1_000, np.float32) for _ in contexts]
        waiting = contexts[0].post_all_reduce(tensors[0], stream=7)
        contexts[1].end_group("it aborted", stream=7)
        with pytest.raises(mlt.CancelledError, match="rank 1 ended the group: it aborted") as caught:
            waiting.wait(10)
        assert caught.value.peer == 1
        for context, tensor in zip(contexts, tensors, strict=True):
            for _ in range(2):
                with pytest.raises(mlt.CancelledError, match="rank 1 ended the group: it aborted"):
                    context.all_reduce(tensor, stream=7)
        assert [context.engine.pinned for context in contexts] == [0, 0, 0]
        all_reduce(contexts, tensors, op=Reduction.SUM)
        assert tensors[0][0] == 3


@pytest.mark.parametrize("element", FLOATING)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_check_finite__ends_every_verb_at_every_rank_and_names_the_rank_and_the_element(
    job: list[mlt.Context], element: str, value: float
) -> None:
    n, at = len(job), 4
    ranks = list(range(n))
    for verb in VERBS[:-1]:  # a barrier has no input
        call = Call(verb, n, 3_000, element, Reduction.SUM if verb in REDUCING else None, root=n - 1)
        buffers = [call.buffers(index) for index in ranks]
        bad = next(one for one in buffers[n - 1] if one is not None)  # in place, or the input
        bad[at] = encoded(np.array([value]), element)[0]
        # Rank 0 does not check: that is each rank's own choice.
        operations = [call.post(job[rank], buffers[rank], check_finite=rank != 0, timeout=30) for rank in ranks]
        for operation in operations:
            error, text = outcome(operation, 30)
            assert error == "CancelledError", (verb, text)
            assert_names(text, f"the input of rank {n - 1} has a NaN or an infinity at element {at}")
        # The group still works, and finite values pass.
        buffers = [call.buffers(index) for index in ranks]
        operations = [call.post(job[rank], buffers[rank], check_finite=True) for rank in ranks]
        for index, operation in enumerate(operations):
            assert operation.wait(30).status == "complete"
            call.check(index, buffers[index])


def test_check_finite__concerns_no_integers(job: list[mlt.Context]) -> None:
    tensors = [np.full(9, -1, np.int32) for _ in job]  # every bit is set, as in a NaN
    operations = [
        context.post_all_reduce(one, op=Reduction.MAX, check_finite=True)
        for context, one in zip(job, tensors, strict=True)
    ]
    assert [operation.wait(30).status for operation in operations] == ["complete"] * len(job)
    assert all((one == -1).all() for one in tensors)


@pytest.mark.parametrize("element", ["float32", "bfloat16", "int64"])
def test_all_reduce__of_a_list_is_that_of_each_tensor(job: list[mlt.Context], element: str) -> None:
    shapes = [(3,), (0,), (40, 50), (), (20_000,)]
    lists = [
        [np.array(encoded(np.full(shape, rank + i), element)) for i, shape in enumerate(shapes)]
        for rank in range(len(job))
    ]
    dtype = element if element == "bfloat16" else None
    operations = [
        context.post_all_reduce(tensors, op=Reduction.SUM, dtype=dtype)
        for context, tensors in zip(job, lists, strict=True)
    ]
    total = sum(tensor.nbytes for tensor in lists[0])
    assert [operation.wait(30).bytes for operation in operations] == [total] * len(job)
    for tensors in lists:
        for i, tensor in enumerate(tensors):
            np.testing.assert_array_equal(
                tensor, encoded(np.full(shapes[i], sum(range(len(job))) + i * len(job)), element)
            )


def test_broadcast__of_a_list_takes_the_roots_which_may_be_read_only(job: list[mlt.Context]) -> None:
    torch = pytest.importorskip("torch")
    lists: list[Any] = [(np.zeros(3, np.float32), torch.zeros(2, 2)) for _ in job]
    root = len(job) - 1
    first, last = np.arange(3, dtype=np.float32), torch.arange(4.0).reshape(2, 2)
    first.flags.writeable = False
    lists[root] = [first, last]
    operations = [context.post_broadcast(tensors, root=root) for context, tensors in zip(job, lists, strict=True)]
    for operation in operations:
        assert operation.wait(30).status == "complete"
    for one, other in lists:
        assert one.tolist() == [0, 1, 2]
        assert other.tolist() == [[0, 1], [2, 3]]


def test_poll_cq__takes_that_of_a_list_with_its_results(job: list[mlt.Context]) -> None:
    lists = [[np.full(2, rank, np.float32), np.full(1, rank, np.float32)] for rank in range(len(job))]
    for context, tensors in zip(job, lists, strict=True):
        context.post_all_reduce(tensors, op=Reduction.MAX)
    for context, tensors in zip(job, lists, strict=True):
        assert [one.kind for one in until(context.poll_cq, 10, every=0.001)] == ["all_reduce"]
        assert [tensor.tolist() for tensor in tensors] == [[len(job) - 1] * 2, [len(job) - 1]]


def test_all_reduce__of_a_list_that_fails_leaves_it_and_names_tensor_and_number(job: list[mlt.Context]) -> None:
    lists = [[np.ones(2, np.float32), np.full(3, rank, np.float32)] for rank in range(len(job))]
    lists[-1][1][2] = np.nan
    operations = [
        context.post_all_reduce(tensors, check_finite=True) for context, tensors in zip(job, lists, strict=True)
    ]
    for operation in operations:
        error, text = outcome(operation, 30)
        assert error == "CancelledError"
        assert_names(text, "2 tensors", f"rank {len(job) - 1}", "element 2 of tensor 1")
    assert lists[0][1].tolist() == [0, 0, 0]


def test_all_reduce__a_list_that_cannot_be_one_is_rejected(job: list[mlt.Context]) -> None:
    context, tensor = job[0], np.zeros(4, np.float32)
    with pytest.raises(mlt.InvalidBufferError, match=names("rank 0", "all-reduce", "list of tensors is empty")):
        context.post_all_reduce([])
    with pytest.raises(mlt.InvalidBufferError, match=names("tensor 0", "float32", "tensor 1", "float64")):
        context.post_all_reduce([tensor, np.zeros(2)])
    with pytest.raises(mlt.InvalidBufferError, match=names("rank 0", "tensors 0 and 1 of the list overlap")):
        context.post_all_reduce([tensor, tensor[2:]])
    with pytest.raises(mlt.InvalidBufferError, match=names("rank 0", "tensor 1")):
        context.post_all_reduce([tensor, [1.0]])
    with pytest.raises(mlt.InvalidBufferError, match=names("rank 0", "tensor 0", "read-only")):
        context.post_all_reduce([b"1234"])


def test_poll_cq__has_collectives_among_the_rest(job: list[mlt.Context]) -> None:
    tensors = [np.ones(10, np.float32) for _ in job]
    operations = [context.post_all_reduce(tensor) for context, tensor in zip(job, tensors, strict=True)]
    found = until(job[0].poll_cq, 10, every=0.001)
    assert [(one.op, one.kind, one.failed) for one in found] == [(operations[0], "all_reduce", False)]
    for operation in operations[1:]:
        operation.wait(10)


def member(pipe: Connection, rank: int, port: int) -> None:
    with open_rank(rank, port, workers=3, peer_timeout=PEER_TIMEOUT) as context:
        tensor = np.ones(4 << 20, np.float32)
        context.all_reduce(tensor)
        pipe.send("ready")
        if pipe.recv() == "wait":
            time.sleep(60)  # killed before that
        try:
            while True:
                context.all_reduce(tensor, timeout=20)
        except mlt.MltError as error:
            failed_at = time.monotonic()
            tensor[:] = 5
            time.sleep(0.2)  # late packets of the failed call would land in this time
            pipe.send((error, failed_at, bool((tensor == 5).all()), context.engine.pinned))


@pytest.mark.parametrize("word", ["wait", "go"])
def test_all_reduce__fails_in_time_at_all_when_a_process_is_killed(word: str) -> None:
    """The victim has not called, or is in the middle of one after another."""
    with process_job(member, 3) as ranks:
        assert [one.hear() for one in ranks] == ["ready"] * 3
        for one in ranks:
            one.say(word if one.rank == 2 else "go")
        time.sleep(0.3)  # the survivors wait in a call, or all are in one after another
        struck = time.monotonic()
        ranks[2].process.kill()
        for one in ranks[:2]:
            error, failed_at, is_untouched, pinned = one.hear()
            assert isinstance(error, mlt.PeerFailedError), error
            assert error.peer == 2
            assert "rank 2" in str(error)
            assert failed_at - struck < 5
            assert is_untouched
            assert pinned == 0
