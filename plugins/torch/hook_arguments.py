"""The arguments of ``BoundedLossState``: each wrong one is an error that says what to write."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist


def check_transport(transport: object) -> None:
    """Raise TypeError for a number, a model or anything else that averages nothing."""
    if transport is None or isinstance(transport, dist.ProcessGroup) or hasattr(transport, "post_all_reduce"):
        return
    if hasattr(transport, "push_pull"):
        return
    is_bound = isinstance(transport, int | float | str) or callable(transport)
    advice = f"for a loss bound write BoundedLossState(loss_bound={transport!r})" if is_bound else "leave it out"
    if isinstance(transport, torch.nn.Module):
        advice = "leave it out: the hook is registered on the model, model.register_comm_hook(state, bounded_loss_hook)"
    raise TypeError(
        f'BoundedLossState: transport is {transport!r}; it is a process group "mlt", a mlt.Context or a '
        f"mlt.PushPull; {advice}"
    )


def check_options(*, lossy_results: Any, rotate: Any, services: Any, first_key: Any) -> None:
    """Raise ValueError for a switch that is not True or False, and for a key that is none."""
    for name, value in (("lossy_results", lossy_results), ("rotate", rotate), ("services", services)):
        if not isinstance(value, bool) and (name, value) != ("services", None):
            none = ", or None for the faster of both" if name == "services" else ""
            raise ValueError(f"{name} is {value!r}; give True or False{none}")
    if isinstance(first_key, bool) or not isinstance(first_key, int) or first_key < 0:
        raise ValueError(f"first_key is {first_key!r}; give a key of push-pull, 0 or more")


def check_norm_limits(max_norm_ratio: Any, max_dropped: Any) -> None:
    """Raise ValueError unless they are limits of ``Context.check_norms``, or None and 0."""
    is_ratio = isinstance(max_norm_ratio, int | float) and not isinstance(max_norm_ratio, bool) and max_norm_ratio > 1
    if max_norm_ratio is not None and not is_ratio:
        raise ValueError(f"max_norm_ratio is {max_norm_ratio!r}; give a number above 1, such as 100, or None")
    if isinstance(max_dropped, bool) or not isinstance(max_dropped, int) or max_dropped < 0:
        raise ValueError(f"max_dropped is {max_dropped!r}; give a number of workers, 0 or more")
    if max_dropped > 0 and max_norm_ratio is None:
        raise ValueError(f"max_dropped is {max_dropped!r} without max_norm_ratio: give both, such as 100 for it")


def check_log_every(steps: Any) -> None:
    """Raise ValueError unless ``steps`` is None or a number of steps."""
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise ValueError(f"log_every is {steps!r}; give a number of steps, 1 or more, or None for no lines in the log")


def names_of(named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> dict[int, str]:
    """Parameters' names by identity. Raises TypeError for parameters without names."""
    names = {}
    for pair in named_parameters:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise TypeError("BoundedLossState: named_parameters has no names; give it model.named_parameters()")
        names[id(pair[1])] = pair[0]
    return names


_states = itertools.count(1)  # of this process


def recorder_name() -> str:
    """The flight recorder's name of the buckets of one more state, whose numbers begin at 1 again. Ranks that make
    their states in the same order have the same names."""
    number = next(_states)
    return "bounded_loss_hook" if number == 1 else f"bounded_loss_hook {number}"
