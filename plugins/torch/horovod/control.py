"""Operations without tensors: join and barrier."""

from __future__ import annotations

from mlt.torch.horovod import job
from mlt.torch.horovod.handles import submit, synchronize
from mlt.torch.horovod.process_sets import ProcessSet, global_process_set


def join(device: int = -1) -> int:
    """This rank has no more data: until all ranks have joined, it contributes nothing to the others' allreduces.

    Returns the rank that joined last. ``device`` is ignored.
    """
    return job.controller().join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the process set have called it."""
    synchronize(submit("barrier", [], None, process_set, result=lambda tensors, handle: None))
