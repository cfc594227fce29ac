"""Reduce operations of c10d as reductions of the transport, and tensors in the form that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from mlt._gradients.loss import Allowance

# Names of mlt.Reduction, whose import would load the native library: importing torch must not.
_NAMES: Final[dict[Any, str]] = {
    dist.ReduceOp.SUM: "SUM",
    dist.ReduceOp.AVG: "MEAN",
    dist.ReduceOp.PRODUCT: "PRODUCT",
    dist.ReduceOp.MIN: "MIN",
    dist.ReduceOp.MAX: "MAX",
    dist.ReduceOp.BAND: "AND",
    dist.ReduceOp.BOR: "OR",
    dist.ReduceOp.BXOR: "XOR",
    dist.ReduceOp.PREMUL_SUM: "SUM",  # of tensors that each rank multiplies by its factor first (factor_of)
}
LOSSY: Final = ("SUM", "MEAN")
_SENT: Final = frozenset(
    getattr(torch, name)
    for name in (
        *("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
        *("uint16", "uint32", "uint64", "bool"),
    )
)
_BITWISE: Final = ("AND", "OR", "XOR")
# Tensors of up to this size are faster in one list than each on its own, and a list is not longer than that: others
# overlap it (docs/collectives.md, lists of tensors).
LISTED_BYTES: Final = 64 << 10
LIST_BYTES: Final = 4 << 20


def reduction_of(opts: Any, tensors: Sequence[torch.Tensor], call: str) -> str:
    """The name of a call's ``mlt.Reduction``; raises ValueError or TypeError for what these tensors do not have."""
    operation = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
    name = next((name for known, name in _NAMES.items() if operation == known), None)
    if name is None:
        names = "SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR or PREMUL_SUM"
        raise ValueError(f"mlt {call}: unknown reduce operation {operation}; use {names}")
    if operation == dist.ReduceOp.PREMUL_SUM:
        factor_of(opts, call)
        if any(map(_is_integer, tensors)):
            raise TypeError(f"mlt {call}: PREMUL_SUM needs tensors of floating point; multiply integers, then use SUM")
    for tensor in tensors:
        is_real = tensor.is_floating_point()
        if name == "MEAN" and tensor.dtype == torch.bool:
            raise TypeError(f"mlt {call}: AVG needs tensors of numbers, not bool")
        if name in _BITWISE and (is_real or tensor.is_complex()):
            raise TypeError(
                f"mlt {call}: {_label(operation)} combines bits, and a tensor is {tensor.dtype}: it needs integers or "
                "bool; floating point has SUM, AVG, PRODUCT, MIN, MAX and PREMUL_SUM"
            )
        if tensor.is_complex() and name not in LOSSY:
            raise TypeError(f"mlt {call}: complex tensors have SUM and AVG only, not {_label(operation)}")
    if name == "MEAN" and (integers := sum(map(_is_integer, tensors))):
        if integers < len(tensors):
            raise TypeError(f"mlt {call}: AVG of integers and other tensors in one call; make it two")
        return "SUM"  # divided here, by divisor_of
    return name


class Terms:
    """The reduction of one call's tensors, and what they may lose. ``observe``: gets each completion."""

    def __init__(
        self, reduction: str, ranks: Sequence[int], stream: int, seconds: float | None, allowed: Allowance
    ) -> None:
        self._reduction = reduction
        self._ranks = ranks
        self._stream = stream
        self._seconds = seconds
        self._allowed = allowed
        self.observe = allowed.observe

    def are_results_lossy(self, tensor: torch.Tensor) -> bool:
        """Whether the results of the all-reduce of ``tensor`` may lose as much as its sums."""
        return self._allowed.lossy_results and tensor.is_floating_point()

    def of(self, tensor: torch.Tensor) -> dict[str, Any]:
        """Arguments of the reduction of ``tensor``, as it is posted."""
        from mlt import Reduction  # loads the native library, which importing torch must not

        found = {
            "op": Reduction[self._reduction],
            "ranks": self._ranks,
            "stream": self._stream,
            "timeout": self._seconds,
        }
        if tensor.is_floating_point():
            allowed = self._allowed
            found |= {"loss_bound": allowed.bound, "layer": allowed.layer, "layers": allowed.layers}
        return found


def divisor_of(opts: Any, tensors: Sequence[torch.Tensor], size: int) -> int:
    """The divisor of this call's sums of integers: the transport averages no integers. NCCL rounds towards zero, and so
    does this."""
    return size if opts is not None and opts.reduceOp == dist.ReduceOp.AVG and any(map(_is_integer, tensors)) else 1


def _label(operation: Any) -> str:
    """The name of an operation in ``ReduceOp``."""
    known = next(one for one in _NAMES if operation == one)
    return str(known).rpartition(".")[2]


def factor_of(opts: Any, call: str) -> float:
    """The factor of this rank's tensors before the reduction: PREMUL_SUM's factor, else 1. A factor in a tensor is read
    now. Raises ValueError or TypeError for one that is not a real number in host memory."""
    if opts is None or opts.reduceOp != dist.ReduceOp.PREMUL_SUM:
        return 1.0
    state = opts.reduceOp.__getstate__()  # c10d has no other accessor
    factor = state[1] if isinstance(state, tuple) else None  # else it is the enumerator, which has none
    if isinstance(factor, torch.Tensor):
        if factor.is_complex():  # c10d has checked that it is one number
            raise ValueError(f"mlt {call}: PREMUL_SUM's factor is {factor.dtype}; give a real number")
        if factor.device.type != "cpu":
            raise TypeError(f"mlt {call}: PREMUL_SUM's factor is a tensor on {factor.device}; give factor.item()")
        return float(factor)
    if factor is None:
        raise ValueError(
            f"mlt {call}: PREMUL_SUM has no factor; make it with torch.distributed._make_nccl_premul_sum(factor)"
        )
    return float(factor)


def multiplied(data: torch.Tensor, factor: float) -> torch.Tensor:
    """A product in new memory, in the tensor's type; ``data`` itself if the factor is 1."""
    return data if factor == 1.0 else data * factor


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def as_elements(tensor: torch.Tensor) -> torch.Tensor:
    """A flat view of a contiguous CPU tensor, which the transport sends with its type, so that a receive of another is
    an error; of bytes, if the transport has no such type. Shares its memory."""
    flat = tensor if tensor.dim() == 1 else tensor.view(-1)
    flat = flat.detach() if flat.requires_grad else flat
    return flat if flat.dtype in _SENT else flat.view(torch.uint8)


def in_lists(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The tensors that have elements, in lists of one type of which each becomes one collective: small ones together,
    others alone. Ranks whose tensors have the same sizes and types get the same lists."""
    lists: list[list[torch.Tensor]] = []
    open_lists: dict[torch.dtype, tuple[list[torch.Tensor], int]] = {}
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if not 0 < size <= LISTED_BYTES:
            lists += [[tensor]] if size else []
            continue
        listed, listed_bytes = open_lists.get(tensor.dtype, ([], LIST_BYTES))
        if listed_bytes + size > LIST_BYTES:
            lists.append(listed := [])
            listed_bytes = 0
        listed.append(tensor)
        open_lists[tensor.dtype] = listed, listed_bytes + size
    return lists


class Landing:
    """A tensor as the transport takes it: real and contiguous. ``data`` shares its memory where it can, else a copy."""

    def __init__(self, tensor: torch.Tensor) -> None:
        # Every operation on a tensor takes about as long as the transport needs for a short message.
        self._tensor = tensor.detach() if tensor.requires_grad else tensor
        if tensor.is_contiguous() and not tensor.is_complex():
            self.data, self._is_copy = self._tensor, False
            return
        real = torch.view_as_real(self._tensor.resolve_conj()) if tensor.is_complex() else self._tensor
        self.data = real.contiguous()
        self._is_copy = self.data.data_ptr() != self._tensor.data_ptr() or self._tensor.is_conj()

    def land(self, divisor: int = 1) -> None:
        """Divide ``data``, if the divisor is not 1, and copy it back if it is a copy."""
        if divisor != 1:
            torch.div(self.data, divisor, rounding_mode="trunc", out=self.data)
        if self._is_copy:
            with torch.no_grad():
                self._tensor.copy_(torch.view_as_complex(self.data) if self._tensor.is_complex() else self.data)
