"""Calls of a process group as events of ``torch.profiler``: each call "mlt:all_reduce", as those of other backends are
named, and each wait for an end "mlt:wait"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

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


def name_of(method: str) -> str:
    """The name of a group's method in torch.distributed."""
    return _NAMES.get(method, method)


def recorded(method: str, start: Callable[[], Any]) -> Any:
    """Returns the Work or future of ``start``. While this thread is profiled, the call is an event. ``method``: of the
    group, or a hook.

    An event that lasted to the end of the work would be ended by another thread. If the profiler was stopped meanwhile,
    torch's processes crashed now and then (2.13).
    """
    if not _profiler_enabled():
        return start()
    with record_function(f"mlt:{name_of(method)}"):
        return start()


def recorded_wait(wait: Callable[[], bool]) -> bool:
    """Returns the result of ``wait``, for the end of a Work. While this thread is profiled, it is an event
    "mlt:wait"."""
    if not _profiler_enabled():
        return wait()
    with record_function("mlt:wait"):
        return wait()
