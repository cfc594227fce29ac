"""Rank 0's side of the rendezvous: takes what the others announce, and hands the table to all of them.

Single-threaded and without a blocking read. A caller that has not proved to know the job's secret gets no field of the
job, is cut by time and by number (the oldest first), and is counted by name.
"""

from __future__ import annotations

import contextlib
import errno
import json
import selectors
import socket
import time
from collections import Counter
from typing import Any, cast

from pydantic import ValidationError

from mlt import interfaces, rendezvous, rendezvous_lines
from mlt import secret as secret_module
from mlt.config import JobConfig
from mlt.errors import PortInUseError, RendezvousError
from mlt.own_address import is_loopback_on_purpose, resolve_master
from mlt.qos import DscpMap
from mlt.rendezvous import VERSION, Endpoint
from mlt.rendezvous_lines import MAX_LINE_BYTES, Announcement

# Callers without a proof that rank 0 holds at a time, beyond one for each rank; the oldest make place.
SPARE_CALLERS = 64
# How long a caller may take for its proof.
PROOF_SECONDS = 5.0
# Callers accepted before those that are here are read again.
ACCEPTS_PER_TURN = 16

# What rank 0 counts; ``Context.counters`` has them.
COUNTERS = (
    "rendezvous_accepted",
    "rendezvous_strangers",  # left before a valid opening
    "rendezvous_unproved",  # a wrong proof, or none before it left
    "rendezvous_malformed",  # a line that is no message, or one too many
    "rendezvous_oversized",  # a line longer than MAX_LINE_BYTES
    "rendezvous_other_version",
    "rendezvous_timed_out",  # no proof within PROOF_SECONDS
    "rendezvous_too_many_pending",  # cut for a newer one
    "rendezvous_refusals",  # proved, and of another job, size, rank or policy
)


class _Caller:
    """One connection to rank 0: its socket, what was read of its line, how far it is, and the endpoint it announced."""

    def __init__(self, connection: socket.socket, address: str, prover: secret_module.Prover) -> None:
        self.connection = connection
        self.address = address
        self.prover = prover
        self.received = b""
        self.deadline = time.monotonic() + PROOF_SECONDS
        self.opened = False
        self.proved = False
        self.endpoint: Endpoint | None = None


class Host:
    """A context manager around the listeners. ``counts`` gets what ``COUNTERS`` names."""

    def __init__(self, config: JobConfig, own: Endpoint, dscp: DscpMap | None, counts: Counter[str]) -> None:
        self._config = config
        self._counts = counts
        self._counts.update(dict.fromkeys(COUNTERS, 0))
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

    def __enter__(self) -> Host:
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
                f"rank 0: cannot listen at {rendezvous.where(config)} ({last.strerror}); MASTER_ADDR must be an "
                "address of rank 0's machine, and the port one that this user may bind"
            ) from last
        if not self._is_loopback() or is_loopback_on_purpose(config.master_addr):
            return
        if config.secret is None and not config.insecure:
            return  # then only ranks of this machine may come
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
            listener.listen(min(config.size + SPARE_CALLERS, socket.SOMAXCONN))
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(
                    f"rank 0: rendezvous port {rendezvous.where(config)} is taken by another process; set "
                    "MLT_RENDEZVOUS_PORT (the same on all ranks) to a free one, or end the job that holds it"
                ) from error
            raise
        self._listeners.append(listener)
        self._selector.register(listener, selectors.EVENT_READ)

    def _is_loopback(self) -> bool:
        """Whether no other machine can come here."""
        return all(interfaces.is_loopback(str(one.getsockname()[0])) for one in self._listeners)

    def run(self, deadline: float, timeout: float) -> list[Endpoint]:
        patience = rendezvous.Patience()
        while len(self._ranks) < self._config.size:
            left = deadline - time.monotonic()
            if left <= 0:
                self._give_up(timeout)
            patience.ask(lambda: self._waiting_text(timeout))
            for key, _ in self._selector.select(max(min(left, patience.left, self._cut_overdue()), 0.0)):
                if key.data is None:
                    self._accept(cast(socket.socket, key.fileobj))
                elif self._callers.get(key.fd) is key.data:  # not dropped in this turn
                    self._read(key.data)
        table = [self._ranks[rank] for rank in range(self._config.size)]
        self._answer_all({"ranks": [[one.rank, one.host, one.port] for one in table]}, deadline)
        return table

    def _waiting_text(self, timeout: float) -> str:
        missing = [rank for rank in range(self._config.size) if rank not in self._ranks]
        refused = f"; refused: {self._refused[-1]}" if self._refused else ""
        return (
            f"rank 0: still waiting at {rendezvous.where(self._config)} for {rendezvous.ranks_text(missing)} of "
            f"{self._config.size}, {timeout:g} s in all{refused}"
        )

    def _cut_overdue(self) -> float:
        """Drop the callers that took too long for their proof; seconds until the next is due."""
        now = time.monotonic()
        waiting = [caller for caller in self._callers.values() if not caller.proved]
        for caller in waiting:
            if caller.deadline <= now:
                self._turn_away(caller, "rendezvous_timed_out")
        return min((caller.deadline - now for caller in waiting if caller.deadline > now), default=PROOF_SECONDS)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            unproved = [caller for caller in self._callers.values() if not caller.proved]  # the oldest first
            try:
                connection, address = listener.accept()
            except BlockingIOError:
                return
            except OSError:  # out of descriptors, most likely
                if unproved:
                    self._turn_away(unproved[0], "rendezvous_too_many_pending")
                else:
                    time.sleep(0.01)
                return
            self._counts["rendezvous_accepted"] += 1
            if len(unproved) >= self._config.size + SPARE_CALLERS:
                self._turn_away(unproved[0], "rendezvous_too_many_pending")
            connection.setblocking(False)
            prover = secret_module.Prover(self._config.secret, "rendezvous", role="host")
            caller = _Caller(connection, str(address[0]), prover)
            self._callers[connection.fileno()] = caller
            self._selector.register(connection, selectors.EVENT_READ, caller)

    def _turn_away(self, caller: _Caller, counter: str) -> None:
        """End a caller that proved nothing, without a word."""
        self._counts[counter] += 1
        self._drop(caller)

    def _read(self, caller: _Caller) -> None:
        try:
            piece = caller.connection.recv(MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            # It may come again: a rank that restarts announces itself anew.
            if not caller.proved:
                self._counts["rendezvous_unproved" if caller.opened else "rendezvous_strangers"] += 1
            self._drop(caller)
            return
        caller.received += piece
        if len(caller.received) > MAX_LINE_BYTES:
            self._turn_away(caller, "rendezvous_oversized")
        elif caller.proved:
            self._refuse(caller, "sent more than one announcement")
        elif b"\n" in caller.received:
            line, _, caller.received = caller.received.partition(b"\n")
            try:
                if caller.opened:
                    self._on_announcement(caller, line)
                else:
                    self._on_opening(caller, line)
            except ValidationError:
                if caller.proved:
                    self._refuse(caller, "did not announce itself as a rank of mlt")
                else:
                    self._turn_away(caller, "rendezvous_malformed")

    def _on_opening(self, caller: _Caller, line: bytes) -> None:
        opening = rendezvous_lines.OPENING.validate_json(line)
        if opening.mlt_rendezvous != VERSION:
            text = f"rendezvous version {VERSION} is spoken here, not {opening.mlt_rendezvous}"
            self._refused.append(f"{text} [{caller.address}]")
            answer = {"error": "peer_mismatch", "text": f"{text}: install the same mlt release on all machines"}
            self._say(caller, {"mlt_rendezvous": VERSION, **answer})
            self._turn_away(caller, "rendezvous_other_version")
            return
        nonce = rendezvous_lines.NONCE.validate_json(line).nonce
        caller.opened = caller.prover.meet(nonce)
        self._say(caller, {"mlt_rendezvous": VERSION, "nonce": caller.prover.nonce, "proof": caller.prover.prove()})

    def _on_announcement(self, caller: _Caller, line: bytes) -> None:
        proved = rendezvous_lines.PROVED.validate_json(line)
        if not caller.prover.check(proved.proof, proved.content):
            self._turn_away(caller, "rendezvous_unproved")
            return
        caller.proved = True
        self._admit(caller, rendezvous_lines.ANNOUNCEMENT.validate_json(proved.content))

    def _admit(self, caller: _Caller, said: Announcement) -> None:
        config = self._config
        endpoint = Endpoint(said.rank, said.host, said.port)
        why: str | None = None
        if said.job != config.job:
            why = f"rank {said.rank} belongs to job {said.job!r}; this is job {config.job!r} (set MLT_JOB)"
        elif (said.size, said.services) != (config.size, config.services):
            why = (
                f"rank {said.rank} expects {said.size - said.services} workers and {said.services} services; rank 0 "
                f"expects {config.world_size} and {config.services} (WORLD_SIZE, MLT_SERVICES)"
            )
        elif self._dscp is not None and (dscp := _dscp_of(said)) is not None and dscp != self._dscp:
            why = (
                f"rank {said.rank}'s packets carry other DSCPs ({dscp}) than rank 0's ({self._dscp}), so that switches "
                "would sort them differently: give all ranks the same policy (MLT_QOS_POLICY, qos_policy=)"
            )
        elif not 0 < said.rank < config.size:
            why = f"rank {said.rank} is not one of 1 to {config.size - 1}"
        elif said.rank in self._ranks:
            why = f"rank {said.rank} was already announced, from {self._ranks[said.rank].host}"
        else:
            why = self._unreachable(caller, endpoint)
        if why is not None:
            self._refuse(caller, why)
            return
        caller.endpoint = endpoint
        self._ranks[said.rank] = endpoint
        if not interfaces.is_own_address(caller.address):
            self._remote[said.rank] = caller.address

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
        self._counts["rendezvous_refusals"] += 1
        self._say(caller, _proved(caller, {"error": "peer_mismatch", "text": why}))
        self._drop(caller)

    def _say(self, caller: _Caller, message: dict[str, Any]) -> None:
        # A few bytes into an empty socket buffer: this does not block, and a caller that is gone does not matter.
        with contextlib.suppress(OSError):
            caller.connection.send(rendezvous.line_of(message))

    def _drop(self, caller: _Caller) -> None:
        self._callers.pop(caller.connection.fileno(), None)
        self._selector.unregister(caller.connection)
        caller.connection.close()
        if caller.endpoint is not None and len(self._ranks) < self._config.size:
            self._ranks.pop(caller.endpoint.rank, None)
            self._remote.pop(caller.endpoint.rank, None)
            self._left.add(caller.endpoint.rank)

    def _answer_all(self, message: dict[str, Any], deadline: float) -> None:
        for caller in [one for one in self._callers.values() if one.endpoint is not None]:
            # A rank that vanished meanwhile is reported by the engine, which connects to every rank next.
            with contextlib.suppress(OSError):
                caller.connection.settimeout(max(deadline - time.monotonic(), 1.0))
                caller.connection.sendall(rendezvous.line_of(_proved(caller, message)))

    def _give_up(self, timeout: float) -> None:
        missing = [rank for rank in range(self._config.size) if rank not in self._ranks]
        never = [rank for rank in missing if rank not in self._left]
        left = [rank for rank in missing if rank in self._left]
        absence = [f"{rendezvous.ranks_text(never)} did not come"] if never else []
        absence += [f"{rendezvous.ranks_text(left)} came and left"] if left else []
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
            text += "; refused: " + "; ".join(self._refused[-5:])
        if unproved := self._counts["rendezvous_unproved"]:
            text += (
                f"; turned away: {unproved} connection{'s' if unproved > 1 else ''} without a proof of the job's "
                "secret (give all processes the same MLT_JOB_SECRET)"
            )
        if self._is_loopback():
            text += (
                "; this is a loopback address, which ranks on other machines cannot reach: if there are any, set "
                f"MASTER_ADDR to an address of this machine on every rank ({interfaces.candidates_text()})"
            )
        self._answer_all({"error": "rendezvous", "text": text}, time.monotonic())
        raise RendezvousError(f"rank 0: {text}", peer=missing[0])


def _proved(caller: _Caller, message: dict[str, Any]) -> dict[str, Any]:
    content = json.dumps(message, separators=(",", ":"))
    return {"content": content, "proof": caller.prover.prove(content)}


def _dscp_of(said: Announcement) -> DscpMap | None:
    """None where the rank does not say."""
    if not said.dscp:
        return None
    control, *data = said.dscp
    return DscpMap(data=tuple(data), control=control)
