"""Addresses of hosts by name, with a time limit, which the resolver itself does not have."""

from __future__ import annotations

import logging
import socket
import threading
from typing import Any

from mlt._shared.addresses import is_address
from mlt._shared.patience import QUIET_SECONDS

# Longer than a resolver takes that asks two dead servers before it finds one that answers.
LOOKUP_SECONDS = 30.0

logger = logging.getLogger("mlt")


def look_up(host: str, port: int, kind: socket.SocketKind, *, seconds: float = LOOKUP_SECONDS) -> list[tuple[Any, ...]]:
    """Addresses from ``socket.getaddrinfo``. Logs after 5 s that the name servers do not answer, if it waits longer.

    Raises socket.gaierror, also after ``seconds``; the thread that asks is then left to itself.

    >>> look_up("127.0.0.1", 80, socket.SOCK_STREAM)[0][4]
    ('127.0.0.1', 80)
    """
    if is_address(host):
        return list(socket.getaddrinfo(host, port, type=kind))
    found: list[list[tuple[Any, ...]] | BaseException] = []

    def ask() -> None:
        try:
            found.append(list(socket.getaddrinfo(host, port, type=kind)))
        except BaseException as error:
            found.append(error)

    asking = threading.Thread(target=ask, name="mlt-name-lookup", daemon=True)
    asking.start()
    asking.join(min(QUIET_SECONDS, seconds))
    if asking.is_alive() and seconds > QUIET_SECONDS:
        logger.warning(
            "still looking up the address of %r (times out %g s after its start): this host's name servers "
            "(/etc/resolv.conf) do not answer; an address in numbers needs none", host, seconds,
        )  # fmt: skip
        asking.join(seconds - QUIET_SECONDS)
    if not found:
        raise socket.gaierror(
            socket.EAI_AGAIN, f"this host's name servers (/etc/resolv.conf) did not answer within {seconds:g} s"
        )
    (answer,) = found
    if isinstance(answer, BaseException):
        raise answer
    return answer
