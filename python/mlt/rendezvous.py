"""How the ranks of a job find each other: each tells rank 0 where it listens, and rank 0 tells all of them.

One TCP connection per rank, one JSON line each way. Rank 0 listens at MASTER_ADDR:MLT_RENDEZVOUS_PORT. Everything is
bounded: in time by ``timeout``, in memory by the line length and the number of callers. Nothing here carries tensors,
and nothing needs the native library.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from mlt import interfaces
from mlt.config import JobConfig
from mlt.errors import MltError, PeerMismatchError, PortInUseError, RendezvousError, from_code
from mlt.own_address import is_loopback_on_purpose, resolve_master
from mlt.qos import DscpMap

VERSION = 1
MAX_HELLO_BYTES = 4_096
# A table entry is an address and two numbers.
MAX_ENTRY_BYTES = 256
RETRY_SECONDS = 0.05
# After the deadline, a rank listens this much longer for what rank 0, whose deadline is about the same, has to say.
GRACE_SECONDS = 0.5
# Connections that never become a rank (port scanners, ranks of other jobs) that rank 0 holds at a time.
MAX_STRANGERS = 64
# After so long a rank says once what it waits for.
QUIET_SECONDS = 5.0

logger = logging.getLogger("mlt")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a rank's engine listens for control connections."""

    rank: int
    host: str
    port: int


def meet(config: JobConfig, own: Endpoint, timeout: float, *, dscp: DscpMap | None = None) -> list[Endpoint]:
    """Exchange endpoints with all ranks; returns those of all ranks in rank order.

    ``dscp``: the code points of this rank's packets, which have to be those of rank 0's (None: not compared).
    Raises PortInUseError (rank 0 cannot listen), PeerMismatchError (another job, size, version or map of code points),
    or RendezvousError naming the ranks that did not come within ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    if config.size == 1:
        return [own]
    if config.rank == 0:
        with _Host(config, own, dscp) as host:
            return host.run(deadline, timeout)
    return _join(config, own, dscp, deadline, timeout)


def _where(config: JobConfig) -> str:
    host = f"[{config.master_addr}]" if ":" in config.master_addr else config.master_addr
    return f"{host}:{config.rendezvous_port}"


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class _Patience:
    """Says once, after ``QUIET_SECONDS``, what is being waited for."""

    def __init__(self) -> None:
        self._due = time.monotonic() + QUIET_SECONDS

    @property
    def left(self) -> float:
        """Seconds until it has to be asked."""
        return max(self._due - time.monotonic(), 0.0)

    def ask(self, text: Callable[[], str]) -> None:
        if self.left == 0:
            self._due = math.inf
            logger.warning("%s", text())


class _Caller:
    """One connection to rank 0: its socket, what was read of its line, and the endpoint it announced."""

    def __init__(self, connection: socket.socket, address: str) -> None:
        self.connection = connection
        self.address = address
        self.received = b""
        self.endpoint: Endpoint | None = None


class _Host:
    """Rank 0's side. Single-threaded; no caller can block it."""

    def __init__(self, config: JobConfig, own: Endpoint, dscp: DscpMap | None) -> None:
        self._config = config
        self._dscp = dscp
        self._ranks: dict[int, Endpoint] = {own.rank: own}
        self._callers: dict[int, _Caller] = {}
        self._refused: list[str] = []
        self._left: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._remote: dict[int, str] = {}  # ranks on other machines, and where they called from
        self._listeners: list[socket.socket] = []
        try:
            self._listen()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> _Host:
        return self

    def __exit__(self, *_: object) -> None:
        for caller in list(self._callers.values()):
            self._drop(caller)
        self._selector.close()
        for listener in self._listeners:
            listener.close()

    def _listen(self) -> None:
        """At MASTER_ADDR. Where that is a name which only this machine takes for loopback, at its address for others
        too: they resolve the same name to it."""
        config = self._config
        found = resolve_master(config, socket.SOCK_STREAM)
        places = [(family, address) for family, _, _, _, address in found]
        last: OSError | None = None
        for place in places:
            try:
                self._listen_at(*place)
                break
            except PortInUseError:
                raise
            except OSError as error:  # a name may mean addresses of both IP versions, and the machine have one
                last = error
        else:
            assert last is not None
            raise PortInUseError(
                f"rank 0: cannot listen at {_where(config)} ({last.strerror}); MASTER_ADDR must be an address of rank "
                "0's machine, and the port one that this user may bind"
            ) from last
        if not self._is_loopback() or is_loopback_on_purpose(config.master_addr):
            return
        if (address := interfaces.machine_address()) is not None:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with contextlib.suppress(OSError):
                self._listen_at(family, (address, config.rendezvous_port))

    def _listen_at(self, family: int, address: tuple[Any, ...]) -> None:
        config = self._config
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(min(config.size + MAX_STRANGERS, socket.SOMAXCONN))
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(
                    f"rank 0: rendezvous port {_where(config)} is taken by another process; set MLT_RENDEZVOUS_PORT "
                    "(the same on all ranks) to a free one, or end the job that holds it"
                ) from error
            raise
        self._listeners.append(listener)
        self._selector.register(listener, selectors.EVENT_READ)

    def _is_loopback(self) -> bool:
        """Whether no other machine can come here."""
        return all(interfaces.is_loopback(str(one.getsockname()[0])) for one in self._listeners)

    def run(self, deadline: float, timeout: float) -> list[Endpoint]:
        patience = _Patience()
        while len(self._ranks) < self._config.size:
            left = deadline - time.monotonic()
            if left <= 0:
                self._give_up(timeout)
            patience.ask(lambda: self._waiting_text(timeout))
            for key, _ in self._selector.select(min(left, patience.left)):
                if key.data is None:
                    self._accept(cast(socket.socket, key.fileobj))
                else:
                    self._read(key.data)
        table = [self._ranks[rank] for rank in range(self._config.size)]
        self._answer_all({"ranks": [[one.rank, one.host, one.port] for one in table]}, deadline)
        return table

    def _waiting_text(self, timeout: float) -> str:
        missing = [rank for rank in range(self._config.size) if rank not in self._ranks]
        refused = f"; refused: {self._refused[-1]}" if self._refused else ""
        return (
            f"rank 0: still waiting at {_where(self._config)} for {_ranks_text(missing)} of {self._config.size}, "
            f"{timeout:g} s in all{refused}"
        )

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, address = listener.accept()
        except OSError:
            return
        strangers = sum(caller.endpoint is None for caller in self._callers.values())
        if strangers >= self._config.size + MAX_STRANGERS:
            connection.close()
            return
        connection.setblocking(False)
        caller = _Caller(connection, str(address[0]))
        self._callers[connection.fileno()] = caller
        self._selector.register(connection, selectors.EVENT_READ, caller)

    def _read(self, caller: _Caller) -> None:
        try:
            piece = caller.connection.recv(MAX_HELLO_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            # It may come again: a rank that restarts announces itself anew.
            self._drop(caller)
            return
        caller.received += piece
        if caller.endpoint is not None or len(caller.received) > MAX_HELLO_BYTES:
            self._refuse(caller, "sent more than one announcement")
        elif b"\n" in caller.received:
            self._admit(caller)

    def _admit(self, caller: _Caller) -> None:
        config = self._config
        try:
            hello = json.loads(caller.received.partition(b"\n")[0])
            version = hello["mlt_rendezvous"]
            rank, job, size, services = (
                int(hello["rank"]),
                str(hello["job"]),
                int(hello["size"]),
                int(hello["services"]),
            )
            endpoint = Endpoint(rank, str(hello["host"]), int(hello["port"]))
            dscp = _dscp_of(hello)
        except (ValueError, KeyError, TypeError):
            self._refuse(caller, "did not announce itself as a rank of mlt")
            return
        if version != VERSION:
            self._refuse(caller, f"rank {rank} has rendezvous version {version}; rank 0 has {VERSION}")
        elif job != config.job:
            self._refuse(caller, f"rank {rank} belongs to job {job!r}; this is job {config.job!r} (set MLT_JOB)")
        elif (size, services) != (config.size, config.services):
            self._refuse(
                caller,
                f"rank {rank} expects {size - services} workers and {services} services; rank 0 expects "
                f"{config.world_size} and {config.services} (WORLD_SIZE, MLT_SERVICES)",
            )
        elif self._dscp is not None and dscp is not None and dscp != self._dscp:
            self._refuse(
                caller,
                f"rank {rank}'s packets carry other DSCPs ({dscp}) than rank 0's ({self._dscp}), so that switches "
                "would sort them differently: give all ranks the same policy (MLT_QOS_POLICY, qos_policy=)",
            )
        elif not 0 < rank < config.size:
            self._refuse(caller, f"rank {rank} is not one of 1 to {config.size - 1}")
        elif rank in self._ranks:
            self._refuse(caller, f"rank {rank} was already announced, from {self._ranks[rank].host}")
        elif (why := self._unreachable(caller, endpoint)) is not None:
            self._refuse(caller, why)
        else:
            caller.endpoint = endpoint
            self._ranks[rank] = endpoint
            if not interfaces.is_own_address(caller.address):
                self._remote[rank] = caller.address

    def _unreachable(self, caller: _Caller, endpoint: Endpoint) -> str | None:
        """Why one rank of this job could not reach another: loopback means another machine to each of them."""
        how = "set MLT_INTERFACE or MLT_HOST there to the interface that the others reach, or leave both out"
        is_remote = not interfaces.is_own_address(caller.address)
        if interfaces.is_loopback(endpoint.host):
            others = {endpoint.rank: caller.address} if is_remote else self._remote
            for other, address in others.items():
                who = "it" if other == endpoint.rank else f"rank {other}"
                return (
                    f"rank {endpoint.rank} announces {endpoint.host}, which only its own machine reaches, and {who} "
                    f"calls from {address}: {how}"
                )
        if is_remote:
            for known in self._ranks.values():
                if known.rank not in self._remote and interfaces.is_loopback(known.host):
                    master = f" (MASTER_ADDR is {self._config.master_addr})" if known.rank == 0 else ""
                    return (
                        f"rank {known.rank} announces {known.host}{master}, which only its own machine reaches, and "
                        f"rank {endpoint.rank} calls from {caller.address}: {how}"
                    )
        return None

    def _refuse(self, caller: _Caller, why: str) -> None:
        self._refused.append(f"{why} [{caller.address}]")
        # A few bytes into an empty socket buffer: this does not block, and a caller that is gone does not matter.
        with contextlib.suppress(OSError):
            caller.connection.send(_line({"error": "peer_mismatch", "text": why}))
        self._drop(caller)

    def _drop(self, caller: _Caller) -> None:
        self._callers.pop(caller.connection.fileno(), None)
        self._selector.unregister(caller.connection)
        caller.connection.close()
        if caller.endpoint is not None and len(self._ranks) < self._config.size:
            self._ranks.pop(caller.endpoint.rank, None)
            self._remote.pop(caller.endpoint.rank, None)
            self._left.add(caller.endpoint.rank)

    def _answer_all(self, message: dict[str, Any], deadline: float) -> None:
        line = _line(message)
        for caller in [one for one in self._callers.values() if one.endpoint is not None]:
            # A rank that vanished meanwhile is reported by the engine, which connects to every rank next.
            with contextlib.suppress(OSError):
                caller.connection.settimeout(max(deadline - time.monotonic(), 1.0))
                caller.connection.sendall(line)

    def _give_up(self, timeout: float) -> None:
        missing = [rank for rank in range(self._config.size) if rank not in self._ranks]
        never = [rank for rank in missing if rank not in self._left]
        left = [rank for rank in missing if rank in self._left]
        absence = [f"{_ranks_text(never)} did not come"] if never else []
        absence += [f"{_ranks_text(left)} came and left"] if left else []
        text = (
            f"job {self._config.job!r}: of {self._config.size} ranks, {' and '.join(absence)} "
            f"(rank 0 at {_where(self._config)} waited {timeout:g} s)"
        )
        services = [rank for rank in missing if rank >= self._config.world_size]
        if services:
            are = "is a summation service" if len(services) == 1 else "are summation services"
            text += (
                f"; {_ranks_text(services)} {are}: start `mlt serve` with the job's settings, or unset MLT_SERVICES on "
                "every rank"
            )
        if self._refused:
            text += "; refused: " + "; ".join(self._refused[-5:])
        if self._is_loopback():
            text += (
                "; this is a loopback address, which ranks on other machines cannot reach: if there are any, set "
                f"MASTER_ADDR to an address of this machine on every rank ({interfaces.candidates_text()})"
            )
        self._answer_all({"error": "rendezvous", "text": text}, time.monotonic())
        raise RendezvousError(f"rank 0: {text}", peer=missing[0])


def _dscp_of(hello: dict[str, Any]) -> DscpMap | None:
    """None where the rank does not say."""
    if "dscp" not in hello:
        return None
    control, *data = (int(one) for one in hello["dscp"])
    return DscpMap(data=tuple(data), control=control)


def _ranks_text(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8]) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _join(config: JobConfig, own: Endpoint, dscp: DscpMap | None, deadline: float, timeout: float) -> list[Endpoint]:
    """The side of every rank but 0."""
    hello = _line(
        {
            **({} if dscp is None else {"dscp": [dscp.control, *dscp.data]}),
            "mlt_rendezvous": VERSION,
            "job": config.job,
            "rank": config.rank,
            "size": config.size,
            "services": config.services,
            "host": own.host,
            "port": own.port,
        }
    )
    cause = "no answer"
    patience = _Patience()

    def waiting_text() -> str:
        who = f"rank {config.rank}: still waiting for rank 0 at {_where(config)}, {timeout:g} s in all"
        return f"{who} (last: {cause}); is it running, and is MASTER_ADDR the same on all ranks?"

    def not_all_text() -> str:
        return (
            f"rank {config.rank}: rank 0 at {_where(config)} has not heard of every rank yet, {timeout:g} s in all; it "
            "says which are missing"
        )

    while (left := deadline - time.monotonic()) > 0:
        patience.ask(waiting_text)
        try:
            seconds = min(left, max(patience.left, RETRY_SECONDS))
            with socket.create_connection((config.master_addr, config.rendezvous_port), timeout=seconds) as connection:
                connection.sendall(hello)
                answer = _read_line(
                    connection,
                    deadline + GRACE_SECONDS,
                    config.size * MAX_ENTRY_BYTES + MAX_HELLO_BYTES,
                    lambda: patience.ask(not_all_text),
                )
                return _table(config, answer)
        except OSError as error:
            # A timeout has no strerror.
            cause = error.strerror or str(error)
            if isinstance(error, MltError):
                raise
        time.sleep(min(RETRY_SECONDS, max(deadline - time.monotonic(), 0.0)))
    here = ""
    if all(interfaces.is_loopback(str(one[4][0])) for one in resolve_master(config, socket.SOCK_STREAM)):
        here = f" Here {config.master_addr} is this very machine: if rank 0 runs on another one, name that."
    raise RendezvousError(
        f"rank {config.rank}: no rendezvous with rank 0 at {_where(config)} within {timeout:g} s (last: {cause}); is "
        f"rank 0 running, and are MASTER_ADDR and MLT_RENDEZVOUS_PORT the same on all ranks?{here}",
        peer=0,
    )


def _read_line(connection: socket.socket, deadline: float, limit: int, waiting: Callable[[], None]) -> bytes:
    """``waiting`` is called once a second while nothing comes."""
    received = bytearray()
    while b"\n" not in received:
        left = max(deadline - time.monotonic(), 1e-3)
        connection.settimeout(min(left, 1.0))
        try:
            piece = connection.recv(65_536)
        except TimeoutError:
            if left <= 1.0:
                raise TimeoutError("rank 0 took the announcement, but not every rank had come") from None
            waiting()
            continue
        if not piece:
            raise ConnectionResetError(errno.ECONNRESET, "rank 0 closed the connection without an answer")
        received += piece
        if len(received) > limit:
            raise OSError(errno.EPROTO, "what listens there is not an mlt rendezvous")
    return bytes(received.partition(b"\n")[0])


def _table(config: JobConfig, answer: bytes) -> list[Endpoint]:
    try:
        message = json.loads(answer)
        if "error" in message:
            text = f"rank {config.rank}: refused by rank 0 at {_where(config)}: {message['text']}"
            raise from_code(str(message["error"]), text, 0)
        table = [Endpoint(int(rank), str(host), int(port)) for rank, host, port in message["ranks"]]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, MltError):
            raise
        raise OSError(errno.EPROTO, "what listens there is not an mlt rendezvous") from error
    if [one.rank for one in table] != list(range(config.size)):
        raise PeerMismatchError(f"rank {config.rank}: rank 0 sent a table of other ranks than 0 to {config.size - 1}")
    return table
