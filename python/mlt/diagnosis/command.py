"""The work of ``mlt doctor HOST``, ``--serve`` and ``--job``, without the output."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from mlt._shared import variables
from mlt._shared.addresses import parse_target, without_brackets
from mlt._shared.counts import count_of
from mlt._shared.link import LinkError
from mlt._shared.name_lookup import look_up
from mlt._shared.patience import Patience, speaking
from mlt._shared.ports import DOCTOR_OFFSET, RENDEZVOUS_OFFSET, port_beside
from mlt.diagnosis.doctor import Finding
from mlt.diagnosis.examine import Examination
from mlt.diagnosis.messages import DEFAULT_PORT
from mlt.diagnosis.responder import Responder, Visit
from mlt.diagnosis.session import CONNECT_SECONDS, TURN_SECONDS, Session, connect
from mlt.errors import ConfigError
from mlt.job import address as own_address
from mlt.job import interfaces
from mlt.job.configuration import JobConfig
from mlt.options import qos

RETRY_SECONDS = 0.2
Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """Options of the command line. ``port``: TCP port of the serving side; None: the default, or the job's own."""

    port: int | None = None
    interface: str | None = None
    policy: str | None = None
    timeout: float = 60.0
    environ: Mapping[str, str] | None = None

    def dscp(self) -> qos.DscpMap:
        """The code points to test with."""
        return qos.resolve(self.policy, self.environ)

    @property
    def wanted(self) -> str | None:
        """The selected interfaces, if any."""
        return self.interface or variables.text(self._environ, interfaces.VARIABLE)

    @property
    def host(self) -> str | None:
        """The address to use, if one is given and no interface on the command line. Raises ConfigError."""
        given = variables.text(self._environ, "MLT_HOST")
        if given is None or self.interface:
            return None
        return interfaces.check_host(without_brackets(given), source="MLT_HOST")

    @property
    def server_port(self) -> int:
        """The port of ``mlt doctor --serve``."""
        return DEFAULT_PORT if self.port is None else self.port

    @property
    def job_port(self) -> int:
        """The port of rank 0 in a job: another one for each MASTER_PORT, so that jobs of one host do not meet."""
        rendezvous = variables.port(self._environ, "MLT_RENDEZVOUS_PORT")
        master = variables.port(self._environ, "MASTER_PORT")
        if self.port is None and rendezvous is not None:
            return port_beside(rendezvous, DOCTOR_OFFSET - RENDEZVOUS_OFFSET)
        if self.port is None and master is not None:
            return port_beside(master, DOCTOR_OFFSET)
        return self.server_port

    @property
    def _environ(self) -> Mapping[str, str]:
        return os.environ if self.environ is None else self.environ

    @property
    def source(self) -> str:
        """The option or variable that made the selection."""
        return "--interface" if self.interface else interfaces.VARIABLE


def serve(settings: Settings, *, once: bool, say: Say) -> None:
    """Serve examinations until interrupted, or only one. Raises PortInUseError, ConfigError."""
    addresses: tuple[str, ...] = ()
    if (host := settings.host) is not None:
        addresses = (host,)
    elif settings.wanted is not None:
        # The selected address first, then that of the other IP version: the client chooses.
        choice = interfaces.select_interfaces(settings.wanted, source=settings.source)[0]
        addresses = (choice.address, *(one for one in choice.interface.usable() if one != choice.address))
    responder = Responder(settings.server_port, settings.dscp(), addresses=addresses, say=say)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        say(f"serving at {' and '.join(addresses) or 'all addresses'}, port {responder.port}; Ctrl-C ends it")
        while True:
            visit = responder.serve_one()
            if visit is not None:
                say(_visit_text(visit))
                if once:
                    return
    finally:
        responder.close()


def _visit_text(visit: Visit) -> str:
    who = f"{visit.address}{f' ({visit.name})' if visit.name else ''}"
    if visit.problems is None:
        return f"{who} broke off its examination"
    return f"{who} found {count_of(visit.problems, 'problem') if visit.problems else 'no problem'}"


def examine_host(target: str, settings: Settings, *, retry_seconds: float = 0.0) -> Iterator[Finding]:
    """Examine the path to ``target`` and back. ``retry_seconds``: how long to retry while nothing listens there."""
    host, port = parse_target(target, settings.server_port)
    dscp = settings.dscp()
    deadline, patience = time.monotonic() + retry_seconds, Patience()
    while True:
        try:
            connection = _connect(host, port, settings)
            break
        except OSError as error:
            if time.monotonic() < deadline:
                patience.ask(partial(_waiting_text, host, port, error, retry_seconds))
                time.sleep(RETRY_SECONDS)
                continue
            yield _unreachable(host, port, error)
            return
    problems = 0
    try:
        with speaking(
            lambda: f"still waiting for {host} port {port}, where mlt doctor examines another host first (times out "
            f"after {TURN_SECONDS:g} s)"
        ):
            session = Session(connection, dscp)
        with session:
            for finding in Examination(session).findings():
                problems += finding.level == "problem"
                yield finding
            session.bye(problems)
    except (LinkError, OSError) as error:
        why = error if isinstance(error, LinkError) else (error.strerror or error)
        yield Finding(
            "problem",
            f"the examination with {host} port {port} broke off: {why}",
            "run the same release of mlt doctor --serve there, and look at its output",
        )


def _connect(host: str, port: int, settings: Settings) -> socket.socket:
    source = settings.host
    if source is None and settings.wanted is not None:
        try:
            address = str(look_up(host, port, socket.SOCK_STREAM)[0][4][0])
            towards = interfaces.source_towards(address)
        except OSError:
            towards = None
        source = interfaces.select_interfaces(settings.wanted, towards=towards, source=settings.source)[0].address
    return connect(host, port, source)


def _waiting_text(host: str, port: int, error: OSError, seconds: float) -> str:
    return (
        f"still waiting for mlt doctor at {host} port {port} (times out {seconds:g} s after the start; last: "
        f"{error.strerror or error}); check that rank 0 runs mlt doctor --job there, and that MASTER_ADDR is the same"
    )


def _missing_text(missing: str, settings: Settings) -> str:
    return (
        f"rank 0: still waiting at port {settings.job_port} for mlt doctor --job of {missing} (times out after "
        f"{settings.timeout:g} s)"
    )


def _unreachable(host: str, port: int, error: OSError) -> Finding:
    if isinstance(error, socket.gaierror):
        return Finding("problem", f"{host} does not resolve ({error.strerror})",
                       f"getent hosts {host}, or give its address (hosts of a testbed have no names)")  # fmt: skip
    if isinstance(error, ConnectionRefusedError):
        return Finding("problem", f"TCP to {host} port {port} is refused: there is no listener",
                       f"run mlt doctor --serve --port {port} on {host}")  # fmt: skip
    if isinstance(error, TimeoutError):
        return Finding("problem", f"TCP to {host} port {port} gets no reply within {CONNECT_SECONDS:g} s",
                       f"check that {host} is up, and allow TCP port {port} in the firewalls between")  # fmt: skip
    return Finding("problem", f"no TCP to {host} port {port}: {error.strerror or error}", f"ip route get {host}")


def examine_job(settings: Settings, *, say: Say) -> Iterator[Finding]:
    """Examine every rank of a job at once, using its environment: rank 0 serves, the others examine in turn."""
    # A job of the same variables; its rendezvous port is not used.
    config = JobConfig.resolve(rendezvous_port=1, interface=settings.interface, environ=settings.environ)
    if config.size == 1:
        raise ConfigError("the job has one rank: no network to examine")
    if config.rank != 0:
        target = f"[{config.master_addr}]:{settings.job_port}"
        yield from examine_host(target, settings, retry_seconds=settings.timeout)
        return
    own_address.local_host(config)  # rejects a wrong selection of interfaces before any rank waits
    responder = Responder(settings.job_port, settings.dscp(), say=say)
    deadline = time.monotonic() + settings.timeout
    try:
        for come in range(config.size - 1):
            missing = f"{config.size - 1 - come} of {count_of(config.size - 1, 'rank')}"
            left = max(deadline - time.monotonic(), 0.01) if come == 0 else settings.timeout
            visit = responder.serve_one(left, partial(_missing_text, missing, settings))
            if visit is None:
                yield Finding(
                    "problem",
                    f"{missing} did not connect to {config.master_addr} port {settings.job_port} within "
                    f"{settings.timeout:g} s",
                    "look at their output; MASTER_ADDR must reach this host from theirs",
                )
                return
            if visit.problems == 0:
                yield Finding("ok", _visit_text(visit))
            else:
                yield Finding("problem", _visit_text(visit), "look at the output of that rank")
    finally:
        responder.close()
