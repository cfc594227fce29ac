"""Reports to rank 0 that this process cannot join the job, so that the ranks that wait for it end with its error.

The report goes through the rendezvous, with the proof of the job's secret, in place of an announcement. It is an
attempt: rank 0 may not listen yet, or the place of rank 0 may be what this process does not know.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

from mlt._shared.link import Link
from mlt.errors import ConfigError, PortInUseError
from mlt.job import handshake_client, rendezvous
from mlt.job import secret as secret_module
from mlt.job.address import dial, resolve_master
from mlt.job.configuration import JobConfig

# Rank 0 may start a moment later than a process that fails at once.
LISTEN_SECONDS = 1.0
REPLY_SECONDS = 1.0
MAX_TEXT = 500  # characters of the error
UNKNOWN_RANK = -1


def report(error: Exception, place: dict[str, Any], *, rank: int | None = None) -> None:
    """Report to rank 0 that ``error`` keeps this process from joining; returns within two seconds, raises nothing.

    ``place``: the arguments of ``JobConfig.resolve`` that say where rank 0 is. ``rank``: of this process; None: by
    RANK. Rank 0 reports nothing, unless its port is another process's, which may be the rank 0 that the others know.
    """
    rank = _rank_of_environment() if rank is None else rank
    if rank == 0 and not isinstance(error, PortInUseError):
        return
    try:
        # With the numbers of a job of two: those of this process may be what is wrong.
        config = JobConfig.resolve(rank=1, world_size=2, services=0, **place)
    except ConfigError:
        return
    # A name that does not resolve would hold this process up for as long as DNS takes.
    thread = threading.Thread(target=_send, args=(config, rank, str(error)), name="mlt-failure", daemon=True)
    thread.start()
    thread.join(LISTEN_SECONDS + REPLY_SECONDS)


def _rank_of_environment() -> int:
    text = os.environ.get("RANK", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else UNKNOWN_RANK


def _send(config: JobConfig, rank: int, text: str) -> None:
    try:
        with _connected(config) as connection:
            link = Link(connection)

            def receive_reply() -> dict[str, Any]:
                return link.receive(timeout=REPLY_SECONDS, limit=rendezvous.MAX_OPENING_BYTES)

            prover = handshake_client.handshake(
                "rendezvous", rendezvous.VERSION, config.secret, link.send, receive_reply
            )
            link.send(handshake_client.proved(prover, {"job": config.job, "rank": rank, "failed": text[:MAX_TEXT]}))
            receive_reply()  # until then the text may be in flight, and a closed connection would lose it
    except Exception:  # whatever it is: the error that is to be reported goes before it
        return


def _connected(config: JobConfig) -> socket.socket:
    def check(address: str) -> None:
        secret_module.require(config.secret, config.insecure, address, "this process would report its failure to")

    deadline = time.monotonic() + LISTEN_SECONDS
    found = resolve_master(config, socket.SOCK_STREAM)
    while True:
        left = deadline - time.monotonic()
        try:
            return dial(found, max(left, rendezvous.RETRY_SECONDS), check)
        except ConnectionRefusedError:
            if left <= rendezvous.RETRY_SECONDS:
                raise
        time.sleep(rendezvous.RETRY_SECONDS)
