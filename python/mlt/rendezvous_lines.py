"""What callers say to rank 0 at the rendezvous, as strict models, and the limits on it.

    caller   {"mlt_rendezvous": 2, "nonce": ...}                    an opening
    rank 0   {"mlt_rendezvous": 2, "nonce": ..., "proof": ...}      its own, with the proof that it knows the secret
    caller   {"content": "{rank, size, job, ...}", "proof": ...}    an announcement
    rank 0   {"content": "{ranks, or error and text}", "proof": ...}

Only rank 0 imports this: it is what reads a stranger's bytes, so every field has a type and a range.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

MAX_LINE_BYTES = 8_192

_Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Rank = Annotated[int, Field(ge=0, lt=2**16)]
_CodePoint = Annotated[int, Field(ge=0, lt=64)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class Opening(_Strict):
    """The first line. Later releases may add fields and change every one but the version."""

    mlt_rendezvous: Annotated[int, Field(ge=0, lt=2**31)]
    nonce: str = ""


class Nonce(_Strict):
    """What an opening of this version holds."""

    mlt_rendezvous: Literal[2]
    nonce: _Nonce


class Proved(_Strict):
    """A line with its proof. ``content`` is read only once the proof was found good."""

    content: Annotated[str, Field(max_length=MAX_LINE_BYTES)]
    proof: _Nonce


class Announcement(_Strict):
    """The place of a rank in its job, and where it listens."""

    job: Annotated[str, Field(min_length=1)]
    rank: _Rank
    size: _Rank
    services: _Rank
    host: Annotated[str, Field(min_length=1, max_length=255)]
    port: Annotated[int, Field(ge=1, lt=2**16)]
    dscp: Annotated[list[_CodePoint], Field(min_length=2, max_length=9)] = []  # of control, then data; [] if not said


OPENING = TypeAdapter(Opening)
NONCE = TypeAdapter(Nonce)
PROVED = TypeAdapter(Proved)
ANNOUNCEMENT = TypeAdapter(Announcement)
