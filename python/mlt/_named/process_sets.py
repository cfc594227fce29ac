"""Process sets: subsets of the ranks, which have operations of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlt._named import job
from mlt._named.controller import RejectedError
from mlt._named.requests import GLOBAL_SET


class ProcessSet:
    """Some ranks of the job. Registered by ``init(process_sets=)`` or ``add_process_set``.

    ``ranks``: in ascending order. ``process_set_id``: None until it is registered.
    """

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        if not isinstance(ranks_or_comm, Iterable):
            raise ValueError("ProcessSet takes a list of ranks; mlt uses no MPI communicators")
        own = sorted(ranks_or_comm)
        if any(isinstance(rank, bool) or not isinstance(rank, int) for rank in own):
            raise ValueError("ProcessSet takes a list of ranks, which are integers")
        self.ranks: list[int] | None = own
        self.process_set_id: int | None = None

    def size(self) -> int | None:
        """Number of ranks; None if it is not registered."""
        return None if self.process_set_id is None else len(job.ranks_of(self.process_set_id))

    def rank(self) -> int | None:
        """This process's position in the set; None if it is not registered. Raises ValueError outside the set.

        Operations take ranks of the job, not these: ``root_rank`` of a broadcast for example.
        """
        if self.process_set_id is None:
            return None
        ranks = job.ranks_of(self.process_set_id)
        if job.controller().rank not in ranks:
            raise ValueError("Process is not part of provided process set.")
        return ranks.index(job.controller().rank)

    def included(self) -> bool:
        """Whether this process is in the set."""
        return job.controller().rank in (self.ranks or ())

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


global_process_set = ProcessSet([])
global_process_set.process_set_id = GLOBAL_SET


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a process set; all ranks of the job call it, with the same ranks.

    Raises ValueError if a set of these ranks exists.
    """
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    try:
        added.process_set_id = job.controller().add_set(added.ranks or [])
    except RejectedError as error:
        raise ValueError(str(error)) from None
    added.ranks = list(job.ranks_of(added.process_set_id))
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set; all ranks of the job call it. False if it is not registered, or that of all ranks."""
    number = process_set.process_set_id
    if number is None or number == GLOBAL_SET:
        return False
    process_set.process_set_id = None
    try:
        job.controller().remove_set(number)
    except RejectedError:
        return False
    return True


def set_id(process_set: ProcessSet) -> int:
    """Number of a registered process set. Raises ValueError otherwise."""
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} is not registered: pass it to hvd.init() or hvd.add_process_set()")
    return process_set.process_set_id
