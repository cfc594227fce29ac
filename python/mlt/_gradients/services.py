"""Whether summation services can average faster than the workers among themselves, by the bytes on the hosts' links.

Paper: BytePS, OSDI 2020, section 4.1, for the loads by which push-pull cuts tensors (``mlt.options.service_loads``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mlt.options import service_loads

# Push-pull reaches less of what its links permit than a ring does. On a testbed of three and four workers
# (docs/summation.md) services took 1.0 to 1.3 times as long as the ring where their links carried up to a quarter less
# than its own, and 0.8 to 1.0 times where they carried a third less.
_MIN_GAIN: Final = 0.3


def link_loads(hosts: Sequence[int], workers: int, loads: Sequence[float] | None = None) -> tuple[float, float]:
    """Return how often the tensor crosses the busiest link, in each direction: by services, and around a ring.

    ``hosts``: the number of each rank's host. The first ``workers`` ranks are workers, the others services. ``loads``:
    the part of the tensor that each service sums (None: what push-pull takes by itself).

    >>> link_loads([0, 1, 2, 3, 4], workers=4)  # one service, on a host of its own
    (4.0, 1.5)
    >>> link_loads([0, 1, 2, 3, 0, 1, 2, 3], workers=4)  # one beside each worker
    (1.5, 1.5)
    >>> link_loads([0, 0, 0], workers=2)  # all on one host
    (0.0, 0.0)
    """
    parts = dict.fromkeys(hosts, 0.0)  # of each host
    if len(hosts) > workers:
        for host, load in zip(hosts[workers:], loads or service_loads.by_default(hosts, workers), strict=True):
            parts[host] += load
    by_services = around = 0.0
    for host in set(hosts):
        of_workers, part = hosts[:workers].count(host), parts[host]
        # Pushes to services elsewhere, and results for workers elsewhere; what arrives is as much.
        by_services = max(by_services, of_workers * (1 - part) + (workers - of_workers) * part)
        leaving = sum(hosts[rank] == host and hosts[(rank + 1) % workers] != host for rank in range(workers))
        around = max(around, leaving * 2 * (workers - 1) / workers)
    return by_services, around


def pay(hosts: Sequence[int], workers: int, loads: Sequence[float] | None = None) -> bool:
    """Return whether the services should average: their links carry less than 0.7 of what those of a ring carry.

    That takes four workers at least.

    >>> pay([0, 1, 2, 3, 4], workers=4), pay([0, 1, 2, 3, 4, 5, 6, 7], workers=4)
    (False, True)
    """
    by_services, around = link_loads(hosts, workers, loads)
    return len(hosts) > workers and by_services < (1 - _MIN_GAIN) * around
