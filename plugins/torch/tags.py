"""Tags of one process group's transfers.

Bit 62 separates this plugin's from the small tags of programs, bit 61 point-to-point from monitored barriers; 29 bits
are the group. The rest is the user's tag, or a position in the ring that the barriers reuse: the transport keeps the
state of every tag, so a call cannot have a tag of its own. Collectives have the transport's, by the group's stream.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

_SPACE: Final = 1 << 62
_POINT_TO_POINT: Final = 1 << 61
_BARRIERS: Final = 1 << 31  # monitored ones, which may fail without the others
_GROUP_SHIFT: Final = 32
_HASHED_GROUP: Final = 1 << 28
_STREAMS: Final = 1 << 30  # of native collectives; the program's own streams are small numbers

_names: dict[int, str] = {}


class GroupTags:
    """The first tag of each kind, and the stream of a group's native collectives, for the group ``name``.

    Raises ValueError if another group of this process has the same number.
    """

    def __init__(self, name: str) -> None:
        number = _number(name)
        group = _SPACE | number << _GROUP_SHIFT
        self.point_to_point: Final = group | _POINT_TO_POINT
        self.barriers: Final = group | _BARRIERS
        self.stream: Final = _STREAMS | number


def with_user_tags(text: str) -> str:
    """A text of the transport about sends and receives, with the tags that the program gave.

    >>> with_user_tags(f"send of tag {_SPACE | _POINT_TO_POINT | 5} failed")
    'send of tag 5 failed'
    """
    return re.sub(r"\btag (\d{18,20})\b", lambda found: f"tag {_user_tag(int(found[1]))}", text)


def _user_tag(tag: int) -> int:
    is_transfer = tag & _SPACE and tag & _POINT_TO_POINT
    return tag & ((1 << _GROUP_SHIFT) - 1) if is_transfer else tag


def _number(name: str) -> int:
    """The group's number in tags: torch's own where it numbers groups, else 28 bits of a hash; a collision is rejected.

    Ranks must agree on it without communication. Each rank knows only its own groups, so counting them is not possible.
    """
    if name.isascii() and name.isdigit() and int(name) < _HASHED_GROUP:
        return int(name)
    number = _HASHED_GROUP | int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % _HASHED_GROUP
    other = _names.setdefault(number, name)
    if other != name:
        raise ValueError(f"mlt: process groups {other!r} and {name!r} would share their tags; rename one")
    return number
