"""Calls of a process group as events of ``torch.profiler``, named as those of other backends: "mlt:all_reduce"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch.distributed as dist
from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import record_function

# Methods whose name is not that of torch.distributed.
_NAMES: Final = {
    "allgather": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "allreduce": "all_reduce",
    "all_to_all_parts": "all_to_all",
    "alltoall": "all_to_all",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
}


def recorded(method: str, start: Callable[[], Any]) -> Any:
    """The Work that ``start`` returns. While this thread is profiled, it is an event from now to the end of the work.

    ``method``: the group's. The event of a receive from any source, whose work has no future, ends with its posting.
    """
    if not _profiler_enabled():
        return start()
    with record_function(f"mlt:{_NAMES.get(method, method)}") as event:
        work = start()
        if type(work).get_future is not dist.Work.get_future:
            event._call_end_callbacks_on_future(work.get_future())
    return work
