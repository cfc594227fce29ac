"""Python objects, from one rank to all or from all to all."""

from __future__ import annotations

import pickle
from typing import Any

from mlt._named import job
from mlt._named.process_sets import ProcessSet, global_process_set, set_id


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The object of ``root_rank``, pickled on its way."""
    own = job.controller()
    is_root = own.rank == root_rank
    number = set_id(process_set)
    text = pickle.dumps(obj) if is_root else b""
    label = f"{name or 'object'}.broadcast_object"
    texts = job.gather_bytes(own, text, label, set_id=number, root=root_rank)
    ranks = job.ranks_of(number)
    if root_rank not in ranks:
        raise ValueError(f"root rank {root_rank} is not in the process set of ranks {list(ranks)}")
    return obj if is_root else pickle.loads(texts[ranks.index(root_rank)])


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks, in order, pickled on their way."""
    label = f"{name or 'object'}.allgather_object"
    texts = job.gather_bytes(job.controller(), pickle.dumps(obj), label, set_id=set_id(process_set))
    return [pickle.loads(text) for text in texts]
