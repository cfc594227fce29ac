"""``ReduceOp``: how the ranks' elements are combined."""

from __future__ import annotations

import warnings
from enum import IntEnum
from typing import Final


class ReduceOp(IntEnum):
    """The function that combines the ranks' elements. The numbers are Horovod's."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average: Final = ReduceOp.Average
Sum: Final = ReduceOp.Sum
Adasum: Final = ReduceOp.Adasum
Min: Final = ReduceOp.Min
Max: Final = ReduceOp.Max
Product: Final = ReduceOp.Product


def check_lossy(op: ReduceOp) -> None:
    """Raise ValueError for a reduction of gradients that cannot have a loss bound."""
    if op not in (Average, Sum):
        raise ValueError(f"loss_bound needs op Average or Sum, whose terms may be missing, not {op.name}")


def chosen_op(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    """The reduction from the arguments ``op`` and, as long ago, ``average``."""
    if op is not None:
        if average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        return op
    if average is None:
        return Average
    warnings.warn(
        "Parameter `average` has been replaced with `op` and will be removed in v1.0", DeprecationWarning, stacklevel=3
    )
    return Average if average else Sum
