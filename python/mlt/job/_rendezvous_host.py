"""Rank 0's side of the rendezvous: collects the announcements of all ranks, and sends the table to all of them.

Clients come through a ``HandshakeServer``: one that has not proved the job's secret receives no field of the job.
"""

from __future__ import annotations

import contextlib
import errno
import math
import selectors
import socket
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from mlt._shared.counts import count_of
from mlt._shared.json_lines import line_of, quoted
from mlt._shared.patience import Patience
from mlt.errors import PeerMismatchError, PortInUseError, RendezvousError
from mlt.job import handshake_client, interfaces, rendezvous
from mlt.job import secret as secret_module
from mlt.job._rendezvous_lines import Announcement, Failure
from mlt.job.address import is_loopback_on_purpose, resolve_master
from mlt.job.configuration import JobConfig
from mlt.job.handshake_server import Caller, HandshakeServer, max_callers
from mlt.job.rendezvous import VERSION, Endpoint
from mlt.options.qos import DscpMap

SHOWN_REFUSALS = 5


@dataclass(eq=False)
class _Rank:
    """A client that proved itself, and the endpoint it announced."""

    caller: Caller
    endpoint: Endpoint


@dataclass(frozen=True)
class _End:
    """When the start ends (``at``), why, and the type of the error."""

    at: float
    why: str
    kind: type[PeerMismatchError | RendezvousError]


class Host:
    """A context manager around the listeners. ``counts``: gets the counters of ``handshake_server``."""

    def __init__(
        self,
        config: JobConfig,
        own: Endpoint,
        dscp: DscpMap | None,
        counts: Counter[str],
        paths: int = 0,
        connects_on_use: bool = False,
        checksums: bool | None = None,
    ) -> None:
        self._config = config
        self._dscp = dscp
        self._paths = paths
        self._connects_on_use = connects_on_use
        self._checksums = checksums
        self._ends: dict[int, _End] = {}  # by rank: why the start ends for it, unless it connects as it should
        self._ranks: dict[int, Endpoint] = {own.rank: own}
        self._callers: dict[int, _Rank] = {}
        self._refused: deque[str] = deque(maxlen=SHOWN_REFUSALS)
        self._left: set[int] = set()
        self._handshakes = HandshakeServer(
            "rendezvous", VERSION, config.secret, expected=config.size, counts=counts, report=self._refused.append
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._handshakes, selectors.EVENT_READ)
        self._remote: dict[int, str] = {}  # ranks on other hosts, and their source addresses
        self._listeners: list[socket.socket] = []
        try:
            self._listen()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in list(self._callers.values()):
            self._drop(rank)
        self._selector.close()
        self._handshakes.close()
        for listener in self._listeners:
            listener.close()

    def _listen(self) -> None:
        """Listen at MASTER_ADDR. If that is a name which resolves to loopback only on this host, listen also at the
        address that other hosts resolve it to."""
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
            except OSError as error:  # a name may have addresses of both IP versions on a host with one
                last = error
        else:
            assert last is not None
            raise PortInUseError(
                f"rank 0: cannot listen at {rendezvous.where(config)} ({last.strerror}); MASTER_ADDR must be an "
                "address of rank 0's host, and the rendezvous port (MLT_RENDEZVOUS_PORT, else MASTER_PORT + 1000) one "
                "that this user may bind"
            ) from last
        if not self._is_loopback() or is_loopback_on_purpose(config.master_addr):
            return
        if config.secret is None and not config.insecure:
            return  # then only ranks of this host can connect
        if (address := interfaces.machine_address()) is not None:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with contextlib.suppress(OSError):
                self._listen_at(family, (address, config.rendezvous_port))

    def _listen_at(self, family: int, address: tuple[Any, ...]) -> None:
        config = self._config
        secret_module.require(config.secret, config.insecure, str(address[0]), "rank 0 would listen at")
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(min(max_callers(config.size), socket.SOMAXCONN))
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(
                    f"rank 0: rendezvous port {rendezvous.where(config)} (MLT_RENDEZVOUS_PORT, else MASTER_PORT + "
                    "1000) is in use by another process; end it (`ss -lntp` lists it), or set MLT_RENDEZVOUS_PORT to a "
                    "free port, the same on all ranks"
                ) from None
            raise
        self._listeners.append(listener)
        self._handshakes.add(listener)

    def _is_loopback(self) -> bool:
        """Whether no other host can connect."""
        return all(interfaces.is_loopback(str(one.getsockname()[0])) for one in self._listeners)

    def run(self, deadline: float, timeout: float) -> list[Endpoint]:
        patience = Patience(changes=True)
        knows_unproved = False
        while len(self._ranks) < self._config.size:
            left = deadline - time.monotonic()
            if left <= 0:
                self._fail_missing(timeout)
            if self._handshakes.counts["rendezvous_unproved"] and not knows_unproved:
                knows_unproved = True
                patience.hasten()  # it may be a rank, which has ended
            patience.ask(lambda: self._waiting_text(timeout))
            self._end_when_due()
            maximum = min(left, patience.left, self._handshakes.seconds_left(), self._seconds_to_end())
            for key, _ in self._selector.select(maximum):
                if key.data is not None:
                    self._read(key.data)
            for caller in self._handshakes.turn():
                self._admit(caller)
        table = [self._ranks[rank] for rank in range(self._config.size)]
        self._answer_all({"ranks": [[one.rank, one.host, one.port] for one in table]}, deadline)
        return table

    def _waiting_text(self, timeout: float) -> str:
        missing = [rank for rank in range(self._config.size) if rank not in self._ranks]
        refused = f"; refused: {self._refused[-1]}" if self._refused else ""
        return (
            f"rank 0: still waiting at {rendezvous.where(self._config)} for {rendezvous.ranks_text(missing)} of "
            f"{self._config.size}, times out {timeout:g} s after its start{refused}"
            f"{self._rejected_text()}{self._blocked_text()}"
        )

    def _blocked_text(self) -> str:
        """A possible cause that keeps ranks from connecting here."""
        if self._refused or self._handshakes.counts["rendezvous_unproved"] or self._left or self._is_loopback():
            return ""
        return (
            f"; check that they run with this MASTER_ADDR, and that no firewall blocks TCP to port "
            f"{self._config.rendezvous_port} of this host"
        )

    def _rejected_text(self) -> str:
        unproved = self._handshakes.counts["rendezvous_unproved"]
        if not unproved:
            return ""
        return (
            f"; rejected: {count_of(unproved, 'connection')} without a proof of the job's "
            "secret (give all processes the same MLT_JOB_SECRET)"
        )

    def _read(self, rank: _Rank) -> None:
        """Read from a rank after its announcement: it sends nothing until it disconnects."""
        try:
            piece = rank.caller.connection.recv(1)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if piece:
            self._refuse(rank.caller, "sent more than one announcement")
        self._drop(rank)  # it may come back: a restarted rank announces itself again

    def _admit(self, caller: Caller) -> None:
        try:
            failure = Failure.parse(caller.content)
            if failure is not None:
                self._on_failure(caller, failure)
                return
            said = Announcement.parse(caller.content)
        except ValueError:
            self._reject(caller, "sent no valid announcement; check that it is a rank of mlt, of the same release")
            return
        if caller.received:
            self._reject(caller, "sent more than one announcement")
            return
        endpoint = Endpoint(said.rank, said.host, said.port)
        why = self._difference(said)
        if why is not None:
            self._report_mismatch(said, why)
            self._reject(caller, why)
            return
        why = self._mismatch(caller, said, endpoint)
        if why is not None:
            # Two processes with one RANK: a rank that is missing is the other's.
            self._end_soon(said.rank, why, rendezvous.MISMATCH_SECONDS, PeerMismatchError)
            self._reject(caller, why)
            return
        rank = _Rank(caller, endpoint)
        self._callers[caller.connection.fileno()] = rank
        self._selector.register(caller.connection, selectors.EVENT_READ, rank)
        self._ranks[said.rank] = endpoint
        self._ends.pop(said.rank, None)
        if not interfaces.is_own_address(caller.address):
            self._remote[said.rank] = caller.address

    def _difference(self, said: Announcement) -> str | None:
        """The setting of a rank that differs from rank 0's; None if they agree."""
        config = self._config
        if said.job != config.job:
            return f"rank {said.rank} belongs to job {quoted(said.job)!r}; this is job {config.job!r} (set MLT_JOB)"
        if (said.size, said.services) != (config.size, config.services):
            return (
                f"rank {said.rank} expects {count_of(said.size - said.services, 'worker')} and "
                f"{count_of(said.services, 'service')}; rank 0 expects {config.world_size} and "
                f"{config.services} (WORLD_SIZE, MLT_SERVICES)"
            )
        if self._dscp is not None and (dscp := _dscp_of(said)) is not None and dscp != self._dscp:
            return (
                f"rank {said.rank}'s packets have other DSCPs ({dscp}) than rank 0's ({self._dscp}), so that switches "
                "would classify them differently: give all ranks the same policy (MLT_QOS_POLICY, qos_policy=)"
            )
        if self._paths and said.paths and said.paths != self._paths:
            return (
                f"rank {said.rank} has {count_of(said.paths, 'path')}, rank 0 has {self._paths}: give all ranks the "
                "same number (MLT_PATHS, paths=)"
            )
        if said.connects_on_use != self._connects_on_use:
            one, other = ("on first use", "at the start") if said.connects_on_use else ("at the start", "on first use")
            return (
                f"rank {said.rank} connects {one}, rank 0 {other}: give all ranks the same setting "
                "(MLT_CONNECTS_ON_USE, connects_on_use=)"
            )
        if None not in (said.checksums, self._checksums) and said.checksums != self._checksums:
            return (
                f"rank {said.rank} has checksums={said.checksums}, rank 0 has checksums={self._checksums}: give all "
                "ranks the same setting (MLT_CHECKSUMS, checksums=)"
            )
        return None

    def _report_mismatch(self, said: Announcement, why: str) -> None:
        """Report it at once, and end startup soon: the rejected process ends, and no other takes its rank."""
        if said.rank in self._ranks:
            return
        is_sure = said.job == self._config.job or self._config.secret is not None
        seconds = rendezvous.MISMATCH_SECONDS if is_sure else rendezvous.OTHER_JOB_SECONDS
        self._end_soon(said.rank, why, seconds, PeerMismatchError)

    def _on_failure(self, caller: Caller, failure: Failure) -> None:
        """A process says that it cannot join: nothing else will come from it."""
        who = f"rank {failure.rank}" if failure.rank >= 0 else "a process whose RANK is not known"
        why = f"{who} failed before it joined the job: {quoted(failure.text, len(failure.text))}"
        self._reject(caller, why)
        # Of another job, or in place of a rank that is here: not what this job waits for.
        if failure.job == self._config.job and failure.rank not in self._ranks.keys() - {0}:
            self._end_soon(failure.rank, why, rendezvous.MISMATCH_SECONDS, RendezvousError)

    def _end_soon(self, rank: int, why: str, seconds: float, kind: type[PeerMismatchError | RendezvousError]) -> None:
        if rank not in self._ends:
            rendezvous.logger.warning("rank 0: refused: %s", why)
            self._ends[rank] = _End(time.monotonic() + seconds, why, kind)

    def _seconds_to_end(self) -> float:
        """Seconds until the start ends for a rank that cannot join."""
        return max(min((one.at for one in self._ends.values()), default=math.inf) - time.monotonic(), 0.0)

    def _end_when_due(self) -> None:
        for rank, end in self._ends.items():
            if time.monotonic() >= end.at:
                text = f"job {self._config.job!r} cannot start: {end.why}"
                self._answer_all({"error": end.kind.default_code.value, "text": text}, time.monotonic())
                raise end.kind(f"rank 0: {text}", peer=rank if rank >= 0 else None)

    def _mismatch(self, caller: Caller, said: Announcement, endpoint: Endpoint) -> str | None:
        """Why a rank with the right settings cannot join; None if it can."""
        config = self._config
        if not 0 < said.rank < config.size:
            return f"rank {said.rank} is out of range: ranks 1 to {config.size - 1} connect here (set RANK)"
        if said.rank in self._ranks:
            return (
                f"rank {said.rank} was already announced by another process, at {self._ranks[said.rank].host}: give "
                "every process its own RANK, and end processes left over from an earlier start"
            )
        return self._unreachable(caller, endpoint)

    def _unreachable(self, caller: Caller, endpoint: Endpoint) -> str | None:
        """Why one rank of this job could not reach another: loopback is a different host for each of them."""
        how = "set MLT_INTERFACE or MLT_HOST there to an interface that the others can reach, or unset both"
        is_remote = not interfaces.is_own_address(caller.address)
        if interfaces.is_loopback(endpoint.host):
            others = {endpoint.rank: caller.address} if is_remote else self._remote
            for other, address in others.items():
                who = "it" if other == endpoint.rank else f"rank {other}"
                return (
                    f"rank {endpoint.rank} announces {endpoint.host}, which only its own host can reach, and {who} "
                    f"connects from {address}: {how}"
                )
        if is_remote:
            for known in self._ranks.values():
                if known.rank not in self._remote and interfaces.is_loopback(known.host):
                    master = f" (MASTER_ADDR is {self._config.master_addr})" if known.rank == 0 else ""
                    return (
                        f"rank {known.rank} announces {known.host}{master}, which only its own host can reach, and "
                        f"rank {endpoint.rank} connects from {caller.address}: {how}"
                    )
        return None

    def _reject(self, caller: Caller, why: str) -> None:
        self._refuse(caller, why)
        caller.connection.close()

    def _refuse(self, caller: Caller, why: str) -> None:
        self._refused.append(f"{why} [{caller.address}]")
        self._handshakes.count("refusals")
        caller.say(handshake_client.proved(caller.prover, {"error": "peer_mismatch", "text": why}))

    def _drop(self, rank: _Rank) -> None:
        connection = rank.caller.connection
        self._callers.pop(connection.fileno(), None)
        self._selector.unregister(connection)
        connection.close()
        if len(self._ranks) < self._config.size:
            self._ranks.pop(rank.endpoint.rank, None)
            self._remote.pop(rank.endpoint.rank, None)
            self._left.add(rank.endpoint.rank)

    def _answer_all(self, message: dict[str, Any], deadline: float) -> None:
        for caller in [one.caller for one in self._callers.values()]:
            # A rank that has disconnected is reported by the engine, which connects to every rank next.
            with contextlib.suppress(OSError):
                caller.connection.settimeout(max(deadline - time.monotonic(), 1.0))
                caller.connection.sendall(line_of(handshake_client.proved(caller.prover, message)))

    def _fail_missing(self, timeout: float) -> None:
        missing = [rank for rank in range(self._config.size) if rank not in self._ranks]
        never = [rank for rank in missing if rank not in self._left]
        left = [rank for rank in missing if rank in self._left]
        absence = [f"{rendezvous.ranks_text(never)} did not connect"] if never else []
        absence += [f"{rendezvous.ranks_text(left)} connected and left"] if left else []
        text = (
            f"job {self._config.job!r}: of {self._config.size} ranks, {' and '.join(absence)} "
            f"(rank 0 at {rendezvous.where(self._config)} waited {timeout:g} s)"
        )
        services = [rank for rank in missing if rank >= self._config.world_size]
        if services:
            are = "is a summation service" if len(services) == 1 else "are summation services"
            text += (
                f"; {rendezvous.ranks_text(services)} {are}: start `mlt serve` with the job's settings, or "
                "unset MLT_SERVICES on every rank"
            )
        if self._refused:
            text += "; refused: " + "; ".join(self._refused)
        text += self._rejected_text() + self._blocked_text()
        if self._is_loopback():
            text += (
                "; this is a loopback address, which ranks on other hosts cannot reach: if there are any, set "
                f"MASTER_ADDR to an address of this host on every rank ({interfaces.candidates_text()})"
            )
        self._answer_all({"error": "rendezvous", "text": text}, time.monotonic())
        raise RendezvousError(f"rank 0: {text}", peer=missing[0])


def _dscp_of(said: Announcement) -> DscpMap | None:
    """None if the rank does not report it."""
    if not said.dscp:
        return None
    control, *data = said.dscp
    return DscpMap(data=tuple(data), control=control)
