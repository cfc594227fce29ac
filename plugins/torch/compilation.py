"""Keeps ``torch.compile`` out of this plugin.

Dynamo traces every Python function that compiled code calls: also the group's verbs, works and hooks, which torch calls
from C++ inside the forward pass of a compiled DistributedDataParallel, and fails in them. torch.compiler.disable would
import Dynamo, which takes seconds: the marks here are those that it sets.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

try:
    from torch._C._dynamo import eval_frame
except ImportError:  # not an interface that torch promises; without it only compiled DistributedDataParallel fails
    eval_frame = None  # type: ignore[assignment]

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)

_REASON = "a call of the backend mlt is not compiled"


def untraced(function: Function) -> Function:
    """Let Dynamo run ``function``, and all that it calls, as it is. Returns the same function."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # where a traced frame calls it
    function._torchdynamo_disable_msg = _REASON  # type: ignore[attr-defined]
    with suppress(AttributeError):
        skip = eval_frame._FrameAction.SKIP  # where code that is not traced calls it, in C++ for example
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
    return function


def untraced_class(cls: Class) -> Class:
    """The same for each method and property that ``cls`` itself defines. Returns the same class."""
    for member in tuple(vars(cls).values()):
        for found in _functions_of(member):
            untraced(found)
    return cls


def _functions_of(member: object) -> list[types.FunctionType]:
    if isinstance(member, property):
        return [found for found in (member.fget, member.fset) if isinstance(found, types.FunctionType)]
    if isinstance(member, staticmethod | classmethod):
        member = member.__func__
    return [member] if isinstance(member, types.FunctionType) else []
