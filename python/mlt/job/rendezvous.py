"""Rendezvous of the ranks of a job: each announces to rank 0 where it listens, and rank 0 sends the table to all.

One TCP connection per rank, two JSON lines in each direction: first both prove the job's secret, then the rank
announces itself and receives the table (``handshake_client``, ``_rendezvous_lines``). Rank 0 listens at MASTER_ADDR and
MLT_RENDEZVOUS_PORT; its side is ``_rendezvous_host``. Everything is bounded: in time by ``timeout``, in memory by the
line length and the number of clients. Nothing here carries tensors or needs the native library.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlt._shared.json_lines import object_of, quoted
from mlt._shared.link import Link, LinkClosedError, LinkError, LinkTimeoutError
from mlt._shared.patience import Patience
from mlt.errors import ConfigError, MltError, PeerMismatchError, RendezvousError, from_code
from mlt.job import handshake_client, interfaces
from mlt.job import secret as secret_module
from mlt.job.address import dial, resolve_master
from mlt.job.configuration import JobConfig
from mlt.options.qos import DscpMap

VERSION = 3
MAX_OPENING_BYTES = 1_024
# A table entry is an address and two numbers.
MAX_ENTRY_BYTES = 256
RETRY_SECONDS = 0.05
# After the deadline, a rank waits this much longer for the report of rank 0, whose deadline is about the same.
GRACE_SECONDS = 0.5
# A rank whose settings differ will not come back with others: its job's start ends this many seconds later, unless that
# rank has connected as it should meanwhile. Longer for a process of another job without a secret, which may have got
# here by mistake.
MISMATCH_SECONDS = 2.0
OTHER_JOB_SECONDS = 10.0

NO_REPLY = "no reply to TCP"
NOT_MLT = "what listens there is not an mlt rendezvous, or that of an older release"

logger = logging.getLogger("mlt")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address at which a rank's engine listens for control connections."""

    rank: int
    host: str
    port: int

    @property
    def where(self) -> str:
        """Address and port, for texts."""
        return _where(self.host, self.port)


def meet(
    config: JobConfig,
    own: Endpoint,
    timeout: float,
    *,
    dscp: DscpMap | None = None,
    paths: int = 0,
    connects_on_use: bool = False,
    checksums: bool | None = None,
    counts: Counter[str] | None = None,
) -> list[Endpoint]:
    """Exchange endpoints with all ranks; returns those of all ranks in rank order.

    ``dscp``: the code points of this rank's packets, which must equal rank 0's (None: not compared). ``paths``: the
    number of its paths, likewise (0: not compared). ``connects_on_use``: whether ranks connect on first use, likewise.
    ``checksums``: whether transfers have checksums, likewise (None: not compared). ``counts`` gets rank 0's counters of
    its clients (``handshake_server.COUNTERS``).

    Raises ConfigError (no secret, and not on loopback), PortInUseError (rank 0 cannot listen), PeerMismatchError
    (another secret, job, size, version or setting), or RendezvousError naming the ranks that did not connect
    within ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    if config.size == 1:
        return [own]
    if config.rank == 0:
        from mlt.job._rendezvous_host import Host  # here: the other ranks do not need it

        with Host(
            config, own, dscp, Counter() if counts is None else counts, paths, connects_on_use, checksums
        ) as host:
            return host.run(deadline, timeout)
    return _join(config, own, _settings(dscp, paths, connects_on_use, checksums), deadline, timeout)


def where(config: JobConfig) -> str:
    """Rank 0's address and port, for texts."""
    return _where(config.master_addr, config.rendezvous_port)


def _where(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def ranks_text(ranks: list[int]) -> str:
    """ "rank 3", "ranks 1, 2, ...": for texts."""
    shown = ", ".join(str(rank) for rank in ranks[:8]) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _settings(dscp: DscpMap | None, paths: int, connects_on_use: bool, checksums: bool | None) -> dict[str, Any]:
    """The part of an announcement that must equal rank 0's settings."""
    return {
        **({} if dscp is None else {"dscp": [dscp.control, *dscp.data]}),
        **({"paths": paths} if paths else {}),
        **({"connects_on_use": True} if connects_on_use else {}),
        **({} if checksums is None else {"checksums": checksums}),
    }


def _join(
    config: JobConfig, own: Endpoint, settings: dict[str, Any], deadline: float, timeout: float
) -> list[Endpoint]:
    """The side of every rank but 0."""
    announcement = {
        **settings,
        "job": config.job,
        "rank": config.rank,
        "size": config.size,
        "services": config.services,
        "host": own.host,
        "port": own.port,
    }

    def check(address: str) -> None:
        purpose = f"rank {config.rank} would announce itself at"
        secret_module.require(config.secret, config.insecure, address, purpose)

    found = resolve_master(config, socket.SOCK_STREAM)
    cause = NO_REPLY
    patience = Patience()

    def waiting_text() -> str:
        return (
            f"rank {config.rank}: still waiting for rank 0 at {where(config)} (times out {timeout:g} s after its "
            f"start; last: {cause}); {blocked_text()}"
            "check that it is running, that MASTER_ADDR is the same on all ranks, and "
            "that the job did not start without this rank (WORLD_SIZE and MLT_SERVICES must be the same on all)"
        )

    def blocked_text() -> str:
        # A host that runs without a listener, or behind a firewall that rejects, replies.
        if cause != NO_REPLY:
            return ""
        return f"a firewall drops the connections, or that host is down: let TCP pass to {where(config)}; "

    def not_all_text() -> str:
        return (
            f"rank {config.rank}: rank 0 at {where(config)} still waits for other ranks (times out {timeout:g} "
            "s after the start); it reports which are missing"
        )

    while (left := deadline - time.monotonic()) > 0:
        patience.ask(waiting_text)
        try:
            seconds = min(left, max(patience.left, RETRY_SECONDS))
            with dial(found, seconds, check) as connection:
                cause = "it accepted the connection"
                link = Link(connection)
                prover = _open(config, link, deadline, lambda: patience.ask(waiting_text))
                link.send(handshake_client.proved(prover, announcement))
                answer = _receive(
                    link,
                    deadline + GRACE_SECONDS,
                    config.size * MAX_ENTRY_BYTES + MAX_OPENING_BYTES,
                    lambda: patience.ask(not_all_text),
                )
                return _table(config, _content(answer, prover))
        except LinkClosedError as error:
            cause = str(error)
        except TimeoutError as error:  # of connect(): those of _receive() have a text and no strerror
            cause = NO_REPLY if str(error) == "timed out" or error.strerror else str(error)
        except OSError as error:
            cause = error.strerror or str(error)
            if isinstance(error, MltError):
                raise
        time.sleep(min(RETRY_SECONDS, max(deadline - time.monotonic(), 0.0)))
        with contextlib.suppress(ConfigError):  # while DNS fails, the last result stays valid
            found = resolve_master(config, socket.SOCK_STREAM)
    here = ""
    if all(interfaces.is_loopback(str(one[4][0])) for one in found):
        here = f". {config.master_addr} is this host: if rank 0 runs on another one, set MASTER_ADDR to its address"
    raise RendezvousError(
        f"rank {config.rank}: no rendezvous with rank 0 at {where(config)} within {timeout:g} s (last: {cause}); "
        f"{blocked_text()}check that rank 0 is running, and that MASTER_ADDR and the port (MLT_RENDEZVOUS_PORT, else "
        f"MASTER_PORT + 1000) are the same on all ranks{here}",
        peer=0,
    )


def _receive(link: Link, deadline: float, limit: int, waiting: Callable[[], None]) -> dict[str, Any]:
    """Receive one message; calls ``waiting`` once a second until it arrives."""
    while True:
        left = max(deadline - time.monotonic(), 1e-3)
        try:
            return link.receive(timeout=min(left, 1.0), limit=limit)
        except LinkTimeoutError:
            if left <= 1.0:
                raise TimeoutError("rank 0 accepted the connection, but not all ranks connected to it") from None
            waiting()
        except LinkClosedError as error:
            raise ConnectionResetError(errno.ECONNRESET, f"rank 0 sent no reply: {error}") from None
        except LinkError:
            raise OSError(errno.EPROTO, NOT_MLT) from None


def _open(config: JobConfig, link: Link, deadline: float, waiting: Callable[[], None]) -> secret_module.Prover:
    """Open the connection, and have rank 0 prove the secret. Sends nothing about the job before that."""

    def hear() -> dict[str, Any]:
        return _receive(link, deadline, MAX_OPENING_BYTES, waiting)

    try:
        return handshake_client.handshake("rendezvous", VERSION, config.secret, link.send, hear)
    except handshake_client.HandshakeError as error:
        if error.version is not None:
            text = f"rank 0 at {where(config)} has rendezvous version {quoted(error.version)}, this rank {VERSION}"
            raise PeerMismatchError(
                f"rank {config.rank}: {text}; install the same mlt release on all hosts", peer=0
            ) from None
        if not error.unproved:
            raise OSError(errno.EPROTO, NOT_MLT) from None
    why = "this rank has none" if config.secret is None else "it has another one, or is not rank 0 of this job"
    raise PeerMismatchError(
        f"rank {config.rank}: what listens at {where(config)} did not prove that it knows the job's secret: {why}; "
        f"give all processes of the job the same {secret_module.VARIABLE}",
        peer=0,
    )


def _content(message: dict[str, Any], prover: secret_module.Prover) -> str:
    content = message.get("content")
    if not isinstance(content, str) or not prover.check(message.get("proof"), content):
        raise OSError(errno.EPROTO, NOT_MLT)
    return content


def _table(config: JobConfig, answer: str) -> list[Endpoint]:
    try:
        message = object_of(answer)
        if "error" in message:
            text = f"rank {config.rank}: refused by rank 0 at {where(config)}: {message['text']}"
            raise from_code(str(message["error"]), text, 0)
        table = [Endpoint(int(rank), str(host), int(port)) for rank, host, port in message["ranks"]]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, MltError):
            raise
        raise OSError(errno.EPROTO, NOT_MLT) from error
    if [one.rank for one in table] != list(range(config.size)):
        raise PeerMismatchError(f"rank {config.rank}: rank 0 sent a table of other ranks than 0 to {config.size - 1}")
    return table
