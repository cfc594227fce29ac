"""``ProcessGroupMlt``: torchft's reconfigurable process group over mlt, for replicas that may be killed and come back.

    manager = torchft.Manager(pg=ProcessGroupMlt(timeout=timedelta(seconds=30)), ...)

torchft calls ``configure`` whenever the set of replicas changes: each set is a job of its own (``mlt.Context``), whose
ranks meet through the store that torchft names. Absent: membership, which replica recovers from which, and whether a
step counts, all of which torchft's manager and lighthouse decide.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from mlt.torch import contexts, recorder
from mlt.torch.compilation import untraced_class
from mlt.torch.process_group import MltProcessGroup

import torch.distributed as dist
from mlt.job import interfaces
from torch.futures import Future

try:
    from torchft.process_group import ProcessGroupWrapper
except ModuleNotFoundError as error:
    if error.name != "torchft":
        raise
    from mlt._shared.extras import how_to_install

    raise ModuleNotFoundError(
        f"mlt.torch.torchft needs torchft, which is not installed: {how_to_install('recipes', 'torchft')}",
        name="torchft",
    ) from None


@untraced_class
class ProcessGroupMlt(ProcessGroupWrapper):  # type: ignore[misc]
    """The replicas of one rank. The operations of torchft's groups, exact.

    A failed operation does not raise from ``wait``: torchft's DDP would end the surviving replica. It is the error of
    its future and of ``errored``, for which the manager looks before a step counts. The tensors of such a step are
    undefined.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        """``timeout``: of each operation, and of the other replicas to connect when the set of replicas changes."""
        super().__init__(timeout)
        self._error: Exception | None = None
        self._sets = 0  # of replicas, one after another

    def getBackendName(self) -> str:
        return "torchft-mlt"

    def errored(self) -> Exception | None:
        """The first failure since ``configure``: the group needs another one."""
        return self._error

    def abort(self, errored: bool = True) -> None:
        """Fail the operations in progress, here and at the other replicas; ``errored``: and count it as a failure."""
        if errored:
            self._report(
                RuntimeError("mlt: the process group was aborted; torchft must configure it again"), self._sets
            )
        super().abort(errored=errored)

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        if self._pg is not None:
            self._pg.set_timeout(timeout)

    def shutdown(self) -> None:
        """Leave the job; operations in progress fail."""
        self.abort(errored=False)

    def _create_pg(self, store: Any, rank: int, world_size: int) -> MltProcessGroup:
        """Called by ``configure``, after it has ended the group before."""
        self._sets += 1
        self._error = None
        within = f"/{self._group_rank}" if self._group_rank else ""
        recorder.check()
        recorder.use_replica(recorder.Replica(f"{self._replica_id or 'replica'}{within}", rank, world_size))
        return MltProcessGroup(
            contexts.over_store(store, rank, world_size, timeout=self._timeout, address=_own_address),
            rank=rank,
            ranks=tuple(range(world_size)),
            group_id="torchft",
            timeout=self._timeout,
            owns_context=True,
            recorded_as=f"torchft {self._quorum_id}{within}" if self._quorum_id is not None else "torchft",
        )

    def _wrap_work(self, work: Any, opts: object) -> _ReportedWork:
        return _ReportedWork(work, partial(self._report, among=self._sets))

    def _report(self, error: Exception, among: int) -> None:
        # A thread may learn of an old set's end when a new one is at work.
        if among == self._sets and self._error is None:
            self._error = error


@untraced_class
class _ReportedWork(dist.Work):
    """An operation whose failure goes to ``report``: ``wait`` does not raise."""

    def __init__(self, work: Any, report: Callable[[Exception], None]) -> None:
        super().__init__()
        self._work, self._report = work, report
        self._lock = threading.Lock()
        self._future: Any = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        try:
            self._work.wait(timeout)
            # torchft adds callbacks after the wait, which must run as it adds them: the future has to be completed.
            self.get_future().wait()
            return True
        except Exception as error:
            self._report(error)
            return False

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def exception(self) -> Any:
        return self._work.exception()

    def source_rank(self) -> int:
        return int(self._work.source_rank())

    def get_future(self) -> Any:
        with self._lock:
            if self._future is None:
                self._future = self._work.get_future().then(self._value)
            return self._future

    def _value(self, future: Future[Any]) -> Any:
        try:
            return future.value()
        except Exception as error:
            self._report(error)
            raise


def _own_address(store: Any) -> str:
    """This host's address on the route to the store, which is on any replica's host."""
    host = contexts.host_of(store)
    own = interfaces.source_towards(host)
    if interfaces.is_loopback(own) and host != "localhost" and not interfaces.is_loopback(host):
        # The name of this very host, which others know by another address.
        return interfaces.machine_address() or own
    return own
