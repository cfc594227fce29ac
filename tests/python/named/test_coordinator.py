"""The coordinator alone: what is ready when, in which batches, and what the cache saves."""

from __future__ import annotations

from dataclasses import replace

from checks import assert_names

from mlt._named.coordinator import UNNAMED, Batch, Coordinator
from mlt._named.requests import Answer, Request


def reduce(name: str, elements: int = 4, **changes: object) -> Request:
    return replace(Request("allreduce", name, (("float32", (elements,)),), op="sum"), **changes)  # type: ignore[arg-type]


def coordinator(size: int = 2, *, fusion_bytes: int = 1000, capacity: int = 100) -> Coordinator:
    return Coordinator(size, fusion_bytes=fusion_bytes, capacity=capacity)


def names(batches: list[Batch]) -> list[list[str]]:
    return [[answer.request.name for answer in batch.answers] for batch in batches]


def submit_all(of: Coordinator, request: Request | int, size: int = 2) -> list[Answer]:
    for rank in range(size):
        of.submit(rank, request)
    return [answer for batch in of.take() for answer in batch.answers]


def test_take__only_what_all_ranks_submitted_in_the_order_in_which_it_became_ready() -> None:
    own = coordinator()
    for name in "abc":
        own.submit(0, reduce(name, op=name))  # different reductions are not fused
    assert own.take() == []
    assert own.is_waiting
    own.submit(1, reduce("c", op="c"))
    own.submit(1, reduce("a", op="a"))
    assert names(own.take()) == [["c"], ["a"]]
    assert own.is_waiting


def test_missing__ranks_that_did_not_submit_and_have_not_joined() -> None:
    own = coordinator(4)
    question = Request("missing", "a", op="allreduce")
    joining = Request("missing", "join", op="join")
    assert own.missing(question) == own.missing(joining) == ()
    own.submit(2, reduce("a"))
    assert own.missing(question) == (0, 1, 3)
    own.submit(0, Request("join", "join"))
    assert own.missing(question) == (1, 3)
    assert own.missing(joining) == (1, 2, 3)
    own.submit(1, reduce("a"))
    own.submit(3, reduce("a"))
    assert own.missing(question) == ()


def test_take__fuses_up_to_the_limit() -> None:
    own = coordinator(fusion_bytes=40)
    for rank in range(2):
        for name in "abcd":
            own.submit(rank, reduce(name))  # 16 bytes each
    assert names(own.take()) == [["a", "b"], ["c", "d"]]


def test_take__fuses_no_others() -> None:
    own = coordinator()
    requests = [
        reduce("a"),
        reduce("b", prescale=2.0),
        reduce("c", bound=0.1),
        reduce("c of layer 1", bound=0.1, layer=1, layers=2),
        reduce("d", op="adasum"),
        reduce("e", op="adasum"),
        Request("allgather", "f", (("float32", (4,)),)),
        Request("allgather", "g", (("float32", (4,)),)),
    ]
    for rank in range(2):
        for request in requests:
            own.submit(rank, request)
    assert names(own.take()) == [[request.name] for request in requests]


def test_take__of_what_is_ready_the_highest_priority_is_first() -> None:
    own = coordinator()
    for rank in range(2):
        for name, priority in (("a", 0), ("b", -1), ("c", 2), ("d", 2)):
            own.submit(rank, reduce(name, op=name, priority=priority))
    assert names(own.take()) == [["c"], ["d"], ["a"], ["b"]]


def test_take_overtaking__reductions_of_all_ranks_that_are_more_urgent() -> None:
    own = coordinator()
    for priority, name in ((-3, "back"), (-1, "front"), (-2, "middle"), (-1, "beside it")):
        for rank in range(2):
            own.submit(rank, reduce(name, priority=priority))
    assert own.take_overtaking(-1) == []
    batches = own.take_overtaking(-3)
    assert names(batches) == [["front", "beside it", "middle"]]
    assert [one.priority for one in batches] == [-1]
    for kind in ("broadcast", "barrier"):
        for rank in range(2):
            own.submit(rank, reduce(kind, kind=kind, priority=5))
    for rank in range(2):
        own.submit(rank, reduce("adasum", op="adasum", priority=5))
        own.submit(rank, reduce("differs", 3 + rank, priority=5))
    assert own.take_overtaking(-3) == []
    for rank in range(2):
        own.submit(rank, reduce("front", priority=-1))
    assert names(own.take(-3)) == [["broadcast"], ["barrier"], ["adasum"], ["differs"], ["back"]]
    assert own.has_ready
    assert names(own.take()) == [["front"]]


def test_take__nothing_crosses_a_join() -> None:
    own = coordinator()

    def ready(name: str, priority: int) -> None:
        for rank in range(2):
            own.submit(rank, reduce(name, op=name, priority=priority))

    def ready_with_a_join() -> None:
        own.submit(1, Request("join", "join"))
        for name, priority in (("a", -9), ("w", 5)):
            own.submit(0, reduce(name, op=name, priority=priority))
        own.submit(0, Request("join", "join"))
        ready("later", 7)

    ready_with_a_join()
    assert names(own.take_overtaking(-3)) == [["w"]]
    assert names(own.take(-3, fences=False)) == [["a"]]
    assert own.take_overtaking(-3) == []
    assert own.take(-3, fences=False) == []
    assert names(own.take(-3)) == [["join"]]
    assert names(own.take_overtaking(-3)) == [["later"]]
    ready_with_a_join()
    assert names(own.take(-3)) == [["w"], ["a"], ["join"]]
    assert names(own.take()) == [["later"]]


def test_cache__answers_with_the_number_once_all_ranks_send_it() -> None:
    own = coordinator()
    (first,) = submit_all(own, reduce("a"))
    assert first.cache_id == 0
    own.submit(0, 0)
    own.submit(1, 0)
    (batch,) = own.take()
    assert batch.to_json() == [0]
    # One rank does not send the number: it sees the full answer again, under the same number.
    own.submit(0, 0)
    own.submit(1, reduce("a"))
    (batch,) = own.take()
    assert batch.to_json() == [first.to_json()]


def test_cache__a_request_that_changed_takes_the_place_of_the_old_one() -> None:
    own = coordinator()
    submit_all(own, reduce("a"))
    (changed,) = submit_all(own, reduce("a", 8))
    assert (changed.cache_id, changed.request.tensors) == (0, (("float32", (8,)),))
    assert submit_all(own, 0) == [changed]


def test_cache__a_change_on_one_rank_is_an_error_and_the_old_answer_stays() -> None:
    own = coordinator()
    (first,) = submit_all(own, reduce("a"))
    own.submit(0, 0)
    own.submit(1, reduce("a", 5))
    ((answer,),) = [batch.answers for batch in own.take()]
    assert_names(answer.error, "'a'", "4 on rank 0", "5 on rank 1")
    assert submit_all(own, 0) == [first]


def test_cache__has_a_limit_and_no_names_that_never_come_again() -> None:
    own = coordinator(capacity=1)
    assert [submit_all(own, reduce(name))[0].cache_id for name in ("a", "b")] == [0, -1]
    assert submit_all(coordinator(), reduce(f"x{UNNAMED}0"))[0].cache_id == -1


def test_join__completes_what_the_others_wait_for() -> None:
    own = coordinator(3)
    own.submit(0, reduce("a"))
    own.submit(1, reduce("a"))
    own.submit(2, Request("join", "join"))
    assert names(own.take()) == [["a"]]
    own.submit(0, Request("join", "join"))
    assert own.take() == []
    own.submit(1, Request("join", "join"))
    ((answer,),) = [batch.answers for batch in own.take()]
    assert (answer.request.kind, answer.number) == ("join", 1)
    # No rank is joined any more.
    own.submit(0, reduce("a"))
    assert own.take() == []


def test_join__answers_of_the_cache_are_checked_again() -> None:
    own = coordinator()
    gather = Request("allgather", "g", (("float32", (4,)),))
    submit_all(own, gather)
    own.submit(0, 0)
    own.submit(1, Request("join", "join"))
    ((answer,),) = [batch.answers for batch in own.take()]
    assert_names(answer.error, "join", "rank 1")


def test_process_sets__have_names_of_their_own() -> None:
    own = coordinator(3)
    (added,) = submit_all(own, Request("add_set", "set", ranks=(2, 1)), 3)
    assert added.number == 1
    for rank in (1, 2):
        own.submit(rank, reduce("a", set_id=1))
    own.submit(0, reduce("a"))
    (batch,) = own.take()
    assert batch.ranks == (1, 2)
    (again,) = submit_all(own, Request("add_set", "set", ranks=(1, 2)), 3)
    assert_names(again.error, "[1, 2]", "exists")
    (outside,) = submit_all(own, Request("add_set", "set", ranks=(1, 3)), 3)
    assert_names(outside.error, "[1, 3]")


def test_process_sets__a_removed_one_fails_what_waits_and_what_comes() -> None:
    own = coordinator(2)
    submit_all(own, Request("add_set", "set", ranks=(1,)))
    submit_all(own, Request("add_set", "set", ranks=(0,)))
    own.submit(0, Request("remove_set", "gone", root=1))
    own.submit(1, Request("remove_set", "gone", root=1))
    own.submit(1, reduce("late", set_id=1))
    errors = [answer.error for batch in own.take() for answer in batch.answers]
    assert errors[0] == ""
    assert_names(errors[1], "late", "process set 1", "removed")
    (unknown,) = submit_all(own, Request("remove_set", "gone", root=7))
    assert_names(unknown.error, "process set 7")


def waits(*names: str, others: tuple[str, ...] = (), submitted: int = 1) -> Request:
    return Request("waits", "", waits=tuple((0, name) for name in names), others=others, submitted=submitted)


def ends(own: Coordinator) -> tuple[str, list[str]]:
    """The warning of ``end_standstill``, and the errors of what is answered then."""
    warning = own.end_standstill()
    return warning, [answer.error for batch in own.take() for answer in batch.answers]


def test_end_standstill__fails_everything_once_no_rank_can_submit_more() -> None:
    own = Coordinator(3, fusion_bytes=1, capacity=1)
    for rank, name in enumerate(("gradients", "gradients", "in the background")):
        own.submit(rank, reduce(name))
    own.note_wait(0, waits("gradients"))
    own.note_wait(1, waits("gradients"))
    assert ends(own) == ("", [])  # rank 2 may come
    own.note_wait(2, waits("in the background"))
    own.submit(2, reduce("metrics"))
    assert ends(own) == ("", [])  # it did
    own.note_wait(2, waits("metrics", submitted=2))
    warning, (first, *others) = ends(own)
    assert warning == ""
    assert len(others) == 2
    assert_names(first, "rank 0 in 'gradients'", "rank 1 in 'gradients'", "rank 2 in 'metrics'", "same")
    assert not own.is_waiting
    for rank in range(3):
        own.submit(rank, reduce("next"))
    assert ends(own) == ("", [""])


def test_end_standstill__a_rank_that_has_its_answer_does_not_wait() -> None:
    own = Coordinator(2, fusion_bytes=1, capacity=1)
    for rank in range(2):
        own.submit(rank, reduce("a"))
    own.submit(1, reduce("b"))
    own.note_wait(0, waits("a"))  # left before the answer came
    own.note_wait(1, waits("b", submitted=2))
    assert ends(own) == ("", [""])
    own.submit(1, reduce("a"))
    own.note_wait(1, waits("a", "b", submitted=3))
    assert ends(own) == ("", [])


def test_end_standstill__a_report_that_crossed_a_submission_is_void() -> None:
    own = Coordinator(2, fusion_bytes=1, capacity=1)
    own.submit(1, reduce("b"))
    own.note_wait(1, waits("b"))
    own.submit(0, reduce("a"))
    for submitted in (0, 2):  # before this submission; and one is still on its way
        own.note_wait(0, waits("a", submitted=submitted))
        assert ends(own) == ("", [])
    own.note_wait(0, waits("a"))
    assert len(ends(own)[1]) == 2


def test_end_standstill__only_warns_once_while_another_thread_may_submit_more() -> None:
    own = Coordinator(2, fusion_bytes=1, capacity=1)
    own.submit(0, reduce("a"))
    own.submit(1, reduce("b"))
    own.note_wait(0, waits("a"))
    own.note_wait(1, waits("b", others=("loader", "writer")))
    warning, errors = ends(own)
    assert errors == []
    assert_names(warning, "rank 0 in 'a'", "rank 1 in 'b'", "rank 1: loader, writer")
    assert ends(own) == ("", [])
    own.submit(1, reduce("a"))
    assert ends(own) == ("", [""])
    own.submit(0, reduce("c"))
    own.note_wait(0, waits("c", submitted=2))
    own.note_wait(1, waits("b", submitted=2))  # its other threads have ended
    assert len(ends(own)[1]) == 2


def test_end_standstill__ranks_that_joined_wait_too() -> None:
    own = Coordinator(3, fusion_bytes=1, capacity=1)
    own.note_wait(0, waits("join", submitted=0))
    own.submit(1, reduce("a"))
    own.submit(2, reduce("b"))
    own.note_wait(1, waits("a"))
    own.note_wait(2, waits("b"))
    assert ends(own) == ("", [])  # rank 0 did not join
    own.submit(0, Request("join", "join"))
    own.note_wait(0, waits("join"))
    _, errors = ends(own)
    assert len(errors) == 2
    assert_names(errors[0], "rank 0 in join()", "rank 1 in 'a'", "rank 2 in 'b'")


def test_fail_overdue__names_where_the_late_ranks_are() -> None:
    now = [0.0]
    own = Coordinator(3, fusion_bytes=1, capacity=1, now=lambda: now[0])
    own.submit(0, reduce("a"))
    own.submit(1, reduce("b"))
    own.note_wait(1, waits("b"))
    now[0] = 30.0
    own.fail_overdue(30.0)
    errors = [answer.error for batch in own.take() for answer in batch.answers]
    assert_names(errors[0], "'a'", "ranks [0] have waited 30 s for ranks [1, 2]", "rank 1 in 'b'")


def test_overdue__names_the_tensor_and_the_ranks_once() -> None:
    now = [0.0]
    own = Coordinator(3, fusion_bytes=1, capacity=1, now=lambda: now[0])
    own.submit(0, reduce("slow"))
    own.submit(2, reduce("slow"))
    now[0] = 59.0
    assert own.overdue(60.0) == []
    now[0] = 61.0
    (text,) = own.overdue(60.0)
    assert_names(text, "'slow'", "[0, 2]", "[1]", "61 s")
    assert own.overdue(60.0) == []
    own.fail_overdue(60.0)
    ((answer,),) = [batch.answers for batch in own.take()]
    assert_names(answer.error, "'slow'", "[1]")
    assert not own.is_waiting
