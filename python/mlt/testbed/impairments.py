"""Loss on links: our seeded program where the kernel can load it, else netem. Delay: ``delay_line``.

The program decides by the packet's number in its direction, whatever the timing: ``expected_losses`` gives the result.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
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


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def is_lost(loss: float, seed: int, number: int) -> bool:
    """Whether packet ``number`` (from 0) of a direction is lost: the arithmetic of link_loss.bpf.c."""
    return _mix((seed + (number + 1) * _GOLDEN) & _MASK) >> 32 < round(loss * 2**32)


def expected_losses(loss: float, seed: int, packets: int) -> int:
    """Number of losses among the first ``packets``."""
    return sum(is_lost(loss, seed, number) for number in range(packets))


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
