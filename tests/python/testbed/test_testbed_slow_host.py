"""All-reduces of a group in which one host's link has half the rate: what it carries with shares by rate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import median

import pytest
from testbed_lab import needs_testbed
from testbed_ranks import running

from mlt.testbed import Testbed

pytestmark = needs_testbed

SLOW = "host1"
RANKS = 3
TENSOR_BYTES = 1 << 20
# Two periods of four calls for each rank, then rounds of a period each that are counted. A pause of a host looks like a
# slow link, and rounds may be cut by such a measurement, the first two once: the median counts.
LEARNING, COUNTED, ROUNDS = 8 * RANKS, 4 * RANKS, 9
JOB = f"""
context = connect(shares_by_rate=True)
tensor = np.empty({TENSOR_BYTES} // 4, np.float32)
def calls(number):
    for _ in range(number):
        tensor[:] = rank
        context.all_reduce(tensor, op=mlt.Reduction.SUM, algorithm="ring")
        assert (tensor == {sum(range(RANKS))}).all()
calls({LEARNING})
print("learnt", flush=True)
for _ in range({ROUNDS}):
    sys.stdin.readline()
    calls({COUNTED})
    print("counted", flush=True)
sys.stdin.readline()
import json
print(json.dumps(context.counters()["rings_cut_by_rate"]), flush=True)
context.close()
"""


@pytest.fixture
def bed() -> Iterator[Testbed]:
    with Testbed(hosts=RANKS, rate="80mbit", links={SLOW: {"rate": "40mbit"}}) as made:
        yield made


def sent_up(bed: Testbed) -> list[int]:
    """Packets that each host has sent towards its switch."""
    passed = {(one.link, one.direction): one.seen for one in bed.link_counters()}
    return [passed[f"host{rank}", "up"] for rank in range(RANKS)]


def test_all_reduce__sends_the_tensor_once_over_the_links_of_a_slow_host(bed: Testbed) -> None:
    with running(bed, JOB, RANKS) as ranks:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "learnt\n", rank.communicate()[1]
        rounds = []
        for _ in range(ROUNDS):
            before = sent_up(bed)
            for rank in ranks:
                assert rank.stdin is not None
                rank.stdin.write("\n")
                rank.stdin.flush()
            for rank in ranks:
                assert rank.stdout is not None
                assert rank.stdout.readline() == "counted\n", rank.communicate()[1]
            rounds.append([now - then for now, then in zip(sent_up(bed), before, strict=True)])
        # Rank 0 sends to the slow host, which is rank 1, and that one to rank 2. Equal chunks make all three the same.
        assert median(other / slow_in for slow_in, _, other in rounds) > 1.5, rounds
        assert median(other / slow_out for _, slow_out, other in rounds) > 1.5, rounds
        for rank in ranks:
            assert rank.stdin is not None
            assert rank.stdout is not None
            rank.stdin.write("\n")
            rank.stdin.flush()
            assert json.loads(rank.stdout.readline()) >= ROUNDS // 2 * COUNTED
