"""Controllers of several ranks in threads, over real sockets."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import pytest
from checks import assert_names, names, until
from transport_jobs import local_job

import mlt
from mlt import _waits
from mlt._named.channel import RequestQueue
from mlt._named.controller import Controller, EndedError, Handle, RejectedError
from mlt._named.elements import Bytes
from mlt._named.leader import Settings
from mlt._named.requests import Kind, Request

Result = TypeVar("Result")


class Arrays:
    """Tensors of one operation, of numpy."""

    def __init__(self, *inputs: np.ndarray[Any, Any]) -> None:
        self.inputs = inputs
        self.outputs: list[Any] = [None] * len(inputs)

    def input(self, index: int) -> Bytes:
        return self.inputs[index].reshape(-1).view(np.uint8)

    def allocate(self, index: int, shape: tuple[int, ...]) -> Bytes:
        self.outputs[index] = np.empty(shape, self.inputs[index].dtype)
        flat: Bytes = self.outputs[index].reshape(-1).view(np.uint8)
        return flat


def do(own: Controller, kind: Kind, name: str, *arrays: np.ndarray[Any, Any], **options: Any) -> list[Any]:
    """Carry out one operation; its outputs."""
    tensors = Arrays(*arrays)
    specs = tuple((str(array.dtype), array.shape) for array in arrays)
    own.submit(Request(kind, name, specs, **options), tensors).wait()
    return tensors.outputs


@contextlib.contextmanager
def controllers(size: int, settings: Settings | None = None, **options: Any) -> Iterator[list[Controller]]:
    with local_job(size, **options) as contexts:
        made = [Controller(context, settings) for context in contexts]
        try:
            yield made
        finally:
            everywhere(made, lambda own: own.close())


def everywhere(made: list[Controller], function: Callable[[Controller], Result]) -> list[Result]:
    """Results of ``function`` on all ranks, each in a thread."""
    with ThreadPoolExecutor(len(made)) as pool:
        return list(pool.map(function, made))


@pytest.mark.parametrize("drop", [0.0, 0.05])
def test_submit__matches_by_name_and_not_by_order(drop: float) -> None:
    def reduce_all(own: Controller) -> None:
        order = range(20) if own.rank % 2 else range(19, -1, -1)
        pending = {}
        for i in order:
            tensors = Arrays(np.full(3, i * 10 + own.rank, np.int64))
            request = Request("allreduce", f"tensor {i}", (("int64", (3,)),), op="sum")
            pending[i] = own.submit(request, tensors), tensors
        for i, (handle, tensors) in pending.items():
            handle.wait()
            assert tensors.outputs[0].tolist() == [i * 30 + 3] * 3

    with controllers(3, faults=mlt.Faults(drop=drop, seed=1), datapath="udp") as made:
        for _ in range(3):  # from the second time on by the cache
            everywhere(made, reduce_all)


def test_submit__a_disagreement_is_an_error_on_every_rank_and_the_next_call_works() -> None:
    def disagree(own: Controller) -> str:
        with pytest.raises(RejectedError) as raised:
            do(own, "allreduce", "odd", np.zeros(3 + own.rank, np.float32), op="sum")
        assert do(own, "allreduce", "odd", np.ones(3, np.float32), op="sum")[0].tolist() == [2.0] * 3
        return str(raised.value)

    with controllers(2) as made:
        first, second = everywhere(made, disagree)
    assert first == second
    assert_names(first, "'odd'", "3 on rank 0", "4 on rank 1")


def test_handle__has_the_completions_of_what_carried_it_out() -> None:
    def reduce(own: Controller) -> tuple[int, int]:
        handles = []
        for layer in range(2):
            array = np.ones(100_000 * (layer + 1), np.float32)
            specs = (("float32", array.shape),)
            request = Request("allreduce", f"l{layer}", specs, op="average", bound=0.3, layer=layer, layers=2)
            handles.append(own.submit(request, Arrays(array)))
        for handle in handles:
            handle.wait()
        assert [sum(one.bytes for one in handle.completions) for handle in handles] == [400_000, 800_000]
        done = handles[1].completions[0]
        return done.missing_bytes, done.bytes

    with controllers(2, faults=mlt.Faults(drop=0.05, seed=1), datapath="udp") as made:
        missing = everywhere(made, reduce)
    assert any(lost for lost, _ in missing)
    assert all(lost <= 0.3 * whole for lost, whole in missing)


def test_submit__moves_uneven_parts() -> None:
    def move(own: Controller) -> None:
        rank = own.rank
        (gathered,) = do(own, "allgather", "g", np.full((rank, 2), rank, np.int16))
        assert gathered[:, 0].tolist() == [1, 2, 2]
        (moved,) = do(own, "alltoall", "a", np.arange(3) * 10 + rank, splits=(rank, 0, 3 - rank))
        expected = {0: [1, 2, 12], 1: [], 2: [0, 10, 20, 11, 21, 22]}[rank]
        assert moved.tolist() == expected
        (part,) = do(own, "reducescatter", "r", np.arange(7, dtype=np.float32), op="max")
        assert part.tolist() == {0: [0, 1, 2], 1: [3, 4], 2: [5, 6]}[rank]
        (sent,) = do(own, "broadcast", "b", np.full(2, rank), root=2)
        assert sent.tolist() == [2, 2]

    with controllers(3) as made:
        everywhere(made, move)


def test_submit__an_urgent_reduction_overtakes_those_that_are_not_carried_out() -> None:
    may_continue = threading.Event()
    all_have_seen = threading.Barrier(3)

    class Blocking(Arrays):
        def allocate(self, index: int, shape: tuple[int, ...]) -> Bytes:
            assert may_continue.wait(60)
            return super().allocate(index, shape)

    def reduce(own: Controller) -> None:
        def start(name: str, priority: int, kind: type[Arrays]) -> tuple[Any, Arrays]:
            tensors = kind(np.ones(3, np.float32))
            request = Request("allreduce", name, (("float32", (3,)),), op="sum", priority=priority)
            return own.submit(request, tensors), tensors

        pending = [start(f"back {layer}", -9, Blocking) for layer in range(3)]
        for turn in range(3):  # from the second on by the cache
            handle, tensors = start("front", 0, Arrays)
            handle.wait()
            assert tensors.outputs[0].tolist() == [3.0] * 3, turn
        assert not any(one.done() for one, _ in pending)
        all_have_seen.wait()
        may_continue.set()
        for handle, tensors in pending:
            handle.wait()
            assert tensors.outputs[0].tolist() == [3.0] * 3

    with controllers(3) as made:
        everywhere(made, reduce)


class Waiting(Arrays):
    """Whose memory is there once the event is set."""

    def __init__(self, event: threading.Event, *inputs: np.ndarray[Any, Any]) -> None:
        super().__init__(*inputs)
        self.event, self.asked = event, threading.Event()

    def allocate(self, index: int, shape: tuple[int, ...]) -> Bytes:
        self.asked.set()
        assert self.event.wait(60)
        return super().allocate(index, shape)


class Failing(Arrays):
    def allocate(self, index: int, shape: tuple[int, ...]) -> Bytes:
        raise RuntimeError("out of memory")


def start_sum(own: Controller, name: str, priority: int, tensors: Arrays) -> Handle:
    return own.submit(Request("allreduce", name, (("float32", (3,)),), op="sum", priority=priority), tensors)


def test_submit__an_urgent_reduction_of_a_rank_alone_completes() -> None:
    own = Controller(None)
    event = threading.Event()
    waiting = Waiting(event, np.ones(3, np.float32))
    back = start_sum(own, "back", -9, waiting)
    assert waiting.asked.wait(60)
    front = start_sum(own, "front", 0, Arrays(np.ones(3, np.float32)))
    event.set()
    back.wait()
    until(front.done)
    own.close()


def test_submit__after_a_failure_of_an_urgent_reduction_no_rank_gets_sums_without_a_rank() -> None:
    event = threading.Event()
    ones = np.ones(3, np.float32)
    with controllers(2) as made:
        pending = []
        for name in ("back 0", "back 1"):
            tensors = [Waiting(event, ones) for _ in made]
            pending.append([(start_sum(own, name, -9, one), one) for own, one in zip(made, tensors, strict=True)])
            assert all(one.asked.wait(60) for _, one in pending[0])
        start_sum(made[0], "front", 0, Arrays(ones))
        failed = start_sum(made[1], "front", 0, Failing(ones))
        with pytest.raises(EndedError, match="out of memory"):
            failed.wait()
        event.set()
        pending[1][0][0]._ended.wait(1.0)  # of rank 0: the other's second thread has had time to take part
        made[1].close()
        for handle, tensors in (one for pair in pending for one in pair):
            with contextlib.suppress(EndedError, mlt.MltError):
                handle.wait()
                assert tensors.outputs[0].tolist() == [2.0] * 3


def test_join__no_reduction_that_was_submitted_before_it_is_carried_out_after_it() -> None:
    events = [threading.Event(), threading.Event()]
    ones = np.ones(3, np.float32)
    with controllers(2) as made:
        coordinator = made[0]._leader._coordinator  # type: ignore[union-attr]
        joined = made[1].submit(Request("join", "join"))
        until(lambda: coordinator.is_waiting)
        waiting = [Waiting(event, ones) for event in events]
        back = start_sum(made[0], "back", -9, waiting[0])
        assert waiting[0].asked.wait(60)
        front = start_sum(made[0], "front", 0, waiting[1])
        assert waiting[1].asked.wait(60)
        urgent = Arrays(ones)
        first = start_sum(made[0], "urgent", 5, urgent)
        last = made[0].submit(Request("join", "join"))
        next_epoch: list[tuple[Handle, Arrays]] = []

        def go_on() -> None:
            joined.wait()
            tensors = Arrays(10 * ones)
            next_epoch.append((start_sum(made[1], "urgent", 5, tensors), tensors))

        thread = threading.Thread(target=go_on)
        thread.start()
        until(lambda: not coordinator.is_waiting)  # both joins are known
        events[0].set()
        back.wait()
        thread.join(1.0)  # the join must not end now; if it did, "urgent" would meet that of the next epoch
        events[1].set()
        for handle in (front, first, last):
            handle.wait()
        assert urgent.outputs[0].tolist() == [1.0] * 3
        thread.join()
        start_sum(made[0], "urgent", 5, Arrays(10 * ones)).wait()
        handle, tensors = next_epoch[0]
        handle.wait()
        assert tensors.outputs[0].tolist() == [20.0] * 3


def test_submit__large_tensors_beside_small_ones_of_a_group() -> None:
    def reduce(own: Controller) -> None:
        outputs = do(
            own,
            "allreduce",
            "group",
            np.full(400_000, own.rank + 1, np.float32),
            np.full(3, own.rank + 1, np.float64),
            np.full(2, own.rank + 1, np.float32),
            np.zeros(0, np.float32),
            op="average",
            prescale=2.0,
        )
        assert [set(output.tolist()) for output in outputs] == [{3.0}, {3.0}, {3.0}, set()]

    with controllers(2) as made:
        everywhere(made, reduce)


def test_submit__names_longer_than_a_message_begins_with() -> None:
    def reduce(own: Controller) -> None:
        for name in ("n" * 3000, "n" * 900):
            assert do(own, "allreduce", name, np.ones(2), op="sum")[0].tolist() == [2.0, 2.0]

    with controllers(2) as made:
        everywhere(made, reduce)


def test_submit__a_second_of_the_same_name_is_rejected_and_the_first_completes() -> None:
    with controllers(2) as made:
        request = Request("allreduce", "twice", (("float32", (1,)),), op="sum")
        first = made[0].submit(request, Arrays(np.ones(1, np.float32)))
        with pytest.raises(ValueError, match=names("twice", "rank 0")):
            made[0].submit(request, Arrays(np.ones(1, np.float32)))
        assert do(made[1], "allreduce", "twice", np.ones(1, np.float32), op="sum")[0].tolist() == [2.0]
        first.wait()


def test_join__contributes_what_changes_nothing() -> None:
    def run(own: Controller) -> int:
        if own.rank == 0:
            return own.join()
        for op, expected in (("sum", 5), ("min", 2), ("max", 3), ("product", 6)):
            (output,) = do(own, "allreduce", op, np.full(2, own.rank + 1, np.int32), op=op)
            assert output.tolist() == [expected] * 2
        return own.join()

    with controllers(3) as made:
        assert len(set(everywhere(made, run)) - {0}) == 1


def test_process_sets__work_at_the_same_time() -> None:
    def run(own: Controller) -> None:
        sets = [own.add_set(ranks) for ranks in ((0, 1), (1, 2))]
        for set_id in sets:
            ranks = own.ranks(set_id)
            assert ranks is not None
            if own.rank in ranks:
                (output,) = do(own, "allreduce", "x", np.ones(1), op="sum", set_id=set_id)
                assert output.tolist() == [2.0]
            else:
                with pytest.raises(ValueError, match=names(f"rank {own.rank}", f"set {set_id}")):
                    do(own, "allreduce", "x", np.ones(1), op="sum", set_id=set_id)
        own.remove_set(sets[0])
        assert own.ranks(sets[0]) is None

    with controllers(3) as made:
        everywhere(made, run)


def test_close__fails_what_the_others_wait_for() -> None:
    with controllers(2) as made:
        waiting = made[1].submit(
            Request("allreduce", "late", (("float32", (1,)),), op="sum"), Arrays(np.ones(1, np.float32))
        )
        closing = threading.Thread(target=made[0].close)
        closing.start()
        with pytest.raises(EndedError, match=names("rank 1", "rank 0 shut down")):
            waiting.wait()
        closing.join()
        with pytest.raises(EndedError):
            do(made[1], "allreduce", "later", np.ones(1), op="sum")


@pytest.mark.parametrize("failed", [0, 1])
def test_failed_rank__is_named_on_the_others(failed: int) -> None:
    with local_job(3) as contexts:
        made = [Controller(context) for context in contexts]
        handles = [
            own.submit(Request("allreduce", "x", (("float32", (1,)),), op="sum"), Arrays(np.ones(1, np.float32)))
            for own in made
            if own.rank != failed
        ]
        contexts[failed].close()
        for handle in handles:
            with pytest.raises(EndedError, match=names(f"rank {failed}")):
                handle.wait()
        everywhere(made, lambda own: own.close())


def test_stall__rank_0_warns_of_the_rank_that_is_late(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mlt"), controllers(2, Settings(stall_seconds=0.05)) as made:
        early = made[1].submit(Request("barrier", "late"))
        until(lambda: "late" in caplog.text)
        assert_names(caplog.text, "'late'", "[1]", "[0]")
        made[0].submit(Request("barrier", "late")).wait()
        early.wait()


@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize("kind", ["allreduce", "join"])
def test_wait__says_on_every_rank_that_waits_which_did_not_submit(
    kind: Kind, late: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_waits, "QUIET_SECONDS", 1)

    def lines() -> list[str]:
        return [one.getMessage() for one in caplog.records if "still waiting" in one.getMessage()]

    def submit(own: Controller) -> None:
        if kind == "join":
            own.join()
        else:
            do(own, kind, "weights", np.ones(3, np.float32), op="sum")

    with caplog.at_level(logging.WARNING, "mlt"), controllers(3) as made:
        everywhere(made, submit)
        assert lines() == []
        punctual = [own for own in made if own.rank != late]
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(submit, own) for own in punctual]
            until(lambda: len(lines()) == 2)
            submit(made[late])
            for one in waiting:
                one.result()
        for own in punctual:
            (line,) = [one for one in lines() if one.startswith(f"rank {own.rank}:")]
            assert_names(line, "join" if kind == "join" else "'weights'", "after 1 s", f": rank {late} did not submit")


def test_wait__for_a_rank_that_is_gone_names_the_cause(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_waits, "QUIET_SECONDS", 0.2)
    with local_job(2) as contexts, caplog.at_level(logging.WARNING, "mlt"):
        watch = contexts[0].watch_wait("call", [1])
        contexts[1].close()
        until(lambda: not contexts[0].is_peer_up(1))
        until(lambda: watch.left == 0)
        for _ in range(2):
            watch.look("none")
        (line,) = [one.getMessage() for one in caplog.records if "still waiting" in one.getMessage()]
        assert_names(line, "rank 0", "for the call", "rank 1")


def test_alone__needs_no_context() -> None:
    own = Controller(None)
    for kind in ("allreduce", "allgather", "alltoall", "reducescatter"):
        (output,) = do(own, kind, kind, np.arange(4, dtype=np.float32), op="average" if "reduce" in kind else "")
        assert output.tolist() == [0, 1, 2, 3]
    assert own.join() == 0
    own.close()


def test_request_queue__what_comes_while_a_message_is_on_its_way_leaves_together() -> None:
    class OnItsWay:
        def add_done_callback(self, function: Callable[[Any], object]) -> None:
            self.arrive = function

    messages: list[list[Any]] = []
    operation: Any = OnItsWay()

    def post(requests: list[Any]) -> Any:
        messages.append(requests)
        return operation

    queue = RequestQueue(post)
    for number in range(4):
        queue.add(number)
    assert messages == [[0]]
    operation.arrive(operation)
    assert messages == [[0], [1, 2, 3]]
    operation.arrive(operation)
    queue.add(4)
    assert messages == [[0], [1, 2, 3], [4]]
