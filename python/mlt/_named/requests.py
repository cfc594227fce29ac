"""``Request``, what a rank wants to do under a name, and ``Answer``, what all ranks of its process set then do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from mlt._named import elements

Kind = Literal[
    "allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier", "join", "add_set", "remove_set",
    "missing", "waits",
]  # fmt: skip
Spec = tuple[str, tuple[int, ...]]
"""Element type and shape of a tensor."""

GLOBAL_SET: Final = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One operation of one rank. ``tensors`` has several entries for a grouped operation, which is one request; those
    of a "barrier" are compared only.

    ``root``: rank in the job. ``splits`` of an alltoall: rows for each rank of the set, None for equal parts.
    "missing" is a question to the coordinator: which ranks did not submit ``name`` yet, whose kind is ``op``.
    ``bound``: loss bound. ``ranks``: of a process set to add. ``priority``: of those that are ready at the same time,
    the highest is first; that of the set's first rank counts. ``layer`` of ``layers``: 0 is the front layer, which the
    transport sends first; those of the set's first rank count. "waits" is no operation either: the rank has waited for
    those with the keys ``waits`` for some time, and could submit more in the threads ``others`` only, as of when it had
    submitted ``submitted`` operations. ``sparse``: positions of sparse gradients; compared only.
    """

    kind: Kind
    name: str
    tensors: tuple[Spec, ...] = ()
    set_id: int = GLOBAL_SET
    op: str = ""
    root: int = -1
    prescale: float = 1.0
    postscale: float = 1.0
    splits: tuple[int, ...] | None = None
    bound: float = 0.0
    ranks: tuple[int, ...] = ()
    priority: int = 0
    layer: int = 0
    layers: int = 1
    waits: tuple[tuple[int, str], ...] = ()
    others: tuple[str, ...] = ()
    submitted: int = 0
    sparse: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[int, str]:
        """The key by which the requests of different ranks are matched."""
        return self.set_id, self.name

    @property
    def bytes(self) -> int:
        """Size of its tensors."""
        return sum(elements.elements(shape) * elements.item_bytes(dtype) for dtype, shape in self.tensors)

    def to_json(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in fields.items() if value != _DEFAULTS.get(name, _MISSING)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Request:
        return cls(**{name: _tuples(value) for name, value in fields.items()})


@dataclass(frozen=True, slots=True)
class Answer:
    """The action of the ranks of a process set for one name. ``request``: of its first rank that has not joined.

    ``rows``: of an allgather, by tensor and rank of the set, the length of the first dimension; of an alltoall, by
    sender and receiver. ``cache_id``: number under which later answers that are the same are sent, or -1. ``error``:
    not empty if the requests disagree. ``number``: the new process set, or the rank that joined last.
    """

    request: Request
    rows: tuple[tuple[int, ...], ...] = ()
    cache_id: int = -1
    error: str = ""
    number: int = -1

    def to_json(self) -> dict[str, Any]:
        return {
            "request": self.request.to_json(),
            "rows": self.rows,
            "cache_id": self.cache_id,
            "error": self.error,
            "number": self.number,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Answer:
        others: dict[str, Any] = {name: _tuples(value) for name, value in fields.items() if name != "request"}
        return cls(Request.from_json(fields["request"]), **others)

    def cached_as(self, cache_id: int) -> Answer:
        """This answer under a number of the cache."""
        return replace(self, cache_id=cache_id)


_MISSING: Final = object()
_DEFAULTS: Final[dict[str, Any]] = {
    name: getattr(Request(kind="barrier", name=""), name) for name in Request.__slots__ if name not in ("kind", "name")
}


def _tuples(value: Any) -> Any:
    """JSON's lists as tuples, at every depth."""
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value
