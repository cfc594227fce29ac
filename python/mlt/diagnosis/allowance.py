"""Limits the bytes that ``mlt doctor --serve`` sends: per client, and in total.

An examination needs 0.5 MB over plain Ethernet and 20 MB over loopback; a client that requests much more is not
measuring but uses this host to flood. A client is an IPv4 address or an IPv6 /64, within which one host can choose its
addresses.
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
# Clients are forgotten in order of their last request; the total limit covers them as well.
MAX_CALLERS = 1_024

Clock = Callable[[], float]


@dataclass
class _Bucket:
    """Token bucket of at most ``maximum`` bytes, refilled over time."""

    maximum: int
    per_second: int
    filled: float
    left: float

    def level(self, now: float) -> float:
        self.left = min(self.left + (now - self.filled) * self.per_second, self.maximum)
        self.filled = now
        return self.left


class Allowance:
    """Bytes that one client may still have sent. ``is_spent``: it requested more since its examination began."""

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
        """Whether ``count`` bytes may be sent; if so, they count as sent."""
        now = self._clock()
        if any(bucket.level(now) < count for bucket in self._buckets):
            self.is_spent = True
            return False
        for bucket in self._buckets:
            bucket.left -= count
        return True


class Allowances:
    """Allowances of all clients, for the lifetime of the responder."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._all = _Bucket(ALL_BYTES, ALL_BYTES_PER_SECOND, clock(), ALL_BYTES)
        self._callers: OrderedDict[str, _Bucket] = OrderedDict()

    def of(self, address: str) -> Allowance:
        """The allowance for an examination that begins now."""
        key = host_of(address)
        bucket = self._callers.pop(key, None) or _Bucket(
            CALLER_BYTES, CALLER_BYTES_PER_SECOND, self._clock(), CALLER_BYTES
        )
        self._callers[key] = bucket
        if len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)
        return Allowance((bucket, self._all), self._clock)


def host_of(address: str) -> str:
    """Key that identifies a client: its IPv4 address or IPv6 /64."""
    one = ipaddress.ip_address(address.partition("%")[0])
    return str(one) if one.version == 4 else str(ipaddress.ip_network((one, 64), strict=False))
