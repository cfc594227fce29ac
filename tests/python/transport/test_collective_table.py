"""Every collective with every type, reduction, group and failure. What these tests record, with those of
``testbed/test_testbed_collectives.py``, is the table in docs/results/collectives.md (``make collective-table``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from checks import assert_names, names, until
from collective_calls import (
    ALL_VERBS,
    ELEMENTS,
    REDUCING,
    ROOTED,
    SEND_RECV,
    VERBS,
    Call,
    SendRecv,
    all_calls,
    encoded,
    is_defined,
    outcome,
    posted,
)  # fmt: skip
from loading import load
from transport_jobs import local_job

import mlt
from mlt import Reduction

ROOT = Path(__file__).resolve().parents[3]
# Name, and ranks of a job of four; the second part is the stream.
GROUPS: dict[str, tuple[list[int] | None, int]] = {
    "all ranks": (None, 0),
    "two of four": ([0, 2], 0),
    "another order": ([3, 1, 0], 0),
    "one rank": ([1], 0),
    "a second stream": (None, 7),
}
RING_BYTES = 66_000  # of an all-reduce that takes no single round, of any number of ranks (docs/collectives.md)
DAMAGE = "data arrives changed"
FAILURES = ["calls that differ", "one member cancels", "one member never calls", "a member leaves", DAMAGE]
FAILURES_ON_A_TESTBED = ["SIGKILL of a member", "SIGSTOP for 10 s", "partition for 1 s", "partition for good"]
PUSH_PULL_FAILURES = [
    "pushes that differ",
    "one worker never pushes",
    DAMAGE,
    *(f"{signal} of a {rank}{limit}" for rank in ("worker", "service") for signal in ("SIGKILL", "SIGSTOP")
      for limit in ("", ", of which one may die")),
    "SIGSTOP of a worker, max_wait=0.5",
    *(f"a worker and a service cannot reach each other, a {end} may die" for end in ("worker", "service")),
    "SIGKILL of all services",
]  # fmt: skip

Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def job() -> Iterator[list[mlt.Context]]:
    with local_job(4) as contexts:
        yield contexts


def run(job: list[mlt.Context], call: Call, group: str) -> None:
    ranks, stream = GROUPS[group]
    members = ranks if ranks is not None else list(range(len(job)))
    buffers = [call.buffers(index) for index in range(len(members))]
    operations = [
        call.post(job[rank], own, ranks, stream=stream, timeout=60)
        for rank, own in zip(members, buffers, strict=True)
    ]  # fmt: skip
    for index, operation in enumerate(operations):
        assert operation.wait(60).status == "complete"
        call.check(index, buffers[index])


def reductions(verb: str, element: str) -> list[Reduction | None]:
    return [op for op in Reduction if is_defined(op, element)] if verb in REDUCING else [None]


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("verb", [verb for verb in ALL_VERBS if verb != "barrier"])
def test_type__is_carried_by_every_verb_in_every_group(
    job: list[mlt.Context], verb: str, element: str, record_property: Record
) -> None:
    calls = 0
    for group, (ranks, _) in GROUPS.items():
        members = len(job) if ranks is None else len(ranks)
        if verb == SEND_RECV and members == 1:
            continue  # no rank sends to itself
        for part in (0, 7, RING_BYTES // encoded(np.ones(1), element).itemsize + 1):
            for op in reductions(verb, element):
                run(job, Call(verb, members, part, element, op, root=members - 1), group)
                calls += 1
    record_property("cell", ("verbs and element types", verb, element, str(calls)))


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("op", list(Reduction))
def test_reduction__is_computed_or_rejected_by_every_verb_that_reduces(
    job: list[mlt.Context], op: Reduction, element: str, record_property: Record
) -> None:
    for verb in REDUCING:
        call = Call(verb, len(job), 7, element, op)
        if is_defined(op, element):
            run(job, call, "all ranks")
            continue
        with pytest.raises(mlt.InvalidBufferError, match=names("rank 0", element)):
            call.post(job[0], call.buffers(0))
    cell = "yes" if is_defined(op, element) else "rejected"
    record_property("cell", ("reductions and element types", op.name, element, cell))


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("verb", ALL_VERBS)
def test_group__calls_every_verb(job: list[mlt.Context], verb: str, group: str, record_property: Record) -> None:
    ranks, _ = GROUPS[group]
    members = len(job) if ranks is None else len(ranks)
    if verb == SEND_RECV and members == 1:
        with pytest.raises(mlt.UnknownPeerError, match="itself"):
            job[1].post_send(np.ones(1), to=1)
        record_property("cell", ("verbs and groups", verb, group, "rejected"))
        return
    for root in range(members) if verb in ROOTED else [0]:
        run(job, Call(verb, members, op=Reduction.SUM if verb in REDUCING else None, root=root), group)
    roots = ", each rank as root" if verb in ROOTED else ""
    record_property("cell", ("verbs and groups", verb, group, f"yes{roots}"))


# ---- failures, of a job of three of which rank 2 is at fault ---------------------------------------------------------


def check_next_call(contexts: list[mlt.Context], ranks: list[int], first_stream: int) -> None:
    calls = {rank: posted(contexts[rank], ranks, first_stream, timeout=30) for rank in ranks}
    for index, rank in enumerate(ranks):
        for call, buffers, operation in calls[rank].values():
            assert operation.wait(30).status == "complete"
            call.check(index, buffers)


def check_failed(calls: dict[str, tuple[Call, object, mlt.Operation | SendRecv]], error: str, *facts: str) -> None:
    for _, _, operation in calls.values():
        name, text = outcome(operation, 30)
        assert name == error, text
        assert_names(text, *facts)


def record_failure(record_property: Record, column: str, cell: str) -> None:
    for verb in ALL_VERBS:
        record_property("cell", ("verbs and failures", verb, column, cell))


def test_failure__of_calls_that_differ_is_named_at_every_rank_and_the_next_call_works(record_property: Record) -> None:
    ranks = [0, 1, 2]
    with local_job(3) as contexts:
        calls = {rank: posted(contexts[rank], ranks) for rank in (0, 1)}
        others = {}
        for stream, verb in enumerate(all_calls(3)):
            other = Call({"barrier": "all_gather", SEND_RECV: SEND_RECV}.get(verb, "barrier"), 3, 5)
            others[verb] = other.post(contexts[2], other.buffers(2), ranks, stream=stream)
        for verb in VERBS:  # of send and receive: test_send_recv__...
            ends = [outcome(calls[rank][verb][2], 30) for rank in (0, 1)] + [outcome(others[verb], 30)]
            failed = [text for name, text in ends if name == "SizeMismatchError"]
            # A rank that has all it needs from the root may be done before.
            assert len(failed) == 3 or (verb in ROOTED and len(failed) == 2), (verb, ends)
            for text in failed:
                assert_names(text, "rank 2 called ", verb.replace("_", "-") + " number 1")
        ends = [outcome(calls[rank][SEND_RECV][2], 30) for rank in (0, 1)] + [outcome(others[SEND_RECV], 30)]
        assert [name for name, _ in ends] == ["SizeMismatchError"] * 3, ends
        for _, text in ends[:2]:
            assert_names(text, "rank 2", "20 bytes", "80000 bytes")
        check_next_call(contexts, ranks, 0)
    record_failure(record_property, "calls that differ", "SizeMismatchError, then works")


def test_failure__of_a_call_that_one_member_cancels_ends_at_all_and_the_next_call_works(
    record_property: Record,
) -> None:
    ranks = [0, 1, 2]
    with local_job(3) as contexts:
        calls = [posted(contexts[rank], ranks) for rank in (0, 2)]
        for _, _, operation in calls[1].values():
            operation.cancel()
        calls.append(posted(contexts[1], ranks))
        pairs = [each.pop(SEND_RECV)[2] for each in calls]  # of ranks 0, 2 and 1
        for rank, each in zip((0, 2, 1), calls, strict=True):
            for verb, (call, buffers, operation) in each.items():
                name, text = outcome(operation, 30)
                if name == "complete" and verb in ROOTED:
                    # Rank 2 is the root: what it sent before it cancelled may be all that the other needs.
                    call.check(rank, buffers)
                    continue
                assert name == "CancelledError", (verb, text)
                assert_names(text, "rank 2 cancelled")
        # What rank 2 sent before it cancelled has arrived.
        assert outcome(pairs[0], 30)[0] in ("complete", "CancelledError")
        assert [outcome(pair, 30)[0] for pair in pairs[1:]] == ["CancelledError"] * 2
        check_next_call(contexts, ranks, 0)
    record_failure(record_property, "one member cancels", "CancelledError, then works")
    record_property("cell", ("verbs and failures", SEND_RECV, "one member cancels", "CancelledError at both ends"))


def test_failure__of_a_call_that_one_member_never_makes_names_it_and_the_next_call_works(
    record_property: Record,
) -> None:
    ranks = [0, 1, 2]
    with local_job(3) as contexts:
        calls = [posted(contexts[rank], ranks, timeout=1.0) for rank in (0, 1)]
        for each in calls:
            check_failed(each, "OperationTimeoutError", "rank 2")
        late = posted(contexts[2], ranks)
        pair = late.pop(SEND_RECV)[2]
        check_failed(late, "OperationTimeoutError", "timed out")
        error, text = outcome(pair, 30)
        assert error == "CancelledError", text  # by a rank whose time was up
        assert_names(text, "timed out")
        check_next_call(contexts, ranks, 0)
    record_failure(record_property, "one member never calls", "OperationTimeoutError, then works")


def test_failure__of_a_member_that_leaves_is_named_and_the_survivors_form_a_group(record_property: Record) -> None:
    with local_job(3) as contexts:
        calls = [posted(contexts[rank], [0, 1, 2]) for rank in (0, 1)]
        contexts[2].close()
        for each in calls:
            check_failed(each, "PeerFailedError", "rank 2")
        check_next_call(contexts, [0, 1], 0)
    record_failure(record_property, "a member leaves", "PeerFailedError, survivors work")


@pytest.mark.parametrize("verb", ALL_VERBS)
def test_failure__of_data_that_arrives_changed_names_its_sender_and_later_calls_work(
    verb: str, record_property: Record
) -> None:
    if verb == "barrier":
        record_property("cell", ("verbs and failures", verb, DAMAGE, "carries none"))
        return
    root = 0 if verb in ("scatter", "broadcast") else 1  # so that rank 0 sends
    call = Call(verb, 2, 1_000_000, op=Reduction.SUM if verb in REDUCING else None, root=root)
    # Until a receive is posted, hardly anything leaves.
    with local_job(2, checksums=True, early_segments=16, datapath="udp") as contexts:
        buffers = [call.buffers(index) for index in range(2)]
        sent = call.post(contexts[0], buffers[0])
        until(lambda: contexts[0].counters()["data_packets_sent"])
        whole = buffers[0][1] if buffers[0][0] is None else buffers[0][0]
        assert whole is not None
        content = whole.view(np.uint8)
        for end in (content.size // 2, content.size):  # of what leaves first, whichever half that is
            content[end - 1_000] ^= 4
        received = call.post(contexts[1], buffers[1])
        ends = [outcome(operation, 30) for operation in (received, sent)]
        assert ends[0][0] == "CancelledError", ends
        assert_names(ends[0][1], "data of rank 0 arrived changed at rank 1")
        # What completed at the sender before it learned of that fails its next collective, and everybody's.
        if verb != SEND_RECV and ends[1][0] == "complete":
            for operation in [context.post_barrier() for context in contexts]:
                name, text = outcome(operation, 30)
                assert name == "CancelledError", text
                assert_names(text, "data of rank 0 arrived changed at rank 1")
        run(contexts, Call(verb, 2, op=call.op), "all ranks")
    record_property("cell", ("verbs and failures", verb, DAMAGE, "CancelledError, then works"))


# ---- the document ----------------------------------------------------------------------------------------------------


def test_document__has_every_cell() -> None:
    tool = load(ROOT / "tools" / "collective_table.py")
    found = tool.tables_of(tool.DOCUMENT.read_text())
    wanted = {
        "verbs and element types": ([verb for verb in ALL_VERBS if verb != "barrier"], ELEMENTS),
        "reductions and element types": ([op.name for op in Reduction], ELEMENTS),
        "verbs and groups": (ALL_VERBS, list(GROUPS)),
        "verbs and failures": (ALL_VERBS, [*FAILURES, *FAILURES_ON_A_TESTBED]),
        "push-pull and failures": (PUSH_PULL_FAILURES, ["push-pulls in progress"]),
    }
    assert set(found) == set(wanted)
    for title, (rows, columns) in wanted.items():
        cells = {(row, column) for row in rows for column in columns}
        assert set(found[title]) == cells, title
        assert all(found[title].values()), title
