"""Elastic training: state that survives the failure of a rank, which its supervisor starts again.

The ranks of a job keep their number: ``run`` connects again when all are back, up to MLT_CONNECT_TIMEOUT. A job that
grows or shrinks needs a driver that gives new ranks, which mlt does not have: restart all processes with the new
WORLD_SIZE, from a checkpoint.
"""

from __future__ import annotations

import copy
import functools
import logging
import math
import random
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, TypeVar

from mlt.torch.horovod import basics
from mlt.torch.horovod.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)

import torch
from mlt._named.controller import HorovodInternalError

logger = logging.getLogger("mlt")

Result = TypeVar("Result")


class HostsUpdatedInterrupt(RuntimeError):
    """The program was told that hosts come or go. ``skip_sync``: no rank needs the others' state."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("hosts were updated")
        self.skip_sync = skip_sync


class State:
    """What training needs to go on. ``commit`` keeps a copy; ``restore`` goes back to it; ``sync`` gives all ranks the
    state of the one that committed most."""

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
        """Let the next ``check_host_updates`` of all ranks raise HostsUpdatedInterrupt; for a supervisor's thread."""
        self._updated = True

    def commit(self) -> None:
        """Keep a copy of the state, then ``check_host_updates``."""
        self.save()
        self._commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedInterrupt on all ranks if ``on_hosts_updated`` was called on one."""
        if any(allgather_object(self._updated, "host updates")):
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


class TorchState(ObjectState):
    """State of models, optimizers, ``ElasticSampler``s and other Python objects, by name; each is an attribute."""

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        given = {**kwargs, "model": model, "optimizer": optimizer}
        kinds = (torch.nn.Module, torch.optim.Optimizer, ElasticSampler)
        self._with_state = {name: value for name, value in given.items() if isinstance(value, kinds)}
        self._states: dict[str, Any] = {}
        super().__init__(**{name: value for name, value in given.items() if name not in self._with_state})
        for name, value in self._with_state.items():
            setattr(self, name, value)
        self.save()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_with_state", {}):
            self._with_state[name] = value
        super().__setattr__(name, value)

    def save(self) -> None:
        super().save()
        self._states = {name: copy.deepcopy(one.state_dict()) for name, one in self._with_state.items()}

    def restore(self) -> None:
        super().restore()
        for name, one in self._with_state.items():
            one.load_state_dict(copy.deepcopy(self._states[name]))

    def sync(self) -> None:
        root = self.most_committed()
        for one in self._with_state.values():
            if isinstance(one, torch.nn.Module):
                broadcast_parameters(one.state_dict(), root)
            elif isinstance(one, torch.optim.Optimizer):
                broadcast_optimizer_state(one, root)
            else:
                one.load_state_dict(broadcast_object(one.state_dict(), root, "elastic sampler"))
        self._sync_from(root)

    def reset(self) -> None:
        for one in self._with_state.values():
            if isinstance(one, ElasticSampler):
                one.reset()


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides a data set among the ranks, and after a failure what is left of the epoch.

    Put it into the ``TorchState``, call ``record_batch`` after each batch, and ``set_epoch`` at the end of an epoch.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: nothing of it is processed."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has processed a batch of this size."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """Epoch, and how much of it is processed."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on from such a state."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide what is not processed among the ranks."""
        self.num_replicas = basics.size()
        self.rank = basics.rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        left = self.remaining_indices
        # All ranks get the same number: the first are used twice.
        padded = left + left[: self.total_size - len(left)]
        return iter(padded[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples


def run(func: Callable[..., Result]) -> Callable[..., Result]:
    """Call ``func(state, ...)`` with a state that all ranks share; again from the last commit if a rank fails.

    The failed process must come back under its rank within MLT_CONNECT_TIMEOUT: its supervisor starts it again.
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
            basics.shutdown()
            basics.init()
            state.on_reset()

    return wrapper
