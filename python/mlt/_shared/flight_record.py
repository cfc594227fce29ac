"""The file that a rank's flight recorder writes: its last calls, oldest first (``mlt.torch.recorder``)."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

FILES: Final = "rank*.json"
# "ended": without anybody who looked whether it failed.
State = Literal["completed", "ended", "in progress", "failed"]


class Call(BaseModel):
    """One call. ``number``: in its group, from 1; None of sends and receives, which are not counted.

    ``began``: seconds since 1970; ``seconds``: until it ended, None if nobody has seen the end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    call: str
    group: str
    number: int | None
    bytes: int
    types: list[str]
    began: float
    seconds: float | None
    state: State
    error: str | None


class Record(BaseModel):
    """The file of one rank, written at the time ``written``, in seconds since 1970."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: Literal[1] = 1
    rank: int
    world_size: int
    host: str
    pid: int
    written: float
    calls: list[Call]

    @property
    def file_name(self) -> str:
        """
        >>> Record(rank=3, world_size=4, host="a", pid=7, written=0.0, calls=[]).file_name
        'rank3.json'
        """
        return f"rank{self.rank}.json"
