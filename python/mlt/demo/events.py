"""Events from the processes of a run to their parent: one JSON object per line on a separate socket.

These lines serve only the display and the report; all training data goes over the transport.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int


class Ready(_Event):
    """Connected to all ranks and about to train (or to serve)."""

    kind: Literal["ready"] = "ready"
    parameters: int = 0


class StepDone(_Event):
    """One training step of one worker.

    ``loss`` and ``accuracy`` are those of this worker's batch. ``seconds`` is the whole step. ``sync_seconds`` runs
    from the first bucket's push to the last bucket's average, ``exposed_seconds`` from the last bucket's push.
    ``bytes`` were pushed by this worker, ``missing_bytes`` of them are missing; ``repairs`` counts segments sent again.
    """

    kind: Literal["step"] = "step"
    step: int
    loss: float
    accuracy: float
    seconds: float
    sync_seconds: float
    exposed_seconds: float
    buckets: int
    bytes: int
    missing_bytes: int
    repairs: int


class Evaluated(_Event):
    """Accuracy on ``images`` test images after ``step`` steps, over all workers."""

    kind: Literal["evaluated"] = "evaluated"
    step: int
    images: int
    accuracy: float


class Finished(_Event):
    """The process has finished. ``counters`` are those of its endpoint and datapath, by name.

    ``parameters_sha256`` is the digest of a worker's final parameters: equal digests are equal bits.
    """

    kind: Literal["finished"] = "finished"
    counters: dict[str, int]
    parameters_sha256: str | None = None
    test_accuracy: float | None = None


Event = Annotated[Ready | StepDone | Evaluated | Finished, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[Event] = TypeAdapter(Event)


def event_of(message: dict[str, Any]) -> Event:
    """The event in a message; raises pydantic.ValidationError for anything else."""
    return _ADAPTER.validate_python(message)
