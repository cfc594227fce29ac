"""Elastic training: state that survives the failure of a rank, and ranks that join or leave.

With MLT_ELASTIC (``mlt launch --min-workers``, ``mlt elastic``) the job grows and shrinks: ``run`` continues with the
members of the next epoch (``mlt.elastic``), whose ranks and number may differ. Without it the ranks keep their number:
``run`` connects again when all are back, up to MLT_CONNECT_TIMEOUT; a supervisor starts the failed one again.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mlt._named import basics, job
from mlt._named.controller import HorovodInternalError
from mlt._named.objects import allgather_object, broadcast_object

logger = logging.getLogger("mlt")

Result = TypeVar("Result")


class HostsUpdatedInterrupt(RuntimeError):
    """The program was told that hosts come or go. ``skip_sync``: no rank needs the others' state."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("hosts were updated")
        self.skip_sync = skip_sync


class State:
    """State that training needs to continue. ``commit`` keeps a copy; ``restore`` goes back to it; ``sync`` gives all
    ranks the state of the one that committed most."""

    def __init__(self) -> None:
        self._reset_callbacks: list[Callable[[], None]] = []
        self._commits = 0
        self._updated = False

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Functions to call after the ranks have connected again."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called by ``run`` after the ranks have connected again."""
        self._updated = False
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float = 0.0, update_res: int = 0) -> None:
        """Let the next ``check_host_updates`` of all ranks raise HostsUpdatedInterrupt; for a supervisor's thread.

        An elastic job (MLT_ELASTIC) needs no call of it: the coordinator of its members reports who comes and goes.
        """
        self._updated = True

    def commit(self) -> None:
        """Keep a copy of the state, then ``check_host_updates``."""
        self.save()
        self._commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedInterrupt on all ranks if ``on_hosts_updated`` was called on one, or if members come or
        go."""
        if any(allgather_object(self._updated or job.is_change_due(), "host updates")):
            raise HostsUpdatedInterrupt

    def most_committed(self) -> int:
        """The rank whose state counts: it committed most; the first of them. A rank that was started again has none."""
        commits = allgather_object(self._commits, "commits")
        self._commits = max(commits)
        return commits.index(self._commits)

    def save(self) -> None:
        """Keep a copy of the state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks the same state."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt to the ranks, after they have connected again."""


class ObjectState(State):
    """State of Python objects, which are attributes: ``ObjectState(epoch=0)`` has ``state.epoch``."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._saved = dict(kwargs)
        self._set()

    def save(self) -> None:
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._saved}

    def restore(self) -> None:
        self._set()

    def sync(self) -> None:
        self._sync_from(self.most_committed())

    def _sync_from(self, root: int) -> None:
        self.save()
        if self._saved:
            self._saved = broadcast_object(self._saved, root, "elastic state")
            self._set()

    def _set(self) -> None:
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))


def run(func: Callable[..., Result]) -> Callable[..., Result]:
    """Call ``func(state, ...)`` with a state that all ranks share; again from the last commit if a rank fails.

    With MLT_ELASTIC the others continue with the members that are there, whose number may differ. Without it the failed
    process must come back under its rank within MLT_CONNECT_TIMEOUT: its supervisor starts it again.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Result:
        skip_sync = False
        while True:
            try:
                if not skip_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError as error:
                logger.warning("elastic: back to the last commit: %s", error)
                state.restore()
                skip_sync = False
            except HostsUpdatedInterrupt as interrupt:
                skip_sync = interrupt.skip_sync
            job.stop()  # and stay a member of an elastic job
            basics.init()
            state.on_reset()

    return wrapper
