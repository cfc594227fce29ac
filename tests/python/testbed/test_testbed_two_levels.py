"""Broadcast, reduce, all-gather and reduce-scatter of two hosts with two ranks each: packets on the hosts' links."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from subprocess import PIPE, Popen

import pytest
from testbed_lab import needs_testbed
from testbed_ranks import PROLOGUE, say

from mlt.testbed import Testbed

pytestmark = needs_testbed

HOSTS, EACH = 2, 2
RANKS = HOSTS * EACH
PART_BYTES = 1 << 20
# The root of the broadcast is the second rank of its host, that of the reduce the first: a chain in the group's order
# comes back to that host.
JOB = f"""
context = connect()
part, whole = np.full({PART_BYTES} // 4, rank, np.float32), np.empty({RANKS * PART_BYTES} // 4, np.float32)
rows, total = np.full({RANKS * PART_BYTES} // 4, rank, np.float32), np.empty({PART_BYTES} // 4, np.float32)
context.barrier()
print("up", flush=True)
for line in sys.stdin:
    verb, algorithm = line.split()
    how = {{"algorithm": algorithm}}
    total[:] = 9
    if verb == "all_gather":
        context.all_gather(whole, part, **how)
        assert (whole.reshape(size, -1)[:, -1] == np.arange(size)).all()
    elif verb == "reduce_scatter":
        context.reduce_scatter(total, rows, op=mlt.Reduction.SUM, **how)
        assert (total == {sum(range(RANKS))}).all()
    elif verb == "broadcast":
        total[:] = part
        context.broadcast(total, root=1, **how)
        assert (total == 1).all()
    else:
        context.reduce(part, total if rank == 0 else None, root=0, op=mlt.Reduction.SUM, **how)
        assert (total == ({sum(range(RANKS))} if rank == 0 else 9)).all()
    context.barrier()
    print(verb, flush=True)
context.close()
"""


@pytest.fixture
def bed() -> Iterator[Testbed]:
    with Testbed(hosts=HOSTS, rate="200mbit") as made:
        yield made


@pytest.fixture
def ranks(bed: Testbed) -> Iterator[list[Popen[str]]]:
    started = [
        bed.popen(
            f"host{rank // EACH}", [sys.executable, "-c", PROLOGUE + JOB, str(rank), str(RANKS)],
            stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    try:
        assert [heard(one) for one in started] == ["up"] * RANKS
        yield started
    finally:
        for one in started:
            one.kill()
            one.communicate()


def heard(rank: Popen[str]) -> str:
    assert rank.stdout is not None
    return rank.stdout.readline().strip() or rank.communicate()[1]


def packets_of(bed: Testbed, ranks: list[Popen[str]], verb: str, algorithm: str) -> list[int]:
    """Packets that each host has sent towards the switch in a call of every rank."""

    def sent() -> list[int]:
        passed = {(one.link, one.direction): one.seen for one in bed.link_counters()}
        return [passed[f"host{host}", "up"] for host in range(HOSTS)]

    before = sent()
    for rank in ranks:
        say(rank, f"{verb} {algorithm}")
    assert [heard(rank) for rank in ranks] == [verb] * RANKS
    return [now - then for now, then in zip(sent(), before, strict=True)]


def test_two_levels__a_tensor_crosses_once_where_it_crossed_for_each_rank(
    bed: Testbed, ranks: list[Popen[str]]
) -> None:
    found = {
        (verb, algorithm): packets_of(bed, ranks, verb, algorithm)
        for verb, others in {
            "all_gather": ["direct"],
            "reduce_scatter": ["direct"],
            "broadcast": ["direct", "chain"],
            "reduce": ["direct", "chain"],
        }.items()
        for algorithm in [*others, "two-level"]
    }
    for verb in ("all_gather", "reduce_scatter"):
        for host in range(HOSTS):
            assert 1.7 < found[verb, "direct"][host] / found[verb, "two-level"][host] < 2.3, found
    for verb in ("broadcast", "reduce"):
        direct, chain, two = (sum(found[verb, one]) for one in ("direct", "chain", "two-level"))
        assert 1.7 < direct / two < 2.3, found
        assert 1.6 < chain / two < 2.3, found
