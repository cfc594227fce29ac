"""Push-pull through summation services: exact averages of what arrived, the same bits on every worker."""

from __future__ import annotations

import gc
import hashlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks import assert_names
from collective_calls import record_push_pull
from transport_jobs import ETHERNET_SEGMENT, START_SECONDS, local_job, process_job, takes

import mlt
from mlt._shared.ports import free_port
from mlt.options.service_loads import by_hosts

# Two and a half partitions of 4 MB, the last one with an odd number of elements.
MANY = 2_621_443
WORKERS = 2
FAULTS = mlt.Faults(drop=0.03, duplicate=0.01, reorder=0.02, seed=23)


@pytest.fixture(scope="module")
def lossy() -> Iterator[list[mlt.Context]]:
    with local_job(WORKERS, services=1, faults=FAULTS, segment_bytes=ETHERNET_SEGMENT) as contexts:
        yield contexts


def run_together(
    contexts: list[mlt.Context], tensors: list[np.ndarray], key: int, **options: object
) -> list[mlt.PushPullResult]:
    """One push-pull of each worker's tensor under the same key, in place."""
    handles = [
        mlt.PushPull(context).push_pull(tensor, key=key, **options)  # type: ignore[arg-type]
        for context, tensor in zip(contexts, tensors, strict=False)
    ]
    return [handle.wait(30) for handle in handles]


@pytest.mark.parametrize("count", [0, 1, 2, 357, 358, 359, 100_003, MANY])
@pytest.mark.parametrize("average", [True, False])
def test_push_pull__without_loss_is_the_exact_mean_or_sum(lossy: list[mlt.Context], count: int, average: bool) -> None:
    rng = np.random.default_rng(count)
    tensors = [rng.standard_normal(count).astype(np.float32) for _ in range(WORKERS)]
    total = tensors[0] + tensors[1]
    results = run_together(lossy, tensors, key=count * 2 + average, average=average)
    for tensor, result in zip(tensors, results, strict=True):
        # Two float32 add the same in either order, and halving is exact.
        np.testing.assert_array_equal(tensor, total / 2 if average else total)
        assert (result.bytes, result.missing_bytes, result.loss_fraction) == (4 * count, 0, 0.0)


@pytest.mark.parametrize("average", [True, False])
def test_push_pull__divides_by_the_workers_whose_segment_arrived(lossy: list[mlt.Context], average: bool) -> None:
    tensors = [np.full(MANY, 1, np.float32), np.full(MANY, 2, np.float32)]
    results = run_together(lossy, tensors, key=10_000 + average, average=average, loss_bound="10%")
    assert tensors[0].tobytes() == tensors[1].tobytes()
    both = 1.5 if average else 3.0
    values, counts = np.unique(tensors[0], return_counts=True)
    found = {float(value): int(count) for value, count in zip(values, counts, strict=True)}
    assert set(found) <= {0.0, 1.0, 2.0, both}
    neither, only_first, only_second = found.get(0.0, 0), found.get(1.0, 0), found.get(2.0, 0)
    # What each worker was told it lost is what is missing from the sum.
    assert results[0].missing_bytes == 4 * (only_second + neither)
    assert results[1].missing_bytes == 4 * (only_first + neither)
    for result in results:
        assert 0 < result.missing_bytes <= 0.1 * 4 * MANY
        assert result.loss_fraction == result.missing_bytes / (4 * MANY)


def test_push_pull__writes_to_out_and_leaves_the_input(lossy: list[mlt.Context]) -> None:
    inputs = [np.full((30, 70), 1 + rank, np.float32) for rank in range(WORKERS)]
    outputs = [np.zeros((70, 30), np.float32) for _ in range(WORKERS)]
    handles = [
        mlt.PushPull(lossy[rank]).push_pull(inputs[rank], key=20_000, out=outputs[rank]) for rank in range(WORKERS)
    ]
    for rank, handle in enumerate(handles):
        handle.wait(30)
        assert (inputs[rank] == 1 + rank).all()
        assert (outputs[rank] == 1.5).all()


def test_push_pull__many_keys_at_once(lossy: list[mlt.Context]) -> None:
    tensors = [[np.full(5_000 + key, rank + key, np.float32) for key in range(40)] for rank in range(WORKERS)]
    handles = [
        mlt.PushPull(lossy[rank]).push_pull(tensor, key=30_000 + key, layer=key, layers=40)
        for rank in range(WORKERS)
        for key, tensor in enumerate(tensors[rank])
    ]
    for handle in handles:
        handle.wait(30)
    for per_worker in tensors:
        for key, tensor in enumerate(per_worker):
            assert (tensor == key + 0.5).all()


@pytest.mark.parametrize("field", ["elements", "loss_bound", "average"])
def test_push_pull__what_differs_is_an_error_of_every_worker_with_both_named(
    lossy: list[mlt.Context], field: str, record_property: Callable[[str, object], None]
) -> None:
    key = 23_000 + len(field)
    options: list[dict[str, Any]] = [{"loss_bound": 0.0, "average": True} for _ in range(WORKERS)]
    tensors = [np.ones(1_000 if rank or field != "elements" else 20, np.float32) for rank in range(WORKERS)]
    if field != "elements":
        options[1][field] = {"loss_bound": 0.25, "average": False}[field]
    first = mlt.PushPull(lossy[0]).push_pull(tensors[0], key=key, **options[0])
    with pytest.raises(mlt.WaitTimeoutError):
        first.wait(0.2)  # rank 1 has not come yet
    second = mlt.PushPull(lossy[1]).push_pull(tensors[1], key=key, **options[1])
    for handle in (first, second):
        with pytest.raises(mlt.SizeMismatchError) as caught:
            handle.wait(10)
        assert_names(str(caught.value), f"rank 0 has {tensors[0].size} elements", "rank 1 has 1000 elements")
        if field != "elements":
            assert_names(str(caught.value), *{"loss_bound": ("0.25",), "average": ("average", "sum")}[field])
    # Other keys continue.
    tensors = [np.full(10, 1 + rank, np.float32) for rank in range(WORKERS)]
    run_together(lossy, tensors, key=key + 100)
    assert all((tensor == 1.5).all() for tensor in tensors)
    record_push_pull(record_property, "pushes that differ", "SizeMismatchError, other keys work")


def test_push_pull__takes_torch_tensors_in_place(lossy: list[mlt.Context]) -> None:
    torch = pytest.importorskip("torch")
    tensors = [torch.full((100, 100), float(rank)) for rank in range(WORKERS)]
    pointers = [tensor.data_ptr() for tensor in tensors]
    handles = [mlt.PushPull(lossy[rank]).push_pull(tensors[rank], key=21_000) for rank in range(WORKERS)]
    for handle in handles:
        handle.wait(30)
    assert [tensor.data_ptr() for tensor in tensors] == pointers
    assert all(bool((tensor == 0.5).all()) for tensor in tensors)


def test_callback__is_called_once_on_a_thread_of_the_library(lossy: list[mlt.Context]) -> None:
    calls: list[tuple[str, mlt.PushPullHandle]] = []
    called = threading.Event()

    def note(handle: mlt.PushPullHandle) -> None:
        assert handle.wait(timeout=0).bytes == 40
        calls.append((threading.current_thread().name, handle))
        called.set()

    first = mlt.PushPull(lossy[0]).push_pull(np.zeros(10, np.float32), key=22_000, name="bias")
    first.add_done_callback(note)
    assert not first.done()
    assert calls == []
    mlt.PushPull(lossy[1]).push_pull(np.zeros(10, np.float32), key=22_000).wait(30)
    assert called.wait(30)
    assert calls == [("mlt-callbacks", first)]
    assert first.done()
    first.add_done_callback(note)
    assert len(calls) == 2
    assert "key 22000 (bias)" in repr(first)


def test_callback__that_raises_is_logged_and_stops_nobody(
    lossy: list[mlt.Context], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_handle: mlt.PushPullHandle) -> None:
        raise ZeroDivisionError("the user's own")

    called = threading.Event()
    handle = mlt.PushPull(lossy[0]).push_pull(np.zeros(10, np.float32), key=22_001)
    handle.add_done_callback(fail)
    handle.add_done_callback(lambda _: called.set())
    with caplog.at_level(logging.ERROR, logger="mlt"):
        mlt.PushPull(lossy[1]).push_pull(np.zeros(10, np.float32), key=22_001).wait(30)
        assert called.wait(30)
    assert_names(caplog.text, "push-pull of key 22001", "callback")


def test_callback__that_would_wait_for_ever_is_told(lossy: list[mlt.Context]) -> None:
    raised: list[BaseException] = []
    called = threading.Event()
    push_pull = mlt.PushPull(lossy[0])
    pending = push_pull.push_pull(np.zeros(10, np.float32), key=22_003)

    def wait_for_another(_handle: mlt.PushPullHandle) -> None:
        try:
            pending.wait(5)
        except mlt.MltError as error:
            raised.append(error)
        called.set()

    push_pull.push_pull(np.zeros(10, np.float32), key=22_002).add_done_callback(wait_for_another)
    other = mlt.PushPull(lossy[1])
    other.push_pull(np.zeros(10, np.float32), key=22_002)
    assert called.wait(30)
    assert "inside a completion callback" in str(raised[0])
    other.push_pull(np.zeros(10, np.float32), key=22_003).wait(30)
    pending.wait(30)


def test_wait__timeout_leaves_it_running(lossy: list[mlt.Context]) -> None:
    handle = mlt.PushPull(lossy[0]).push_pull(np.zeros(10, np.float32), key=22_004)
    with takes(at_least=0.2, at_most=1.0), pytest.raises(mlt.WaitTimeoutError, match="key 22004"):
        handle.wait(0.2)
    mlt.PushPull(lossy[1]).push_pull(np.zeros(10, np.float32), key=22_004).wait(30)
    assert handle.wait(30).bytes == 40


def test_push_pull__of_a_worker_that_never_pushes_times_out(
    lossy: list[mlt.Context], record_property: Callable[[str, object], None]
) -> None:
    tensor = bytearray(40)
    handle = mlt.PushPull(lossy[0]).push_pull(memoryview(tensor).cast("f"), key=22_005, timeout=4)
    late = r"rank 0.*key 22005.*no complete push of rank 1 has arrived; rank 1 never posted"
    with takes(at_most=8.0), pytest.raises(mlt.OperationTimeoutError, match=late):
        handle.wait(20)
    with takes(at_most=2.0):
        while lossy[0].engine.pinned:
            pass
    # Other keys continue.
    tensors = [np.full(10, rank, np.float32) for rank in range(WORKERS)]
    run_together(lossy, tensors, key=22_006)
    assert (tensors[0] == 0.5).all()
    record_push_pull(record_property, "one worker never pushes", "OperationTimeoutError, other keys work")


def test_push_pull__a_worker_that_skips_a_push_is_named(lossy: list[mlt.Context]) -> None:
    run_together(lossy, [np.zeros(300_000, np.float32) for _ in range(WORKERS)], key=22_107)
    handle = mlt.PushPull(lossy[0]).push_pull(np.zeros(300_000, np.float32), key=22_107, timeout=4)
    late = r"rank 0.*key 22107.*no complete push of rank 1 has arrived: check that every rank posts"
    with takes(at_most=8.0), pytest.raises(mlt.OperationTimeoutError, match=late) as caught:
        handle.wait(20)
    assert caught.value.peer == 1


def test_close__fails_what_is_under_way() -> None:
    with local_job(WORKERS, services=1) as contexts:
        handle = mlt.PushPull(contexts[0]).push_pull(np.zeros(10, np.float32), key=1)
        contexts[0].close()
        with takes(at_most=1.0), pytest.raises(mlt.MltError, match="rank 0"):
            handle.wait(5)
        assert contexts[0].engine.pinned == 0


def train(pipe: Connection, rank: int, port: int, services: int, steps: int) -> None:
    """A worker or service of a job in processes; a worker sends a digest of each step's result, and what it lost."""
    context = mlt.Context(
        rank,
        WORKERS,
        services,
        master_addr="127.0.0.1",
        rendezvous_port=port,
        faults=FAULTS,
        segment_bytes=ETHERNET_SEGMENT,
        operation_timeout=60,
    )
    with context:
        if rank >= WORKERS:
            mlt.SummationService(context).run()
            pipe.send("served")
            return
        push_pull = mlt.PushPull(context)
        sizes = [MANY, 40_001, 10]
        tensors = [np.zeros(size, np.float32) for size in sizes]
        rng = np.random.default_rng(rank)
        for step in range(steps):
            for tensor in tensors:
                tensor += rng.standard_normal(tensor.size).astype(np.float32)
            handles = [
                push_pull.push_pull(tensor, key=key, loss_bound=0.1, layer=key, layers=len(sizes))
                for key, tensor in enumerate(tensors)
            ]
            lost = sum(handle.wait(60).missing_bytes for handle in handles)
            pipe.send((step, [hashlib.sha256(tensor.tobytes()).hexdigest() for tensor in tensors], lost))


@pytest.mark.parametrize("services", [1, 2])
def test_push_pull__replicas_in_processes_stay_bit_identical_under_loss(services: int) -> None:
    steps = 5
    with process_job(train, WORKERS + services, services, steps) as ranks:
        lost = 0
        for step in range(steps):
            reports = [ranks[worker].hear(60) for worker in range(WORKERS)]
            assert [report[0] for report in reports] == [step] * WORKERS
            assert reports[0][1] == reports[1][1]
            lost += sum(report[2] for report in reports)
        assert lost > 0
        for service in ranks[WORKERS:]:
            assert service.hear(START_SECONDS) == "served"
        for one in ranks:
            one.process.join(START_SECONDS)
            assert one.process.exitcode == 0


def test_callback__that_exits_does_not_end_the_dispatcher() -> None:
    def leave(_: object) -> None:
        raise SystemExit(3)

    with local_job(1, services=1) as contexts:
        client = mlt.PushPull(contexts[0])
        first = client.push_pull(np.ones(4, np.float32), key=1)
        first.add_done_callback(leave)
        first.wait(10)
        client.push_pull(np.ones(4, np.float32), key=2).wait(10)


def test_context__dropped_with_callbacks_is_kept_to_be_closed() -> None:
    with local_job(1, services=1) as contexts:
        handle = mlt.PushPull(contexts[0]).push_pull(np.ones(4, np.float32), key=1)
        handle.add_done_callback(lambda _: None)
        handle.wait(10)
        del handle
        dropped = weakref.ref(contexts[0])
        engine = contexts.pop(0).engine
        gc.collect()
        kept = dropped()
        assert kept is not None
        kept.close()
        assert engine.closed


def test_poll_cq__takes_push_pulls_and_tells_their_handles() -> None:
    with local_job(1, services=1) as contexts:
        client = mlt.PushPull(contexts[0])
        called: list[object] = []
        handle = client.push_pull(np.ones(4, np.float32), key=7, name="bias")
        taken: list[mlt.Completion] = []
        with takes(at_most=10):
            while not taken:
                taken = contexts[0].poll_cq()
        assert [(one.kind, one.tag, one.bytes, one.op is handle) for one in taken] == [("push_pull", 7, 16, True)]
        assert handle.done()
        assert handle.wait(0).name == "bias"
        handle.add_done_callback(called.append)
        assert called == [handle]
        # A callback without another reference is called all the same.
        client.push_pull(np.ones(4, np.float32), key=8)
        taken = []
        with takes(at_most=10):
            while not taken:
                taken = contexts[0].poll_cq()
        assert (taken[0].op.kind, taken[0].op.tag, str(taken[0].op)) == ("push_pull", 8, "push-pull of key 8")


def test_wait__of_many_threads_for_one_handle(lossy: list[mlt.Context]) -> None:
    handle = mlt.PushPull(lossy[0]).push_pull(np.zeros(10, np.float32), key=22_007)
    results: list[mlt.PushPullResult] = []
    called = threading.Event()
    threads = [threading.Thread(target=lambda: results.append(handle.wait(30))) for _ in range(4)]
    for thread in threads:
        thread.start()
    handle.add_done_callback(lambda _: called.set())
    mlt.PushPull(lossy[1]).push_pull(np.zeros(10, np.float32), key=22_007).wait(30)
    for thread in threads:
        thread.join()
    assert called.wait(10)
    assert [one.bytes for one in results] == [40] * 4


def test_summation_service__that_the_others_leave_behind_ends_with_the_reason() -> None:
    class Engine:
        def wait_workers_gone(self, _timeout_ns: int) -> bool:
            return False

        def take_notices(self) -> list[str]:
            return []

        def take_exclusion(self) -> str:
            return "rank 2 takes no further part"

    service = mlt.SummationService.__new__(mlt.SummationService)
    service._context = type("Job", (), {"engine": Engine()})()  # type: ignore[assignment]
    with pytest.raises(mlt.PeerFailedError, match="rank 2 takes no further part"):
        service.run(timeout=5)


def hosts_of(workers: int, spare: int) -> list[str]:
    """A service beside each worker, and one on each spare host."""
    numbers = [*range(workers), *range(workers), *range(workers, workers + spare)]
    return [f"127.0.0.{1 + number}" for number in numbers]


def test_push_pull__cuts_by_the_loads_of_equations_1_and_2() -> None:
    with local_job(3, services=4, hosts=hosts_of(3, 1)) as contexts:
        loads = by_hosts(contexts[0].hosts, 3)
        assert loads == pytest.approx([0.2, 0.2, 0.2, 0.4])
        for context in contexts[:3]:
            mlt.PushPull(context, loads=loads)
        assert contexts[0].service_loads == pytest.approx(loads)
        tensors = [np.full(700_001, rank, np.float32) for rank in range(3)]
        run_together(contexts[:3], tensors, key=1)
        assert all((tensor == 1).all() for tensor in tensors)
        received = [context.counters()["data_bytes_received"] for context in contexts[3:]]
        assert received[3] == pytest.approx(3 * 0.4 * 4 * 700_001, rel=0.02)
        assert received[:3] == pytest.approx([received[3] / 2] * 3, rel=0.02)


def test_push_pull__leaves_out_services_beside_workers_where_as_many_are_on_spare_hosts() -> None:
    with local_job(2, services=4, hosts=hosts_of(2, 2)) as contexts:
        assert contexts[0].service_loads == (0, 0, 0.5, 0.5)
        run_together(contexts[:2], [np.ones(300_000, np.float32) for _ in range(2)], key=1)
        received = [context.counters()["data_bytes_received"] for context in contexts[2:]]
        assert received[:2] == [0, 0]
        assert min(received[2:]) > 1_000_000


def test_push_pull__by_given_loads_leaves_out_a_service_of_load_0() -> None:
    with local_job(2, services=2, hosts=[]) as contexts:
        pulls = [mlt.PushPull(context, loads=[0, 3]) for context in contexts[:2]]
        assert contexts[0].service_loads == (0, 1)
        tensors = [np.full(300_000, rank, np.float32) for rank in range(2)]
        for handle in [pull.push_pull(tensor, key=1) for pull, tensor in zip(pulls, tensors, strict=True)]:
            handle.wait(30)
        assert all((tensor == 0.5).all() for tensor in tensors)
        mlt.PushPull(contexts[0], loads=[0, 1])  # the same in another unit
        with pytest.raises(mlt.ConfigError, match=r"loads are \[0\.5, 0\.5\], and those of the context's first"):
            mlt.PushPull(contexts[0], loads=[1, 1])


def test_push_pull__loads_that_differ_are_an_error_of_every_worker_with_both_named() -> None:
    with local_job(2, services=2) as contexts:
        pulls = [mlt.PushPull(contexts[0], loads=[1, 0]), mlt.PushPull(contexts[1], loads=[0, 1])]
        handles = [pull.push_pull(np.ones(10, np.float32), key=1) for pull in pulls]
        for handle in handles:
            with pytest.raises(mlt.SizeMismatchError) as failure:
                handle.wait(10)
            assert_names(failure.value, "rank 0 cuts its tensors by the loads 100, 0 %", "by the loads 0, 100 %")


def test_push_pull__a_plan_that_does_not_fit_is_named_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place: Any = {"master_addr": "127.0.0.1", "rendezvous_port": free_port()}
    with monkeypatch.context() as patch:
        patch.setenv("MLT_PLAN", str(tmp_path / "plan.json"))
        # The other ranks do not run: the error is there before the ranks connect.
        with pytest.raises(mlt.ConfigError, match=r"MLT_PLAN: .*plan\.json.*cannot be read"):
            mlt.Context(0, 2, 1, **place)
    with local_job(2, services=1) as contexts:
        with pytest.raises(mlt.ConfigError, match="loads has 2 numbers, and this job has 1 summation service"):
            mlt.PushPull(contexts[0], loads=[1, 2])
        run_together(contexts[:2], [np.ones(10, np.float32) for _ in range(2)], key=1)
