"""The transports that ``mlt perf`` runs, by name; each module is imported only in the process that runs it."""

from __future__ import annotations

from importlib import import_module

from mlt.perf.peers.base import Address, Outcome, Peer, Place

__all__ = ["Address", "Outcome", "Peer", "Place", "peer_class"]

_MODULES = {
    "mlt": "mlt.perf.peers.ours",
    "tcp": "mlt.perf.peers.tcp",
    "gloo": "mlt.perf.peers.gloo",
    "mpi": "mlt.perf.peers.mpi",
    "mpi-shm": "mlt.perf.peers.mpi",
    "raw-udp": "mlt.perf.peers.raw_udp",
}


def peer_class(name: str) -> type[Peer]:
    """The class behind a name of ``options``."""
    found: type[Peer] = import_module(_MODULES[name]).PEER
    return found
