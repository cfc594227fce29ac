"""The job of this process: ``init``, ``shutdown``, and what they know of ranks and hosts."""

from __future__ import annotations

import atexit
import logging
import os
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from mlt._named.controller import Controller, HorovodInternalError
from mlt._named.elements import Bytes
from mlt._named.leader import Settings
from mlt._named.requests import Request
from mlt._shared import variables
from mlt.job import ending, launchers
from mlt.job.epochs.settings import is_elastic

if TYPE_CHECKING:
    from mlt.context import Context
    from mlt.elastic import Membership

logger = logging.getLogger("mlt")

NOT_INITIALIZED: Final = "Horovod has not been initialized; use hvd.init()."


@dataclass(frozen=True)
class Job:
    """An initialized job. ``hosts``: by rank, a text that is the same for all ranks of a host."""

    controller: Controller
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    is_homogeneous: bool


_job: Job | None = None
_membership: Membership | None = None
_lock = threading.RLock()
_pid = 0
_before_stop: list[Callable[[], object]] = []
_at_stop: list[Callable[[], object]] = []


def current() -> Job:
    """The job; raises ValueError before ``init`` and after ``shutdown``."""
    if _job is None:
        raise ValueError(NOT_INITIALIZED)
    return _job


def controller() -> Controller:
    """The job's controller; raises ValueError before ``init``."""
    return current().controller


def start() -> bool:
    """Connect all ranks, unless this process is in a job already; whether it was not."""
    global _job, _pid
    with _lock:
        if _job is not None:
            return False
        chosen = settings(os.environ)
        while _job is None:
            try:
                _job = _start(chosen)
            except HorovodInternalError as error:
                if not is_elastic():
                    raise
                logger.warning("elastic: asks for the next epoch: %s", error)
        _pid = os.getpid()
        # After the context's own, which the import above registered: so this runs first.
        atexit.unregister(_stop_at_exit)
        atexit.register(_stop_at_exit)
        return True


def stop(reason: str = "") -> None:
    """Leave the job; the operations in progress of all ranks fail. No-op outside a job.

    Without a ``reason`` the program does so by intent: what ``before_stop`` has is called first.
    """
    global _job
    if _job is not None and not reason:
        _call_before_stop()
    with _lock:
        job, _job = _job, None
    if job is not None and _pid == os.getpid():
        job.controller.close(reason)
    if job is not None:
        for call in _at_stop:
            call()


def leave() -> None:
    """End this process's part in an elastic job, after ``stop``; the others continue without it. No-op in others."""
    global _membership
    with _lock:
        membership, _membership = _membership, None
    if membership is not None and _pid == os.getpid():
        membership.close()


def is_change_due() -> bool:
    """Whether members of an elastic job come or go; False in other jobs."""
    membership = _membership
    return membership is not None and membership.is_change_due


def _start(chosen: Settings) -> Job:
    """Connect all ranks. Raises HorovodInternalError if one of them ends meanwhile."""
    if is_elastic():
        context: Context | None = _next_epoch()
        assert context is not None
        position = launchers.JobPosition(rank=context.rank, world_size=context.world_size)
    else:
        position = launchers.position(os.environ)
        context = _connect(position)
    # Alone it has no peer to end with.
    own = Controller(context if position.world_size > 1 else None, chosen)
    try:
        return _describe(own, position)
    except BaseException:
        own.close("failed in init()")
        raise


def _connect(position: launchers.JobPosition) -> Context | None:
    if position.world_size == 1:
        return None
    from mlt import Context  # the native library is loaded when a job starts

    return Context(
        position.rank,
        position.world_size,
        master_addr=position.master_addr,
        rendezvous_port=position.rendezvous_port,
    )


def _next_epoch() -> Context:
    """The context of the next epoch of an elastic job; this process joins it if it is no member yet."""
    global _membership
    if _membership is None:
        from mlt.elastic import Membership

        _membership = Membership()
    try:
        context = _membership.next_epoch()
    except BaseException as error:
        membership, _membership = _membership, None
        membership.close(failure=ending.reason_of(type(error), error) or "ended in init()")
        raise
    assert context is not None  # of a service only
    return context


def before_stop(call: Callable[[], object]) -> None:
    """Call a function, which must not raise, whenever the program ends the job, or ends without an error: operations
    still complete then."""
    _before_stop.append(call)


def at_stop(call: Callable[[], object]) -> None:
    """Call a function whenever this process has left a job."""
    _at_stop.append(call)


def settings(environ: Mapping[str, str]) -> Settings:
    """Horovod's variables that apply. Raises ConfigError that names the one that is wrong."""
    standard = Settings()
    fusion_bytes = variables.integer(environ, "HOROVOD_FUSION_THRESHOLD")
    cache_capacity = variables.integer(environ, "HOROVOD_CACHE_CAPACITY")
    stall = variables.time(environ, "HOROVOD_STALL_CHECK_TIME_SECONDS", is_zero_valid=True)
    stall_end = variables.time(environ, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", is_zero_valid=True)
    checks = not variables.flag(environ, "HOROVOD_STALL_CHECK_DISABLE")
    return Settings(
        fusion_bytes=standard.fusion_bytes if fusion_bytes is None else fusion_bytes,
        cache_capacity=standard.cache_capacity if cache_capacity is None else cache_capacity,
        stall_seconds=(standard.stall_seconds if stall is None else stall) if checks else 0.0,
        stall_end_seconds=(stall_end or 0.0) if checks else 0.0,
    )


class _Text:
    """One row of bytes per character, for ``gather_texts``."""

    def __init__(self, text: bytes) -> None:
        self.source: Bytes = np.frombuffer(text, np.uint8)
        self.output: Bytes = np.empty(0, np.uint8)

    def input(self, index: int) -> Bytes:
        return self.source

    def allocate(self, index: int, shape: tuple[int, ...]) -> Bytes:
        self.output = np.empty(shape, np.uint8)
        return self.output


def gather_bytes(own: Controller, text: bytes, name: str, *, set_id: int = 0, root: int = -1) -> list[bytes]:
    """The texts of all ranks of a process set, in order. ``root``: the ranks agree on it, if it matters."""
    tensors = _Text(text)
    request = Request("allgather", name, (("uint8", (len(text),)),), set_id=set_id, root=root)
    (rows,) = own.submit(request, tensors).wait().rows
    ends = np.cumsum(rows)
    return [tensors.output[end - length : end].tobytes() for end, length in zip(ends, rows, strict=True)]


def _describe(own: Controller, position: launchers.JobPosition) -> Job:
    """Finds the ranks that share hosts: from the hosts' names, and from the launcher's variables."""
    hosts = gather_bytes(own, _host().encode(), "host names of init()")
    sizes: dict[bytes, int] = {}
    local_ranks = []
    for host in hosts:
        local_ranks.append(sizes.get(host, 0))
        sizes[host] = local_ranks[-1] + 1
    mine = hosts[own.rank]
    local_rank = local_ranks[own.rank] if position.local_rank is None else position.local_rank
    # The hosts that have a process of this local rank, in the order of their first ranks.
    with_local_rank = [host for host, size in sizes.items() if size > local_rank]
    return Job(
        controller=own,
        local_rank=local_rank,
        local_size=sizes[mine] if position.local_size is None else position.local_size,
        cross_rank=with_local_rank.index(mine) if mine in with_local_rank else 0,
        cross_size=max(len(with_local_rank), 1),
        is_homogeneous=len(set(sizes.values())) == 1,
    )


def _host() -> str:
    """Differs between hosts even if all are called "localhost"."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()} {boot.read_text().strip() if boot.exists() else ''}"


def ranks_of(set_id: int | None) -> Sequence[int]:
    """Ranks of a process set. Raises ValueError if it is not registered."""
    ranks = None if set_id is None else controller().ranks(set_id)
    if ranks is None:
        raise ValueError("Process set does not exist or has not been registered.")
    return ranks


def _call_before_stop() -> None:
    for call in _before_stop:
        call()


def _stop_at_exit() -> None:
    """A process that ends must not leave the others waiting."""
    failure = ending.unhandled()
    if _job is not None and _pid == os.getpid() and not failure:
        _call_before_stop()
    stop(f"{failure or 'ended'} without hvd.shutdown()")
    if not failure:  # the connection of one that fails breaks: it counts as dead
        leave()
