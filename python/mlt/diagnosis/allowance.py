"""How many bytes ``mlt doctor --serve`` sends: to one caller, and to all together.

An examination asks for 0.5 MB over plain Ethernet and for 20 MB over loopback; whoever asks for much more does not
measure but uses this machine to flood. A caller is an IPv4 address or an IPv6 network of 64 bits, which is one host's
to choose from.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MIB = 1 << 20
CALLER_BYTES, CALLER_BYTES_PER_SECOND = 64 * MIB, 16 * MIB
ALL_BYTES, ALL_BYTES_PER_SECOND = 256 * MIB, 32 * MIB
# Those heard of longest ago are forgotten first; what all may have together holds for them as well.
MAX_CALLERS = 1_024

Clock = Callable[[], float]


@dataclass
class _Bucket:
    """Holds ``most`` bytes and fills again with time."""

    most: int
    per_second: int
    filled: float
    left: float

    def level(self, now: float) -> float:
        self.left = min(self.left + (now - self.filled) * self.per_second, self.most)
        self.filled = now
        return self.left


class Allowance:
    """What one caller may still have sent. ``is_spent``: it asked for more since its examination began."""

    refusal = (
        f"more than it sends: {CALLER_BYTES // MIB} MiB to one host and {ALL_BYTES // MIB} MiB to all, and "
        f"{CALLER_BYTES_PER_SECOND // MIB} and {ALL_BYTES_PER_SECOND // MIB} MiB per second from then on; try again in "
        "10 s"
    )

    def __init__(self, buckets: tuple[_Bucket, ...], clock: Clock) -> None:
        self._buckets = buckets
        self._clock = clock
        self.is_spent = False

    def take(self, count: int) -> bool:
        """Whether ``count`` bytes may be sent; then they count as sent."""
        now = self._clock()
        if any(bucket.level(now) < count for bucket in self._buckets):
            self.is_spent = True
            return False
        for bucket in self._buckets:
            bucket.left -= count
        return True


class Allowances:
    """Of every caller, for as long as the responder runs."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._all = _Bucket(ALL_BYTES, ALL_BYTES_PER_SECOND, clock(), ALL_BYTES)
        self._callers: OrderedDict[str, _Bucket] = OrderedDict()

    def of(self, address: str) -> Allowance:
        """For an examination that begins now."""
        key = host_of(address)
        bucket = self._callers.pop(key, None) or _Bucket(
            CALLER_BYTES, CALLER_BYTES_PER_SECOND, self._clock(), CALLER_BYTES
        )
        self._callers[key] = bucket
        if len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)
        return Allowance((bucket, self._all), self._clock)


def host_of(address: str) -> str:
    """What counts as one caller."""
    one = ipaddress.ip_address(address.partition("%")[0])
    return str(one) if one.version == 4 else str(ipaddress.ip_network((one, 64), strict=False))
