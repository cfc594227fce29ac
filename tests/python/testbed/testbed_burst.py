"""A burst into a slow port: ECT and Not-ECT in turn, fast against the drain, so that arithmetic says each one's fate.

usage: testbed_burst.py QUEUE PAIRS    prints the port's counters as JSON, or null if no measurement was valid
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from testbed_lab import ECT, NOT_ECT, PAYLOAD, POLICY, PORT, WIRE, queue, resolve, sink, udp

from mlt.testbed import QueueCounters, Testbed

# Code points of the example policy's first two classes; S and L of the first.
FRONT, BACK = 3, 7
S, L = 32_768, 131_072
ATTEMPTS = 5
# 12.5 kB/s: what drains while a burst may last is 5 kB, 3 of the 80 packets between S and L.
SLOW, LONGEST_SECONDS = "100kbit", 0.4
COUNTED = ("sent", "marked", "dropped_early", "dropped_at_limit")


def slow_ports_of(kind: str) -> dict[str, Any]:
    """host0 sends fast; the ports to the others are slow, nothing against a burst. A fresh port for each try."""
    slow = {f"host{number}": {"rate": SLOW} for number in range(1, ATTEMPTS + 1)}
    return {"hosts": ATTEMPTS + 1, "rate": "1gbit", "links": slow, "policy": str(POLICY), "queue": kind}


def expected_burst(pairs: int, *, passed: int = 0) -> dict[str, int]:
    """A queue that takes ECT and Not-ECT packets in turn and drains nothing but its first ``passed`` bytes."""
    sent = marked = early = at_limit = 0
    backlog = -passed
    for is_ect in [True, False] * pairs:
        if backlog + WIRE > L:
            at_limit += 1
        elif backlog > S and not is_ect:
            early += 1
        else:
            marked += backlog > S
            sent += 1
            backlog += WIRE
    return dict(zip(COUNTED, (sent, marked, early, at_limit), strict=True))


def burst(bed: Testbed, target: str, pairs: int, *, counts_arrivals: bool = False) -> dict[str, int] | None:
    """Valid if the burst left within LONGEST_SECONDS; where the port counts arrivals, if it arrived in that time.

    That it left in time is not enough: a delay line, which is a process too, may stall with the burst in its hands.
    """
    resolve(bed, "host0", target)
    with (
        sink(bed, target),
        udp(bed, "host0", FRONT << 2 | ECT) as ect,
        udp(bed, "host0", FRONT << 2 | NOT_ECT) as not_ect,
    ):
        began, to = time.monotonic(), (bed.address(target), PORT)
        for _ in range(pairs):
            ect.sendto(bytes(PAYLOAD), to)
            not_ect.sendto(bytes(PAYLOAD), to)
        took = time.monotonic() - began
        if not counts_arrivals:
            time.sleep(0.2)  # the host's own queue needs 4 ms for it
        found = queue(bed, "switch", target, "layers-1")
        while counts_arrivals:
            took = time.monotonic() - began  # by now, what was counted has arrived
            if took > LONGEST_SECONDS or _arrived(found) == 2 * pairs:
                break
            found = queue(bed, "switch", target, "layers-1")
    if took > LONGEST_SECONDS:
        return None
    return {name: getattr(found, name) for name in COUNTED} | {"backlog": found.backlog}


def _arrived(counters: QueueCounters) -> int:
    return counters.sent + counters.dropped_early + counters.dropped_at_limit


def main(kind: str, pairs: int) -> None:
    with Testbed(**slow_ports_of(kind)) as bed:
        for target in bed.hosts[1:]:
            found = burst(bed, target, pairs)
            if found is not None:
                break
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
