"""The ports of a job, and free ports for processes that bind them seconds later.

A job's ports lie far from its MASTER_PORT: jobs of one host often have MASTER_PORTs in a row (29500, 29501), and the
port after one is the next job's.

The kernel's own range is avoided where it leaves any others: it could give such a port to an outgoing connection of the
host in the meantime.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Sequence
from pathlib import Path

# From MASTER_PORT to the ports of mlt's rendezvous, of the coordination of mlt perf, and of mlt doctor --job.
RENDEZVOUS_OFFSET, PERF_OFFSET, DOCTOR_OFFSET = 1_000, 2_000, 3_000
_FIRST, _END = 10_000, 65_536
_TRIALS = 200


def port_beside(port: int, offset: int) -> int:
    """The port ``offset`` above ``port``, or twice as far below it where the ports end."""
    return port + offset if port + offset < _END else port - 2 * offset


def free_port_pair(host: str = "127.0.0.1") -> int:
    """A free MASTER_PORT whose rendezvous port is free too: torch's store uses one, mlt's rendezvous the other.

    Raises:
        LookupError: there is none among those tried; the text names ``host``.
    """
    return free_port(host, offsets=[RENDEZVOUS_OFFSET])


def free_port(host: str = "127.0.0.1", *, offsets: Sequence[int] = ()) -> int:
    """A port of ``host``, free for TCP and UDP together with those at the ``offsets`` above it.

    Raises:
        LookupError: there is none among those tried; the text names ``host``.
    """
    minimum, maximum = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    span = max(offsets, default=0)
    last = _END - span
    outside: list[int] = [*range(_FIRST, min(minimum, _END) - span), *range(maximum + 1, last)]
    candidates = outside or list(range(_FIRST, last))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in random.Random(os.urandom(8)).sample(candidates, min(_TRIALS, len(candidates))):
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for number in (port, *(port + offset for offset in offsets)):
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    held.enter_context(socket.socket(family, kind)).bind((host, number))
            return port
    more = "".join(f", with the one {offset} above" for offset in offsets)
    raise LookupError(f"no port is free on {host}{more}; end the programs that hold them")
