"""Loss on links: our seeded program where the kernel can load it, else netem. Delay: ``delay_line``.

The program decides by the seed and the packet's number in its direction, whatever the timing.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

_LINK = struct.Struct("=QQ")
_COUNTER = struct.Struct("=QQ")


@dataclass(frozen=True, kw_only=True)
class LossCounters:
    """One direction of a link, in packets since the testbed was created: packets that arrived, and how many of them
    were dropped."""

    link: str
    direction: str
    loss: float
    seen: int
    lost: int
    up: bool


def seed_of(seed: int, link: str, direction: str) -> int:
    """A separate 64-bit seed for each direction."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {link} {direction}".encode(), digest_size=8).digest(), "little")


def encode(loss: float, seed: int) -> bytes:
    """``struct link``: the threshold out of 2^32 and the seed."""
    return _LINK.pack(round(loss * 2**32), seed)


def decode_counters(value: bytes) -> tuple[int, int]:
    """``struct link_counter``: packets seen and lost."""
    seen, lost = _COUNTER.unpack(value)
    return seen, lost


EMPTY_COUNTER = _COUNTER.pack(0, 0)


def host_queue(interface: str, rate: int, *, netem_loss: float = 0.0) -> list[str]:
    """tc lines of a host's own interface: it sends at the link's rate, like a NIC; netem only if requested."""
    burst = max(16_384, rate // 8000)
    lines, parent = [], "root"
    if netem_loss:
        loss = f"loss {netem_loss * 100:.6f}%"
        lines.append(f"qdisc replace dev {interface} root handle 2: netem limit 100000 {loss}")
        parent = "parent 2:1"
    # Sockets hold back their senders; the limit only prevents an unbounded queue.
    lines.append(f"qdisc replace dev {interface} {parent} handle 1: tbf rate {rate}bit burst {burst} limit 16777216")
    return lines
