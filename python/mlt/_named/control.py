"""Operations without tensors: join and barrier."""

from __future__ import annotations

from mlt._named import job
from mlt._named.process_sets import ProcessSet, global_process_set, set_id
from mlt._named.requests import Request


def join(device: int = -1) -> int:
    """This rank has no more data: until all ranks have joined, it contributes nothing to the others' allreduces.

    Returns the rank that joined last. ``device`` is ignored.
    """
    return job.controller().join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the process set have called it."""
    own, number = job.controller(), set_id(process_set)
    own.submit(Request("barrier", own.name("barrier", number), set_id=number)).wait()
