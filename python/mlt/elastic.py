"""Elastic jobs: workers and services join or leave between two steps, and no process is started again.

A job is a sequence of epochs. Each is a ``Context`` with ranks of its own; those who stay keep their order, and the
oldest worker is rank 0. A ``Membership`` connects this process to the job's membership coordinator (`mlt launch
--min-workers`, or `mlt elastic`), which is needed when members change, and at no other time. See docs/elastic.md, which
has a complete program.
"""

from __future__ import annotations

import logging
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mlt._core import Reduction
from mlt._shared.link import GONE_SECONDS
from mlt.context import Context
from mlt.errors import ConfigError, MltError
from mlt.job import rendezvous
from mlt.job import secret as secret_module
from mlt.job.configuration import DEFAULT_JOB
from mlt.job.epochs.member import Assignment, EpochOverError, Member
from mlt.job.epochs.messages import Announced
from mlt.job.epochs.settings import Place
from mlt.options import times

if TYPE_CHECKING:
    from mlt.job.secret import JobSecret

__all__ = ["Membership"]

_OF_THE_MEMBERSHIP = {"rank", "world_size", "services", "job", "master_addr", "rendezvous_port", "secret"}
# After the connections of an epoch failed: for the coordinator to notice that a member died, or that its host vanished.
_NOTICE_SECONDS = GONE_SECONDS + 2.0

logger = logging.getLogger("mlt")


class Membership:
    """This process's part in an elastic job. Use it from one thread; ``is_change_due`` from any.

    ``coordinator``: "HOST:PORT" of the membership coordinator (None: MLT_ELASTIC). ``kind``: a worker, or a service,
    which then serves each epoch with ``SummationService``. ``job``, ``secret``: as of ``Context``, the same for all
    members. ``connect_timeout``: seconds to wait for the coordinator (None: MLT_CONNECT_TIMEOUT, else 60).

    The first ``next_epoch`` joins. Leaving the ``with`` block leaves the job, with an exception as a member that died.
    Raises ConfigError.

    >>> with Membership("127.0.0.1:29700") as membership:  # doctest: +SKIP
    ...     context = membership.next_epoch()
    """

    def __init__(
        self,
        coordinator: str | None = None,
        *,
        kind: Literal["worker", "service"] = "worker",
        job: str | None = None,
        secret: str | bytes | JobSecret | None = None,
        connect_timeout: float | None = None,
    ) -> None:
        if kind not in ("worker", "service"):
            raise ConfigError(f"kind is {kind!r}; it is 'worker' or 'service'")
        self._place = Place.resolve(coordinator)
        self._job = job if job is not None else os.environ.get("MLT_JOB", DEFAULT_JOB)
        self._secret = secret_module.resolve(secret)
        self._timeout = times.resolve({"connect_timeout": connect_timeout}, os.environ).get(
            "connect_timeout", times.CONNECT_SECONDS
        )
        self._member = Member(
            self._place,
            kind,
            job=self._job,
            secret=self._secret,
            insecure=secret_module.is_insecure(),
            connect_seconds=self._timeout,
        )
        self._context: Context | None = None
        self._number = 0

    @property
    def epoch(self) -> int:
        """Number of the last epoch, counted over the whole job; 0 before the first."""
        return self._number

    @property
    def is_change_due(self) -> bool:
        """Whether members come or go, so that this process should call ``next_epoch`` between two steps.

        The members learn it at different times: let ``agrees_on_change`` decide at which step all leave.
        """
        return bool(self._member.due) or self._member.failure is not None

    @property
    def is_epoch_over(self) -> bool:
        """Whether every worker has left the epoch or counts as dead: a service then calls ``next_epoch``.

        ``SummationService.run`` by itself goes on while a worker is connected that hangs.
        """
        return self._member.is_epoch_over

    def agrees_on_change(self, context: Context) -> bool:
        """Whether the epoch ends after this step: the same on all workers, true if it is due for one of them.

        All workers call it between the same two steps; it is a collective of 4 bytes per worker. Raises as collectives
        do, for example if a worker died: ``next_epoch`` is the way on then, too.

        >>> membership.agrees_on_change(context)  # doctest: +SKIP
        False
        """
        own = np.array([self.is_change_due], np.int32)
        if context.world_size == 1:
            return bool(own[0])
        context.all_reduce(own, op=Reduction.MAX)
        return bool(own[0])

    def next_epoch(self, **options: Any) -> Context | None:
        """Leave the epoch, and return the context of the next, connected with all its members.

        Waits until all members of the running epoch have called it or are gone, and enough members are there.
        ``options``: of ``Context``, except its place in the job. The context of the epoch before is closed. A service
        gets None once every worker has left the job.

        Raises RendezvousError: too few members in the time that the coordinator grants, no coordinator, or this process
        counts as dead, because it did not come in time; PeerMismatchError: another secret, job, release or setting; and
        what ``Context`` raises, for instance ConfigError.

        >>> context = membership.next_epoch(operation_timeout=60)  # doctest: +SKIP
        >>> context.rank, context.world_size  # doctest: +SKIP
        (2, 3)
        """
        if own := options.keys() & _OF_THE_MEMBERSHIP:
            raise TypeError(f"next_epoch() got {min(own)!r}, which the membership gives")
        self._close_context()
        while True:
            assignment = self._member.ask()
            if assignment is None:
                return None
            try:
                context = _EpochContext(self, self._member, assignment, options)
            except EpochOverError as error:
                logger.info("%s", error)
                continue
            except MltError as error:
                # Of a member that died meanwhile; an error of this process's own ends its part.
                if isinstance(error, ConfigError) or not self._member.await_due(_NOTICE_SECONDS):
                    self.close(failure=str(error))
                    raise
                logger.info("%s", error)
                continue
            self._context, self._number = context, assignment.number
            return context

    def close(self, *, failure: str = "") -> None:
        """Leave the job. ``failure``: why, if this process has not done its work. Idempotent."""
        self._close_context(failure)
        self._member.leave(is_intent=not failure)

    def __enter__(self) -> Membership:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failure="" if kind is None else f"ended by {kind.__name__}")

    def __repr__(self) -> str:
        return f"<mlt.elastic.Membership of job {self._job!r}, epoch {self._number}>"

    def _close_context(self, failure: str = "") -> None:
        context, self._context = self._context, None
        if context is not None:
            context.close(failure=failure)


class _EpochContext(Context):
    """The context of an epoch: the members' coordinator takes the place of rank 0's rendezvous."""

    def __init__(self, owner: Membership, member: Member, assignment: Assignment, options: dict[str, Any]) -> None:
        self._member = member
        self._assignment = assignment
        super().__init__(
            assignment.rank,
            len(assignment.workers),
            len(assignment.services),
            job=f"{owner._job}, epoch {assignment.number}",
            master_addr=owner._place.host,
            rendezvous_port=owner._place.port,
            secret=owner._secret,
            **options,
        )
        try:
            self._member.connected()
        except MltError:
            self.close()
            raise

    def _report_failure(self, error: MltError, place: dict[str, Any], rank: int | None) -> None:
        """The coordinator learns it from the membership."""

    def _meet(
        self, own: rendezvous.Endpoint, timeout: float, paths: int, connects_on_use: bool
    ) -> list[rendezvous.Endpoint]:
        dscp = (self.dscp.control, *self.dscp.data)
        announced = Announced(own.host, own.port, dscp, paths, connects_on_use, self._checksums)
        table = self._member.announce(self._assignment.number, announced, self._engine.close)
        return [rendezvous.Endpoint(*one) for one in table]
