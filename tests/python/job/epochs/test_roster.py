"""The roster: who is in the next epoch, when it begins, and who is named if it does not. Time is given."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mlt.job.epochs.messages import Announced, Hello
from mlt.job.epochs.roster import FORM_SECONDS, RefusedError, Roster
from mlt.job.epochs.settings import Bounds, Kind

WAIT = 30.0
JOB = "lecture"


def place(host: str = "10.0.0.1", paths: int = 1, checksums: bool = False) -> Announced:
    return Announced(host, 4_000, (31, 3), paths, False, checksums)


class World:
    """A roster and what its members have received."""

    def __init__(self, **bounds: Any) -> None:
        self.now = 0.0
        self.roster = Roster(Bounds(**{"settle_seconds": 0.0, "wait_seconds": WAIT, **bounds}))
        self.received: dict[str, list[dict[str, Any]]] = {}

    def turn(self, seconds: float = 0.0) -> float | None:
        self.now += seconds
        while True:
            until = self.roster.turn(self.now)
            messages = self.roster.take()
            if not messages:
                return until
            for member, message in messages:
                self.received.setdefault(member, []).append(message)

    def join(
        self, member: str, kind: Kind = "worker", *, age: int | None = None, epoch: int = 0, asks: bool = True
    ) -> None:
        self.roster.join(self.now, Hello(member, kind, JOB, f"named {member}", age, epoch), JOB)
        if asks:
            self.ready(member)

    def ready(self, *members: str) -> None:
        for one in members:
            self.roster.ready(self.now, one)
            self.turn()

    def here(self, *members: str, **settings: Any) -> None:
        for one in members:
            self.roster.here(one, self.roster.number, place(**settings))
        self.turn()

    def begin(self, *workers: str, services: tuple[str, ...] = ()) -> None:
        for one in workers:
            self.join(one)
        for one in services:
            self.join(one, "service")
        self.turn()
        self.here(*workers, *services)
        assert self.runs == (*workers, *services)

    @property
    def runs(self) -> tuple[str, ...] | None:
        """Members of the running epoch; None while none is running."""
        epoch = self.roster.epoch
        return None if epoch is None or epoch.is_forming else epoch.members

    @property
    def forming(self) -> tuple[str, ...] | None:
        epoch = self.roster.epoch
        return epoch.members if epoch is not None and epoch.is_forming else None

    def last(self, member: str, kind: str) -> dict[str, Any]:
        return [one for one in self.received.get(member, []) if kind in one][-1]

    def has(self, member: str, kind: str) -> int:
        return sum(kind in one for one in self.received.get(member, []))


def test_first_epoch__begins_once_the_first_members_are_there_and_listen() -> None:
    world = World(first_workers=2, first_services=1)
    world.join("a")
    world.join("s", "service")
    assert world.forming is None
    world.join("b")
    assert world.forming == ("a", "b", "s")
    assert [world.last(one, "epoch")["rank"] for one in "abs"] == [0, 1, 2]
    world.here("a", "b")
    assert world.runs is None
    world.here("s")
    assert world.runs == ("a", "b", "s")
    assert world.last("b", "table") == {"table": 1, "ranks": [[rank, "10.0.0.1", 4_000] for rank in range(3)]}


def test_first_epoch__begins_without_those_that_do_not_come_in_time() -> None:
    world = World(first_workers=3, min_workers=2)
    world.join("a")
    world.join("b")
    assert world.turn() == WAIT
    world.turn(WAIT)
    assert world.forming == ("a", "b")


def test_first_epoch__does_not_wait_for_processes_that_failed_before_they_joined() -> None:
    world = World(first_workers=3, min_workers=2)
    world.join("a")
    world.join("b")
    world.roster.expect(2, 0)
    world.turn()
    assert world.forming == ("a", "b")


def test_first_epoch__waits_for_the_members_of_an_earlier_coordinator() -> None:
    world = World(settle_seconds=2.0)
    world.join("a")
    assert world.turn() == 2.0
    world.turn(1.0)
    world.join("b")
    world.turn(1.5)
    assert world.forming is None
    world.turn(0.5)
    assert world.forming == ("a", "b")


def test_join__makes_a_change_due_and_the_oldest_keep_their_order() -> None:
    world = World()
    world.begin("a")
    world.join("b", asks=False)
    assert not world.has("a", "due")  # it may take long until it asks
    world.ready("b")
    assert world.last("a", "due") == {"due": 1, "why": "the worker named b joins", "lost": False}
    assert world.runs == ("a",)
    world.turn(10 * WAIT)
    assert world.runs == ("a",)  # a step may be long; nobody waits for it but b
    world.ready("a")
    assert world.forming == ("a", "b")


def test_joins__two_at_once_take_one_change() -> None:
    world = World()
    world.begin("a")
    world.join("b")
    world.join("c")
    world.ready("a")
    world.here("a", "b", "c")
    assert world.runs == ("a", "b", "c")
    assert world.roster.number == 2


def test_join__while_an_epoch_forms_comes_into_the_next() -> None:
    world = World()
    world.begin("a")
    world.join("b")
    world.ready("a")
    world.here("a")
    world.join("c")
    assert world.forming == ("a", "b")
    world.here("b")
    assert world.runs == ("a", "b")
    assert [world.last(one, "due")["due"] for one in "ab"] == [2, 2]
    world.ready("a", "b")
    assert world.forming == ("a", "b", "c")


@pytest.mark.parametrize("by_intent", [True, False])
def test_departure__leaves_the_others_in_order(by_intent: bool) -> None:
    world = World(first_workers=3)
    world.begin("a", "b", "c")
    if by_intent:
        world.roster.left("a")
    else:
        world.roster.lost("a", "it closed the connection")
    world.turn()
    due = world.last("b", "due")
    assert due["lost"]
    assert due["why"].startswith("the worker named a, rank 0 of epoch 1, " + ("left" if by_intent else "is lost"))
    world.ready("b")
    assert world.forming is None
    world.ready("c")
    assert world.forming == ("b", "c")


def test_death__while_an_epoch_forms_lets_all_ask_again() -> None:
    world = World(first_workers=3)
    for one in "abc":
        world.join(one)
    world.here("a")
    world.roster.lost("b", "it closed the connection")
    world.turn()
    assert [world.has(one, "again") for one in "ac"] == [1, 1]
    world.ready("a")
    assert world.forming is None  # c will ask as well
    world.ready("c")
    assert world.forming == ("a", "c")
    assert world.roster.number == 2


def test_member__that_does_not_listen_or_ask_in_time_is_named_and_left_out() -> None:
    world = World(first_workers=3)
    for one in "abc":
        world.join(one)
    world.here("a", "b")
    assert world.turn() == FORM_SECONDS
    world.turn(FORM_SECONDS)
    assert "did not say where it listens within 20 s" in world.last("c", "refused")["refused"]
    world.ready("a")
    world.turn(FORM_SECONDS)
    assert "did not ask for the next epoch" in world.last("b", "refused")["refused"]
    assert world.forming == ("a",)


def test_member__that_does_not_come_to_the_end_of_an_epoch_counts_as_dead_after_the_wait() -> None:
    world = World(first_workers=3)
    world.begin("a", "b", "c")
    world.roster.lost("c", "it closed the connection")
    world.turn(100.0)  # b and a are told, and no wait has begun
    world.ready("b")
    assert world.turn(WAIT - 1) == world.now + 1
    assert world.forming is None
    world.turn(1.0)
    assert "did not come to the end of epoch 1 within 30 s" in world.last("a", "refused")["refused"]
    assert world.forming == ("b",)


def test_worker__that_hangs_does_not_take_a_service_that_lives_with_it() -> None:
    world = World(first_workers=2, first_services=1, min_services=1)
    world.begin("a", "b", services=("s",))
    world.join("c")
    world.ready("a")
    assert not world.has("s", "over")  # it serves b
    world.turn(WAIT)
    assert "did not come to the end of epoch 1" in world.last("b", "refused")["refused"]
    assert not world.has("s", "refused")
    assert world.last("s", "over") == {"over": 1}
    assert world.forming is None
    world.ready("s")
    assert world.forming == ("a", "c", "s")


def test_service__that_hangs_is_left_out_after_the_wait_for_it() -> None:
    world = World(first_services=1)
    world.begin("a", services=("s",))
    world.join("b")
    world.turn(WAIT / 2)
    world.ready("a")
    assert world.has("s", "over")
    assert world.turn() == world.now + WAIT
    world.turn(WAIT)
    assert "after its last worker did" in world.last("s", "refused")["refused"]
    assert world.forming == ("a", "b")


def test_service__that_connects_again_learns_that_no_worker_is_left() -> None:
    world = World(first_services=1)
    world.begin("a", services=("s",))
    world.join("b")
    world.ready("a")
    world.received.clear()
    world.join("s", "service", age=1, asks=False)
    world.roster.was(world.now, "s", 1, ("a",), ("s",))
    world.turn()
    assert world.last("s", "over") == {"over": 1}


def test_too_few__wait_for_others_then_all_learn_what_is_missing() -> None:
    world = World(min_workers=2)
    world.join("a")
    world.join("b")
    world.here("a", "b")
    world.roster.lost("b", "it closed the connection")
    world.ready("a")
    world.turn(WAIT - 1)
    assert not world.has("a", "refused")
    world.turn(1.0)
    text = world.last("a", "refused")["refused"]
    assert "the job has 1 worker, needs 2 workers (--min-workers), and no others joined within 30 s" in text
    assert world.roster.members == {}


def test_too_few__continue_with_one_that_joins_in_time() -> None:
    world = World(min_workers=2)
    world.join("a")
    world.join("b")
    world.here("a", "b")
    world.roster.lost("a", "it closed the connection")
    world.ready("b")
    world.turn(WAIT - 1)
    world.join("c")
    assert world.forming == ("b", "c")


def test_too_few_services__are_named() -> None:
    world = World(min_services=1)
    world.join("a")
    world.turn(WAIT)
    text = world.last("a", "refused")["refused"]
    assert (
        "the job has 1 worker and 0 services, needs 1 service (--min-services of mlt elastic, --services of mlt launch)"
        in text
    )


def test_too_many__are_rejected_and_one_may_join_after_a_departure() -> None:
    world = World(max_workers=1)
    world.begin("a")
    with pytest.raises(RefusedError, match=r"has 1 worker already, 1 at most.*--max-workers"):
        world.join("b")
    world.roster.left("a")
    world.join("b")
    assert world.forming == ("b",)


def test_other_job__is_rejected() -> None:
    with pytest.raises(RefusedError, match="belongs to job 'lecture', this is job 'other'"):
        Roster(Bounds()).join(0.0, Hello("a", "worker", JOB, "x", None), "other")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host": "127.0.0.1"}, "cannot reach a loopback address"),
        ({"paths": 2}, "number of paths would be 2, rank 0 has 1"),
        ({"checksums": True}, "checksums would be True, rank 0 has False"),
    ],
)
def test_settings__that_differ_from_rank_0_are_named_and_the_others_begin_without(
    settings: dict[str, Any], words: str
) -> None:
    world = World(first_workers=2)
    world.join("a")
    world.join("b")
    world.here("a")
    world.here("b", **settings)
    refused = world.last("b", "refused")
    assert words in refused["refused"]
    assert refused["code"] == "peer_mismatch"
    world.ready("a")
    assert world.forming == ("a",)


def test_services__end_when_the_last_worker_has_left() -> None:
    world = World(first_services=1)
    world.begin("a", services=("s",))
    world.roster.left("a")
    world.turn()
    assert not world.has("s", "end")
    world.ready("s")
    assert world.last("s", "end") == {"end": "every worker has left"}


@pytest.mark.parametrize("ends_when_empty", [True, False])
def test_services__wait_for_new_workers_if_the_last_one_died(ends_when_empty: bool) -> None:
    world = World(first_services=1, ends_when_empty=ends_when_empty)
    world.begin("a", services=("s",))
    world.roster.lost("a", "it closed the connection")
    world.ready("s")
    assert world.has("s", "end") == ends_when_empty
    if not ends_when_empty:
        world.join("b")
        assert world.forming == ("b", "s")


def test_service__that_joins_or_dies_makes_a_change_due() -> None:
    world = World()
    world.begin("a")
    world.join("s", "service")
    world.ready("a")
    world.here("a", "s")
    assert world.runs == ("a", "s")
    world.roster.lost("s", "it closed the connection")
    world.ready("a")
    assert world.forming == ("a",)


def test_restarted__takes_the_members_back_and_only_a_change_ends_the_epoch() -> None:
    world = World()
    members = ("a", "b")
    for age, one in enumerate(members):
        world.join(one, age=age, asks=False)
        world.roster.was(world.now, one, 7, members, ())
    world.turn()
    assert world.runs == members
    assert not world.has("a", "due")
    world.join("c")
    assert world.last("a", "due")["due"] == 7
    world.ready("b", "a")
    assert world.forming == ("a", "b", "c")
    assert world.roster.number == 8


def test_restarted__waits_for_members_that_did_not_connect_yet_then_counts_them_as_dead() -> None:
    world = World()
    world.join("b", age=1, asks=False)
    world.roster.was(world.now, "b", 7, ("a", "b"), ())
    world.join("c")
    world.ready("b")
    world.turn(WAIT - 1)
    assert world.forming is None  # a may be alive, in the middle of a step
    world.turn(1.0)
    assert world.forming == ("b", "c")


def test_restarted__a_newcomer_that_is_first_joins_the_running_epoch_of_the_others() -> None:
    world = World(settle_seconds=2.0)
    world.join("c")
    world.turn(1.0)
    for age, one in enumerate("ab"):
        world.join(one, age=age, asks=False)
        world.roster.was(world.now, one, 7, ("a", "b"), ())
    world.turn(5.0)
    assert world.runs == ("a", "b")
    assert world.last("a", "due")["due"] == 7
    world.ready("a", "b")
    assert world.forming == ("a", "b", "c")
    assert world.last("c", "age")["age"] == 2  # what it says to the next coordinator


def test_restarted__keeps_the_order_whoever_connects_first() -> None:
    world = World()
    world.join("a", age=5, asks=False)
    world.roster.was(world.now, "a", 7, ("a", "b"), ())
    world.join("b", age=9, asks=False)
    world.roster.was(world.now, "b", 7, ("a", "b"), ())
    world.join("c")
    world.ready("b", "a")
    assert world.forming == ("a", "b", "c")


def test_restarted__in_the_middle_of_a_change_takes_those_that_have_left_the_epoch_already() -> None:
    world = World(settle_seconds=2.0)
    world.join("a", age=0)  # it has left epoch 7
    world.join("b", age=1, asks=False)
    world.roster.was(world.now, "b", 7, ("a", "b"), ())
    world.turn()
    assert world.last("b", "due") == {"due": 7, "why": "the worker named a has left the epoch", "lost": True}
    world.ready("b")
    assert world.forming == ("a", "b")


def test_restarted__between_two_epochs_keeps_the_oldest_first_and_the_count_of_epochs() -> None:
    world = World(settle_seconds=2.0)
    world.join("a_newcomer")
    for age, one in ((1, "y"), (0, "z")):
        world.join(one, age=age, epoch=7)
    world.turn(2.0)
    assert world.forming == ("z", "y", "a_newcomer")
    assert world.roster.number == 8
    assert world.last("a_newcomer", "age")["age"] == 2
    world.here("a_newcomer", "y", "z")
    world.join("b")
    assert world.last("b", "welcome")["welcome"] == 3
    world.ready("y", "a_newcomer", "z")
    assert world.forming == ("z", "y", "a_newcomer", "b")


def test_restarted__a_member_of_the_last_epoch_that_is_late_does_not_replace_the_next_one() -> None:
    world = World()
    world.join("b", age=1, epoch=7)
    world.here("b")
    assert world.runs == ("b",)
    world.join("a", age=0, epoch=7, asks=False)
    world.roster.was(world.now, "a", 7, ("a", "b"), ())
    world.turn()
    assert world.last("a", "due")["lost"]
    assert world.runs == ("b",)
    assert world.roster.number == 8


def test_restarted__an_epoch_that_members_have_left_behind_is_not_taken_over() -> None:
    world = World(settle_seconds=2.0)
    world.join("b", age=1, epoch=8)
    world.join("a", age=0, epoch=7, asks=False)
    world.roster.was(world.now, "a", 7, ("a", "b"), ())
    world.turn()
    assert world.last("a", "due")["lost"]
    world.turn(2.0)
    assert world.forming == ("b",)
    assert world.roster.number == 9


def test_restarted__an_epoch_of_newcomers_that_runs_is_not_replaced_by_an_earlier_one() -> None:
    world = World()
    world.begin("c")
    world.join("a", age=0, epoch=7, asks=False)
    world.roster.was(world.now, "a", 7, ("a", "b"), ())
    world.turn()
    assert world.runs == ("c",)
    world.ready("a", "c")
    assert world.forming is not None
    assert set(world.forming) == {"a", "c"}
    assert world.roster.number == 8


def test_member__of_an_epoch_that_is_over_learns_it() -> None:
    world = World()
    world.begin("b")
    world.join("a", age=0, asks=False)
    world.roster.was(world.now, "a", 1, ("a", "z"), ())
    world.turn()
    assert world.last("a", "due") == {"due": 1, "why": "the others have begun another epoch", "lost": True}


def test_connection__that_breaks_and_comes_back_keeps_the_member_and_its_age() -> None:
    world = World(first_workers=2)
    world.begin("a", "b")
    world.roster.lost("a", "the connection broke")
    world.join("a", age=0, asks=False)
    world.roster.was(world.now, "a", 1, ("a", "b"), ())
    world.turn()
    assert world.last("a", "due")["lost"]
    world.ready("b", "a")
    assert world.forming == ("a", "b")


@pytest.mark.parametrize("seed", range(200))
def test_drawn__members_come_and_go_at_any_time_and_those_that_live_end_in_one_epoch(seed: int) -> None:
    """Members that follow the protocol, in any order: an epoch has members of the roster only, each once; stayers keep
    their order; and once nothing changes any more, all that live are in one running epoch."""
    draw = random.Random(seed)
    world = World(min_workers=1, wait_seconds=5.0)
    alive: dict[str, Kind] = {}
    obeyed: dict[str, int] = {}
    phases: dict[str, tuple[str, int]] = {}
    order: tuple[str, ...] = ()
    names = iter(f"m{number}" for number in range(1_000))

    def follow(member: str) -> bool:
        """Let a member react to its next message; whether there was one."""
        messages = world.received.get(member, [])
        position = obeyed.get(member, 0)
        if position >= len(messages):
            return False
        obeyed[member] = position + 1
        message = messages[position]
        phase, number = phases.get(member, ("asking", 0))
        if "epoch" in message:
            phases[member] = "forming", message["epoch"]
            world.roster.here(member, message["epoch"], place())
        elif message.get("table") == number and phase == "forming":
            phases[member] = "running", number
        elif (phase, number) in (("forming", message.get("again")), ("running", message.get("due"))):
            phases[member] = "asking", number
            world.roster.ready(world.now, member)
        elif "refused" in message or "end" in message:
            alive.pop(member, None)
        return True

    def check() -> None:
        nonlocal order
        world.turn()
        epoch = world.roster.epoch
        if epoch is None:
            return
        assert len(set(epoch.members)) == len(epoch.members)
        assert all(world.roster.members[one].kind == "worker" for one in epoch.workers if one in world.roster.members)
        stayed = [one for one in order if one in epoch.workers]
        assert [one for one in epoch.workers if one in order] == stayed
        order = epoch.workers

    for step in range(120):
        choice = draw.random()
        if choice < 0.08 and step < 90:
            name = next(names)
            alive[name] = draw.choice(("worker", "worker", "service"))
            world.join(name, alive[name])
        elif choice < 0.14 and len(alive) > 1 and step < 90:
            name = draw.choice(sorted(alive))
            alive.pop(name)
            draw.choice((world.roster.left, lambda one: world.roster.lost(one, "it closed the connection")))(name)
        elif choice < 0.2:
            world.turn(draw.random())
        elif alive:
            follow(draw.choice(sorted(alive)))
        check()
    for _ in range(40):
        while sum(follow(one) for one in sorted(alive)):
            check()
        check()
        world.turn(1.0)
        for one in sorted(alive):
            if world.roster.members.get(one) is None:
                alive.pop(one)
    if "worker" in alive.values():
        assert world.runs is not None
        assert set(world.runs) == set(alive)
