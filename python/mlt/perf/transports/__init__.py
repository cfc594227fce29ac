"""The transports that ``mlt perf`` runs, by name; each module is imported only in the process that uses it."""

from __future__ import annotations

from importlib import import_module

from mlt.perf.transports.base import Address, Outcome, Place, Transport

__all__ = ["Address", "Outcome", "Place", "Transport", "transport_class"]

_MODULES = {
    "mlt": "mlt.perf.transports.mlt",
    "tcp": "mlt.perf.transports.tcp",
    "gloo": "mlt.perf.transports.gloo",
    "mpi": "mlt.perf.transports.mpi",
    "mpi-shm": "mlt.perf.transports.mpi",
    "raw-udp": "mlt.perf.transports.raw_udp",
}


def transport_class(name: str) -> type[Transport]:
    """The class of a transport by its name in ``options``."""
    found: type[Transport] = import_module(_MODULES[name]).TRANSPORT
    return found
