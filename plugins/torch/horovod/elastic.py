"""Elastic training with PyTorch: the states of modules, optimizers and samplers, beside those of every framework."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator, Sized
from typing import Any

from mlt.torch.horovod.functions import broadcast_optimizer_state, broadcast_parameters

import torch
from mlt._named import basics
from mlt._named.elastic import HostsUpdatedInterrupt, ObjectState, State, run
from mlt._named.objects import broadcast_object

__all__ = ["ElasticSampler", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState", "run"]


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
        """Continue from such a state."""
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
