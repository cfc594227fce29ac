"""Asynchronous training, which BYTEPS_ENABLE_ASYNC=1 asks for: no worker waits for another's step.

The workers hold a sum among themselves, each a part: the initial parameters and all changes of all workers since. A
step applies the optimizer to this worker's own gradients, adds the change of the parameters to the sum, and continues
with the sum as of then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlt.torch.horovod.compression import Compression, Compressor
from mlt.torch.horovod.optimizer import Named, StepCommunicates

import torch
from mlt._named import job
from mlt._named.elements import Bytes
from mlt._named.shared_sum import SharedSum

Parameter = torch.Tensor

_TYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64"}


def optimizer_of(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Parameter]] | None,
    compression: type[Compressor],
    backward_passes_per_step: int,
) -> Any:
    """The optimizer whose steps are added to the sum of all workers; an instance of its class too.

    Raises ValueError for parameters that are not of floating point, compression, and a wrong number of passes.
    """
    if compression is not Compression.none:
        raise ValueError("asynchronous training (BYTEPS_ENABLE_ASYNC=1) has no compression: leave it out")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    base: Any = type(optimizer)
    made: Any = object.__new__(type(base.__name__, (_Asynchronous, base), {}))
    made.__dict__.update({name: one for name, one in vars(optimizer).items() if name not in ("step", "zero_grad")})
    made._named = Named(optimizer, named_parameters)
    wrong = [name for one, name in made._named.names.items() if one.requires_grad and one.dtype not in _TYPES]
    if wrong:
        raise ValueError(f"asynchronous training needs parameters of floating point; {wrong[0]!r} has another type")
    made.backward_passes_per_step = backward_passes_per_step
    made._sums = []
    return made


class _Asynchronous(StepCommunicates):
    _sums: list[tuple[SharedSum, list[Parameter]]]  # by element type; empty before the first step in this job
    _skip_error = "skip_synchronize cannot be used in asynchronous training: gradients are not averaged"

    def step(self, closure: Any = None) -> Any:
        """Apply this worker's gradients to the parameters of all workers.

        The first step waits for that of all workers, and raises RejectedError if their parameters differ. Raises
        EndedError if a worker is gone.
        """
        own = job.controller()
        if own.size == 1:
            return super().step(closure)
        if not self._sums or self._sums[0][0].controller is not own:
            self._begin()
        starts = [_flat(parameters) for _, parameters in self._sums]
        loss = super().step(closure)
        for (shared, parameters), start in zip(self._sums, starts, strict=True):
            current = torch.from_numpy(shared.exchange(_bytes(_flat(parameters) - start))).view(start.dtype)
            at = 0
            with torch.no_grad():
                for one in parameters:
                    one.copy_(current[at : at + one.numel()].view(one.shape))
                    at += one.numel()
        return loss

    def add_param_group(self, param_group: Any) -> None:
        if getattr(self, "_sums", None):
            raise RuntimeError("add_param_group() is not possible after the first asynchronous step: call it before")
        super().add_param_group(param_group)

    def _begin(self) -> None:
        """Wait for all workers: they begin with the same parameters."""
        sums = []
        by_type: dict[torch.dtype, list[Parameter]] = {}
        for group in self.param_groups:
            for one in group["params"]:
                if one.requires_grad:
                    by_type.setdefault(one.dtype, []).append(one)
        for dtype, parameters in sorted(by_type.items(), key=lambda one: _TYPES[one[0]]):
            listed = ", ".join(f"{self._named.names.get(one, 'unnamed')} {tuple(one.shape)}" for one in parameters)
            shared = SharedSum(job.controller(), _bytes(_flat(parameters)), _TYPES[dtype], listed)
            sums.append((shared, parameters))
        self._sums = sums


def _flat(parameters: list[Parameter]) -> torch.Tensor:
    """A copy of these parameters, one after another, in memory of the host."""
    return torch.cat([one.detach().reshape(-1).cpu() for one in parameters])


def _bytes(tensor: torch.Tensor) -> Bytes:
    array: Bytes = tensor.view(torch.uint8).numpy()
    return array
