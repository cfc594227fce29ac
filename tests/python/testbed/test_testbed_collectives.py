"""Faults of members and network while every collective is in progress: a killed member, a stopped one, a partition that
heals and one that does not. The outcomes are recorded for docs/results/collectives.md."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from checks import assert_names, strike
from collective_calls import ALL_VERBS
from testbed_lab import needs_testbed

from mlt.testbed import Testbed

pytestmark = needs_testbed
pytest.importorskip("mlt._core")

MEMBER = Path(__file__).resolve().parents[1] / "collective_calls.py"
ALL, SURVIVORS, VICTIM = [0, 1, 2], [0, 1], 2
LINK = f"host{VICTIM}"
# Of 3 s of silence, with time for a busy machine.
FAILED_WITHIN_SECONDS = 20.0

Member = subprocess.Popen[str]


def hear(member: Member) -> Any:
    assert member.stdout is not None
    line = member.stdout.readline()
    assert line, member.communicate()[1]
    return json.loads(line)


def say(member: Member, request: object) -> None:
    assert member.stdin is not None
    print(json.dumps(request), file=member.stdin, flush=True)


@contextmanager
def members(bed: Testbed, **variables: str) -> Iterator[list[Member]]:
    """The members of a job, which have called every collective once."""
    started = [
        bed.popen(
            f"host{rank}", [sys.executable, str(MEMBER), str(rank), str(len(ALL))], env=variables,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in ALL
    ]  # fmt: skip
    try:
        assert [hear(one) for one in started] == ["up"] * len(ALL)
        call(started, ALL)
        check_complete(started, ALL)
        yield started
    finally:
        for one in started:
            one.kill()
            one.communicate()


def call(started: list[Member], callers: list[int], group: list[int] | None = None) -> None:
    """Returns once these have posted every collective of the group."""
    for rank in callers:
        say(started[rank], group or callers)
    assert [hear(started[rank]) for rank in callers] == ["posted"] * len(callers)


def check_complete(started: list[Member], ranks: list[int]) -> None:
    for rank in ranks:
        assert hear(started[rank]) == {verb: ["complete", ""] for verb in ALL_VERBS}


def check_named(started: list[Member], struck: float) -> None:
    for rank in SURVIVORS:
        for verb, (error, text) in hear(started[rank]).items():
            assert error == "PeerFailedError", (verb, text)
            assert_names(text, f"rank {rank}: ", f"rank {VICTIM}")
    assert time.monotonic() - struck < FAILED_WITHIN_SECONDS


@pytest.fixture
def bed() -> Iterator[Testbed]:
    with Testbed(hosts=len(ALL), rate="200mbit") as made:
        yield made


@pytest.fixture
def record(record_property: Callable[[str, object], None]) -> Callable[[str, str], None]:
    def each(column: str, cell: str) -> None:
        for verb in ALL_VERBS:
            record_property("cell", ("verbs and failures", verb, column, cell))

    return each


def test_killed_member__is_named_and_the_survivors_form_a_group(
    bed: Testbed, record: Callable[[str, str], None]
) -> None:
    with members(bed) as started:
        call(started, SURVIVORS, ALL)
        started[VICTIM].send_signal(signal.SIGKILL)
        check_named(started, time.monotonic())
        call(started, SURVIVORS)
        check_complete(started, SURVIVORS)
    record("SIGKILL of a member", "PeerFailedError, survivors work")


def test_member_stopped_for_10_s__delays_every_collective_and_fails_none(
    bed: Testbed, record: Callable[[str, str], None]
) -> None:
    with members(bed) as started:
        call(started, SURVIVORS, ALL)
        strike(started[VICTIM].pid)
        time.sleep(10.0)  # that is the subject
        started[VICTIM].send_signal(signal.SIGCONT)
        call(started, [VICTIM], ALL)
        check_complete(started, ALL)
        call(started, ALL)
        check_complete(started, ALL)
    record("SIGSTOP for 10 s", "completes")


def test_partition__that_heals_within_a_second_fails_none(bed: Testbed, record: Callable[[str, str], None]) -> None:
    # By default a peer has failed after 3 s, and a busy machine may take that to break and heal a link.
    with members(bed, MLT_PEER_TIMEOUT="10s") as started:
        bed.break_link(LINK)
        call(started, ALL)
        time.sleep(1.0)  # that is the subject
        bed.heal_link(LINK)
        check_complete(started, ALL)
        call(started, ALL)
        check_complete(started, ALL)
    record("partition for 1 s", "completes")


def test_partition__that_stays_names_the_rank_and_the_others_form_a_group(
    bed: Testbed, record: Callable[[str, str], None]
) -> None:
    with members(bed) as started:
        bed.break_link(LINK)
        struck = time.monotonic()
        call(started, ALL)
        check_named(started, struck)
        call(started, SURVIVORS)
        check_complete(started, SURVIVORS)
    record("partition for good", "PeerFailedError, others work")


def test_member_that_leaves__is_named_and_the_survivors_form_a_group(
    bed: Testbed, record: Callable[[str, str], None]
) -> None:
    with members(bed) as started:
        call(started, SURVIVORS, ALL)
        say(started[VICTIM], "leave")
        struck = time.monotonic()
        check_named(started, struck)
        call(started, SURVIVORS)
        check_complete(started, SURVIVORS)
    record("a member leaves", "PeerFailedError, survivors work")
