"""``init``, ``shutdown``, ranks and sizes, and what Horovod says about how it was built."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from mlt._named import job, unused_variables
from mlt._named.process_sets import ProcessSet, add_process_set, global_process_set
from mlt._named.timeline import Timeline
from mlt._shared import variables


def init(comm: Any = None, process_sets: str | Sequence[ProcessSet | Sequence[int]] | None = None) -> None:
    """Connect all ranks of the job, whose number and addresses come from the launcher's variables.

    No-op in a job. ``process_sets``: to register, the same on all ranks, or "dynamic", which is always allowed.
    ``comm`` may be None only: mlt uses no MPI communicators; put the ranks into a process set.
    """
    if comm is not None:
        raise ValueError("init(comm=) is not supported: mlt uses no MPI; use process_sets= for a subset of the ranks")
    if isinstance(process_sets, str) and process_sets.lower() != "dynamic":
        raise ValueError(f'init(process_sets={process_sets!r}): give a list of process sets, or "dynamic"')
    mark_cycles = variables.flag(os.environ, "HOROVOD_TIMELINE_MARK_CYCLES")
    if not job.start():
        return
    global_process_set.ranks = list(range(size()))
    if rank() == 0:
        unused_variables.warn_once()
    timeline = os.environ.get("HOROVOD_TIMELINE", "")
    if rank() == 0 and timeline not in ("", "DYNAMIC"):
        start_timeline(timeline, mark_cycles)
    if process_sets is not None and not isinstance(process_sets, str):
        for process_set in process_sets:
            add_process_set(process_set)


def shutdown() -> None:
    """End the job on all ranks; operations in progress fail. ``init`` may be called again.

    In an elastic job (MLT_ELASTIC) this process leaves, and the others continue in ``elastic.run``.
    """
    job.stop()
    job.leave()


def is_initialized() -> bool:
    """Whether ``init`` was called, and ``shutdown`` not."""
    try:
        job.current()
    except ValueError:
        return False
    return True


def rank() -> int:
    """This process's number in the job."""
    return job.controller().rank


def size() -> int:
    """Number of processes in the job."""
    return job.controller().size


def local_rank() -> int:
    """This process's number on its host."""
    return job.current().local_rank


def local_size() -> int:
    """Number of the job's processes on this host."""
    return job.current().local_size


def cross_rank() -> int:
    """This host's number among those that have a process with this local rank."""
    return job.current().cross_rank


def cross_size() -> int:
    """Number of hosts that have a process with this local rank."""
    return job.current().cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of processes."""
    return job.current().is_homogeneous


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Record this rank's operations in a file for chrome://tracing or Perfetto, from now on.

    ``mark_cycles``: also when the coordinator's messages arrive. HOROVOD_TIMELINE names the file from ``init`` on, of
    rank 0.
    """
    job.controller().set_timeline(Timeline(file_path, marks_messages=mark_cycles))


def stop_timeline() -> None:
    """Complete the file of ``start_timeline``."""
    job.controller().set_timeline(None)


def mpi_threads_supported() -> bool:
    """False: mlt uses no MPI."""
    job.current()
    return False


def mpi_enabled() -> bool:
    """False: mlt uses no MPI."""
    return False


def mpi_built() -> bool:
    """False: mlt uses no MPI."""
    return False


def gloo_enabled() -> bool:
    """False: mlt is the transport."""
    return False


def gloo_built() -> bool:
    """False: mlt is the transport."""
    return False


def nccl_built() -> int:
    """0: mlt is the transport."""
    return 0


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def cuda_built() -> bool:
    """False: tensors on a GPU travel by way of host memory."""
    return False


def rocm_built() -> bool:
    """False: tensors on a GPU travel by way of host memory."""
    return False
