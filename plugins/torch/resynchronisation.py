"""``Resynchronisation``: makes replicas equal again that lossy results let drift apart, and measures how far they had.

Every rank's parameters, and the floating-point tensors of its optimizer's state, are replaced by their mean over the
ranks, or by those of one rank, in collectives that lose nothing. A mean is computed in the next wider type: in its own
float16 overflows, bfloat16 loses more than replicas drift, and equal values would change. Numbers of steps are equal
anyway, and buffers are DDP's own.
"""

from __future__ import annotations

import hashlib
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from mlt._shared.units import format_time

if TYPE_CHECKING:
    from mlt import Context, Operation

By = Literal["mean", "broadcast"]

_LIST_BYTES: Final = 4 << 20
_IN_FLIGHT: Final = 4  # lists; their copies take memory
_SLICE: Final = 1 << 22  # elements that the measurement takes at once
_WIDER: Final = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.float64: torch.float64,
}

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

    def covers(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether all of these are parameters of the model."""
        own = {id(one) for one in self._model.parameters()}
        return all(id(one) in own for one in parameters)

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
        state = [] if self._optimizer is None else list(_state_of(self._optimizer, parameters))
        self._compare([*parameters, *(one for _, one in state)], [name for name, _ in state])
        measure = _Measure()
        self._replace(parameters, measure)
        self._replace([one for _, one in state], None)
        worst = torch.tensor(measure.values(), dtype=torch.float64)
        self._maximum(worst)
        greatest, relative = worst.tolist()
        return Drift(step, greatest, relative, time.monotonic() - started)

    def _compare(self, tensors: Sequence[torch.Tensor], names: Sequence[str]) -> None:
        """Raise RuntimeError on every rank unless all have the same tensors by type and shape, and are here."""
        from mlt.errors import OperationTimeoutError

        text = repr([(str(one.dtype), tuple(one.shape)) for one in tensors] + list(names))
        own = torch.frombuffer(bytearray(hashlib.sha256(text.encode()).digest()[:8]), dtype=torch.int64)
        everyone = torch.empty(len(self._ranks), dtype=torch.int64)
        try:
            self._context.all_gather(everyone, own, ranks=self._ranks, stream=self._stream)
        except OperationTimeoutError as error:
            raise RuntimeError(
                f"a re-synchronisation waits for rank {error.peer}, which has not made the forward pass that starts "
                "it: DDP's join(), and forward passes in training mode on some ranks only, do not go together with "
                f"resynchronise_every ({error})"
            ) from None
        different = [rank for rank, one in zip(self._ranks, everyone, strict=True) if one != everyone[0]]
        if different:
            raise RuntimeError(
                f"the replicas cannot be re-synchronised: parameters or the optimizer's state of rank(s) "
                f"{', '.join(map(str, different))} are not those of rank {self._ranks[0]} by number, type or shape; "
                "look for a rank that skipped the optimizer's first step, or loaded another state"
            )

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

        for batch in _batches(tensors, self._host_type):
            hosts = [_host_copy(one, self._host_type(one)) for one in batch]
            waiting.append((self._post(hosts), hosts, batch))
            if len(waiting) == _IN_FLIGHT:
                land()
        while waiting:
            land()

    def _host_type(self, tensor: torch.Tensor) -> torch.dtype:
        real = torch.view_as_real(tensor.detach()).dtype if tensor.is_complex() else tensor.dtype
        return real if self._root is not None and real in _WIDER else _WIDER.get(real, torch.float32)

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
        self._greatest, self._squares, self._norms = 0.0, 0.0, 0.0

    def add(self, old: torch.Tensor, new: torch.Tensor) -> None:
        pairs = zip(torch.split(old.detach().reshape(-1), _SLICE), torch.split(new.reshape(-1), _SLICE), strict=True)
        for one, other in pairs:
            # In float64, because the squares of many small differences are summed.
            difference = (one - other).abs()
            figures = torch.stack(
                [
                    difference.max().double(),
                    torch.linalg.vector_norm(difference, dtype=torch.float64),
                    torch.linalg.vector_norm(other.abs(), dtype=torch.float64),
                ]
            )
            greatest, norm, new_norm = figures.tolist()
            if math.isnan(greatest) or greatest > self._greatest:  # a NaN stays one
                self._greatest = greatest
            self._squares += norm**2
            self._norms += new_norm**2

    def values(self) -> list[float]:
        return [self._greatest, (self._squares / self._norms) ** 0.5 if self._norms > 0 else self._squares**0.5]


def _state_of(
    optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Floating-point tensors of the optimizer's state by parameter and name, in the same order on every rank.

    Numbers of steps, which some optimizers keep in tensors, are not among them.
    """
    for index, parameter in enumerate(parameters):
        state = optimizer.state.get(parameter, {})
        for name in sorted(state):
            value = state[name]
            is_number = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
            if is_number and name != "step" and (value.numel() > 1 or parameter.numel() == 1):
                yield f"{index}.{name}", value


def _batches(
    tensors: Sequence[torch.Tensor], host_type: Callable[[torch.Tensor], torch.dtype]
) -> Iterator[list[torch.Tensor]]:
    """Those of one type in their order, at most ``_LIST_BYTES`` together or one alone."""
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            by_type.setdefault(host_type(tensor), []).append(tensor)
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


def _host_copy(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    data = tensor.detach()
    real = torch.view_as_real(data.resolve_conj()) if data.is_complex() else data
    return real.to(device="cpu", dtype=dtype, copy=True).contiguous()
