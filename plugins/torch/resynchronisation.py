"""``Resynchronisation``: makes replicas equal again that lossy results let drift apart, and measures how far they had.

Every rank's parameters, and the floating-point tensors of its optimizer, are replaced by their mean over the ranks, or
by those of one rank, in exact collectives. Integers of the optimizer's state (steps) are equal anyway, and buffers are
DDP's own.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from mlt._shared.units import format_time

if TYPE_CHECKING:
    from mlt import Context, Operation

By = Literal["mean", "broadcast"]

_LIST_BYTES: Final = 4 << 20
_IN_FLIGHT: Final = 4  # lists; their copies take memory
_AVERAGED: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

# Models whose replicas may differ between re-synchronisations.
_drifting: Final[weakref.WeakSet[torch.nn.Module]] = weakref.WeakSet()


def may_drift(model: torch.nn.Module) -> bool:
    """Whether the replicas of ``model`` may differ, because a hook with lossy results averages its gradients."""
    return model in _drifting


@dataclass(frozen=True)
class Drift:
    """Distance of the replicas before a re-synchronisation, over all ranks; equal on every rank.

    ``step``: backward passes before it. ``greatest``: the largest absolute difference between an element of a rank's
    parameters and what all ranks have afterwards. ``relative``: of the rank where it is largest, the norm of these
    differences over that of the parameters. ``seconds``: how long it took on this rank.
    """

    step: int
    greatest: float
    relative: float
    seconds: float

    def __str__(self) -> str:
        """One line for a log.

        >>> print(Drift(100, 0.00125, 0.0004, 0.03))
        replicas re-synchronised after 100 steps: parameters differed by up to 0.00125, 0.04 % of their norm; took 30 ms
        """
        return (
            f"replicas re-synchronised after {self.step} steps: parameters differed by up to {self.greatest:.3g}, "
            f"{100 * self.relative:.2g} % of their norm; took {format_time(self.seconds)}"
        )


class Resynchronisation:
    """Re-synchronises the replicas of ``model`` on the ranks of ``context``; ``root``: the rank that ``by="broadcast"``
    takes."""

    def __init__(
        self,
        context: Context,
        ranks: Sequence[int] | None,
        stream: int,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        by: By,
        root: int,
    ) -> None:
        if by not in ("mean", "broadcast"):
            raise ValueError(f'by is {by!r}; it is "mean" or "broadcast"')
        members = list(range(context.world_size)) if ranks is None else list(ranks)
        if not 0 <= root < len(members):
            raise ValueError(f"root is {root}; the group's ranks are 0 to {len(members) - 1}")
        self._context, self._ranks, self._stream = context, members, stream
        self._model, self._optimizer = model, optimizer
        self._root = members[root] if by == "broadcast" else None

    def mark_drifting(self) -> None:
        """Let ``verify_replicas`` know that the replicas may differ, also of the model inside DDP's."""
        _drifting.add(self._model)
        inner = getattr(self._model, "module", None)
        if isinstance(inner, torch.nn.Module):
            _drifting.add(inner)

    @torch.no_grad()
    def run(self, step: int) -> Drift:
        """Make the replicas equal. A collective of all ranks, which blocks."""
        started = time.monotonic()
        parameters = [one for one in self._model.parameters() if one.requires_grad]
        measure = _Measure()
        self._replace(parameters, measure)
        if self._optimizer is not None:
            self._replace(list(_state_of(self._optimizer, parameters)), None)
        worst = torch.tensor(measure.values(), dtype=torch.float64)
        self._maximum(worst)
        greatest, relative = worst.tolist()
        return Drift(step, greatest, relative, time.monotonic() - started)

    def _replace(self, tensors: Sequence[torch.Tensor], measure: _Measure | None) -> None:
        waiting: deque[tuple[Operation, list[torch.Tensor], list[torch.Tensor]]] = deque()

        def land() -> None:
            operation, hosts, originals = waiting.popleft()
            operation.wait()
            for host, original in zip(hosts, originals, strict=True):
                new = torch.view_as_complex(host) if original.is_complex() else host
                new = new.to(device=original.device, dtype=original.dtype)
                if measure is not None:
                    measure.add(original, new)
                original.copy_(new)

        for batch in _batches(tensors):
            hosts = [_host_copy(one) for one in batch]
            waiting.append((self._post(hosts), hosts, batch))
            if len(waiting) == _IN_FLIGHT:
                land()
        while waiting:
            land()

    def _post(self, hosts: list[torch.Tensor]) -> Operation:
        group: dict[str, Any] = {"ranks": self._ranks, "stream": self._stream}
        if self._root is not None:
            return self._context.post_broadcast(hosts, root=self._root, **group)
        return self._context.post_all_reduce(hosts, **group)

    def _maximum(self, values: torch.Tensor) -> None:
        from mlt import Reduction  # loads the native library, which importing torch must not

        self._context.all_reduce(values, op=Reduction.MAX, ranks=self._ranks, stream=self._stream)


class _Measure:
    """The greatest difference of tensors from their replacements, and the norm of all over the replacements'."""

    def __init__(self) -> None:
        self._greatest: list[torch.Tensor] = []
        self._squares: list[torch.Tensor] = []
        self._norms: list[torch.Tensor] = []

    def add(self, old: torch.Tensor, new: torch.Tensor) -> None:
        # In float64, because the squares of many small differences are summed.
        differences = (old.detach() - new).abs().double()
        self._greatest.append(differences.max().cpu())
        self._squares.append(differences.square().sum().cpu())
        self._norms.append(new.abs().double().square().sum().cpu())

    def values(self) -> list[float]:
        if not self._greatest:
            return [0.0, 0.0]
        differences, norm = torch.stack(self._squares).sum().sqrt(), torch.stack(self._norms).sum().sqrt()
        relative = differences / norm if norm > 0 else differences
        return [float(torch.stack(self._greatest).max()), float(relative)]


def _state_of(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Floating-point tensors of the optimizer's state, in the same order on every rank."""
    for parameter in parameters:
        state = optimizer.state.get(parameter, {})
        for name in sorted(state):
            value = state[name]
            if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
                yield value


def _batches(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Those of one type in their order, at most ``_LIST_BYTES`` together or one alone."""
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            by_type.setdefault(_host_type(tensor), []).append(tensor)
    for same in by_type.values():
        batch: list[torch.Tensor] = []
        size = 0
        for tensor in same:
            if batch and size + tensor.nbytes > _LIST_BYTES:
                yield batch
                batch, size = [], 0
            batch.append(tensor)
            size += tensor.nbytes
        yield batch


def _host_type(tensor: torch.Tensor) -> torch.dtype:
    real = torch.view_as_real(tensor.detach()).dtype if tensor.is_complex() else tensor.dtype
    return real if real in _AVERAGED else torch.float32


def _host_copy(tensor: torch.Tensor) -> torch.Tensor:
    data = tensor.detach()
    real = torch.view_as_real(data.resolve_conj()) if data.is_complex() else data
    return real.to(device="cpu", dtype=_host_type(tensor), copy=True).contiguous()
