"""Ports that nobody holds, for processes that bind them seconds later.

The kernel's own range is avoided where it leaves any others: it could give such a port to an outgoing connection of the
machine in the meantime.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from pathlib import Path

_FIRST, _END = 10_000, 65_536
_TRIALS = 200


def free_port(host: str, *, neighbours: int = 0) -> int:
    """A port of ``host``, free for TCP and UDP together with the ``neighbours`` after it.

    Raises:
        LookupError: there is none among those tried; the text names ``host``.
    """
    least, greatest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    last = _END - neighbours
    outside: list[int] = [*range(_FIRST, min(least, _END) - neighbours), *range(greatest + 1, last)]
    candidates = outside or list(range(_FIRST, last))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in random.Random(os.urandom(8)).sample(candidates, min(_TRIALS, len(candidates))):
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for number in range(port, port + neighbours + 1):
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    held.enter_context(socket.socket(family, kind)).bind((host, number))
            return port
    what = "no port is free" if neighbours == 0 else f"no {neighbours + 1} neighbouring ports are free"
    raise LookupError(f"{what} on {host}; end the programs that hold them")
