"""Selects the address that a rank binds and announces, so that every other rank can reach it.

Absent on purpose: the peers themselves. Rank 0 does not know the others before they connect; all ranks know
MASTER_ADDR, so the route to it decides on every rank, rank 0 included.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any

from mlt._shared.addresses import is_host
from mlt._shared.name_lookup import LOOKUP_SECONDS, look_up
from mlt._shared.os_errors import cause_of
from mlt.errors import ConfigError
from mlt.job import interfaces
from mlt.job.configuration import JobConfig


def local_host(config: JobConfig, *, lookup_seconds: float = LOOKUP_SECONDS) -> str:
    """The address to bind and announce: ``config.host``, else that of the interface that ``config.interface`` selects,
    else the one this host uses towards rank 0. ``lookup_seconds``: time limit of the name servers.

    Raises ConfigError if MASTER_ADDR does not resolve, no route leads there, or the selection is invalid.
    """
    try:
        if config.host is not None:
            return interfaces.check_host(config.host, source="host (MLT_HOST)")
        towards = _towards_rank_0(config, lookup_seconds)
        if config.interface is not None:
            (choice, *_) = interfaces.select_interfaces(
                config.interface, towards=towards, source="interface (MLT_INTERFACE)"
            )
            return choice.address
        if towards is None:
            raise ConfigError(
                f"no route to MASTER_ADDR {config.master_addr!r}; set MLT_INTERFACE (interface=) to the interface to "
                f"use: {interfaces.candidates_text()}"
            )
        if interfaces.is_link_local(towards):
            raise ConfigError(f"MASTER_ADDR {config.master_addr!r}: {interfaces.link_local_text(towards)}")
        return towards
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith("rank ") else f"rank {config.rank}: {text}") from None


def _towards_rank_0(config: JobConfig, lookup_seconds: float) -> str | None:
    """The address that this host uses towards rank 0; None if no route leads there.

    A host's own name often resolves to 127.0.1.1 on itself (Debian's /etc/hosts), but not on others; then this returns
    the address that other hosts use.
    """
    for _, _, _, _, address in resolve_master(config, socket.SOCK_DGRAM, lookup_seconds):
        with contextlib.suppress(OSError):
            source = interfaces.source_towards(_host_of(address))
            if interfaces.is_loopback(source) and not is_loopback_on_purpose(config.master_addr):
                return interfaces.machine_address() or source
            return source
    return None


def is_loopback_on_purpose(master_addr: str) -> bool:
    """Whether MASTER_ADDR states loopback explicitly, rather than being a name that resolves to it here."""
    name = master_addr.rstrip(".").lower()
    return interfaces.is_loopback(master_addr) or "localhost" in name.split(".") or name.startswith("ip6-l")


def _host_of(address: tuple[Any, ...]) -> str:
    # getaddrinfo keeps the interface of a link-local address in a separate field.
    return str(address[0]) if len(address) < 4 or not address[3] or "%" in address[0] else f"{address[0]}%{address[3]}"


def resolve_master(
    config: JobConfig, kind: socket.SocketKind, lookup_seconds: float = LOOKUP_SECONDS
) -> list[tuple[Any, ...]]:
    """Resolve MASTER_ADDR; addresses that other hosts can reach come first."""
    if not is_host(config.master_addr):
        raise ConfigError(f"rank {config.rank}: MASTER_ADDR {config.master_addr!r} is not the name of a host")
    try:
        found = look_up(config.master_addr, config.rendezvous_port, kind, seconds=lookup_seconds)
        return sorted(found, key=lambda one: interfaces.is_loopback(str(one[4][0])))
    except OSError as error:
        raise ConfigError(
            f"rank {config.rank}: MASTER_ADDR {config.master_addr!r} does not resolve ({cause_of(error)}); set it to "
            "the address of rank 0's host"
        ) from error


def dial(
    found: Sequence[tuple[Any, ...]],
    timeout: float,
    check: Callable[[str], None],
    source: Callable[[str], str | None] = lambda address: None,
) -> socket.socket:
    """A TCP connection to the first of ``found`` (what getaddrinfo returned) that accepts one.

    ``check`` raises for a numeric address that must not be connected to. It gets every address before any is used, and
    no name is resolved again: a changed DNS answer cannot redirect the connection. ``source`` gives the address to
    connect from. Raises OSError.
    """
    for *_, target in found:
        check(str(target[0]))
    last: OSError = ConnectionRefusedError("no address")
    for family, kind, protocol, _, target in found:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(timeout)
            if (own := source(str(target[0]))) is not None:
                connection.bind((own, 0))
            connection.connect(target)
            return connection
        except OSError as error:
            last = error
            connection.close()
        except BaseException:
            connection.close()
            raise
    raise last
