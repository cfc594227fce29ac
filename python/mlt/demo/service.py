"""The summation service process of a run: ``python -m mlt.demo.service JOB``.

Serves as ``mlt serve`` does, and reports the transport's counters to the demo at the end.
"""

from __future__ import annotations

import sys

import mlt
from mlt.demo.child import start
from mlt.demo.events import Finished, Ready
from mlt.demo.settings import ETHERNET_SEGMENT_BYTES


def main(argument: str) -> None:
    job, reporter = start(argument)
    faults = mlt.Faults(drop=job.drop, seed=job.fault_seed)
    # All runs use the same network: with shared memory, the run without faults would not. Its packets are as long as
    # those of an Ethernet, so that a lost one takes no more of a gradient than there.
    with mlt.Context(
        job.rank, job.workers, job.services, faults=faults, datapath="udp", segment_bytes=ETHERNET_SEGMENT_BYTES
    ) as context:
        reporter.report(Ready(rank=job.rank))
        mlt.SummationService(context).run()
        reporter.report(Finished(rank=job.rank, counters=context.counters()))


if __name__ == "__main__":
    main(sys.argv[1])
