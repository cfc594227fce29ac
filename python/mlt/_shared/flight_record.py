"""The file that a rank's flight recorder writes: its last calls, oldest first (``mlt.torch.recorder``)."""

from __future__ import annotations

import re
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

FILES: Final = "rank*.json"
# "ended": without anybody who looked whether it failed.
State = Literal["completed", "ended", "in progress", "failed"]


class Call(BaseModel):
    """One call. ``number``: in its group, from 1; None of sends and receives, which are not counted.

    ``began``: seconds since 1970; ``seconds``: until it ended, None if its end was not seen.
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
    """The file of one rank, written at the time ``written``, in seconds since 1970.

    ``replica``: torchft's name of this process, whose rank is then that in its last set of replicas.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: Literal[1] = 1
    rank: int
    world_size: int
    host: str
    pid: int
    written: float
    calls: list[Call]
    replica: str = ""

    @property
    def file_name(self) -> str:
        """
        >>> record = Record(rank=3, world_size=4, host="a", pid=7, written=0.0, calls=[])
        >>> record.file_name, record.model_copy(update={"replica": "train:0/1"}).file_name
        ('rank3.json', 'rank-train_0_1.json')
        """
        # A replica's rank changes, and another has it then.
        return f"rank-{re.sub(r'[^A-Za-z0-9.-]', '_', self.replica)}.json" if self.replica else f"rank{self.rank}.json"
