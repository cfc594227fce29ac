"""``start``: an operation by name on the tensors of any framework."""

from __future__ import annotations

from typing import Any, Protocol

from mlt._named import job
from mlt._named.controller import Handle
from mlt._named.execution import Tensors
from mlt._named.process_sets import ProcessSet, set_id
from mlt._named.reduce_ops import ReduceOp
from mlt._named.requests import Kind, Request, Spec


class Described(Tensors, Protocol):
    """Tensors that know their element types and shapes."""

    @property
    def specs(self) -> tuple[Spec, ...]: ...


def start(
    kind: Kind, held: Described, name: str | None, process_set: ProcessSet, op: ReduceOp | None = None, **options: Any
) -> Handle:
    """Start an operation; the caller waits for it. ``name`` None: one from the count. ``options``: of ``Request``.

    Raises ValueError if an operation of this name is in progress, EndedError after the end of the job.
    """
    own, number = job.controller(), set_id(process_set)
    request = Request(
        kind,
        own.name(kind, number) if name is None else name,
        held.specs,
        set_id=number,
        op="" if op is None else ReduceOp(op).name.lower(),
        **options,
    )
    return own.submit(request, held)
