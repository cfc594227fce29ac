"""Entry points of a run: all ranks here (--local), a server and a client, or the ranks of a job from the environment.

In a job rank 0 coordinates and prints. Between a server and a client the server is rank 0, because only it is known to
be reachable; the client coordinates and prints.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from mlt._shared import variables
from mlt._shared.background import beside
from mlt._shared.json_lines import quoted
from mlt._shared.link import Link, LinkClosedError, LinkError, Message
from mlt._shared.name_lookup import look_up
from mlt._shared.os_errors import cause_of
from mlt._shared.patience import speaking
from mlt._shared.ports import PERF_OFFSET, RENDEZVOUS_OFFSET, port_beside
from mlt.errors import MltError
from mlt.job import interfaces
from mlt.job import secret as secret_module
from mlt.job.address import dial, local_host, resolve_master
from mlt.job.configuration import JobConfig
from mlt.job.handshake_client import proved
from mlt.job.handshake_server import Caller, HandshakeServer
from mlt.job.secret import JobSecret
from mlt.perf.agents import Agents, Events, LocalAgents
from mlt.perf.conductor import Conductor, Measurement, Observe, Skipped
from mlt.perf.gathering import MAX_REPORTS, REPORT_SECONDS, Gathering, listeners
from mlt.perf.local_address import find_interface, listen, where
from mlt.perf.options import MAX_ERROR, Options
from mlt.perf.problem import PROGRAM, BadOptionError, PerfError
from mlt.perf.remote import (
    HELLO_SECONDS,
    PROTOCOL,
    SERVICE,
    Follower,
    Host,
    RemoteAgents,
    as_dict,
    check_hosts,
    follow,
    handshake,
    hello,
    host_of,
    place_of,
    read_hello,
    read_host,
    read_proved,
    refuse,
    say_proved,
)

DEFAULT_PORT = 29_600
RETRY_SECONDS = 0.1
TURN_AWAY_SECONDS = 0.1
LOOPBACK, LOOPBACK_V6 = "127.0.0.1", "::1"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """Result of a run, on the coordinating rank."""

    options: Options
    mode: str
    hosts: tuple[Host, ...]
    measurements: tuple[Measurement, ...]
    skipped: tuple[Skipped, ...]
    seconds: float


def run_local(options: Options, interface: str | None, observe: Observe) -> Result:
    """Run all ranks on this host, over loopback unless an interface is named."""
    found = find_interface(interface, "127.0.0.1")
    hosts = [host_of(rank, found) for rank in range(options.ranks)]
    job = _job_name()
    events: Events = queue.SimpleQueue()
    agents = LocalAgents({host.rank: place_of(host, options.ranks, job) for host in hosts}, options, events)
    return _lead("local", options, hosts, [agents], events, observe)


def run_client(
    options: Options,
    server: str,
    port: int,
    interface: str | None,
    observe: Observe,
    environ: Mapping[str, str] | None = None,
) -> Result:
    """Point to point with ``mlt perf --serve`` on another host: rank 1 here sends to rank 0 there."""
    if options.ranks != 2:
        raise BadOptionError(f"{options.ranks} ranks: a server and a client are 2; more are a job (RANK, WORLD_SIZE)")
    admission = _Admission.resolve(environ)
    who, job = f"the server at {where(server, port)}", _job_name()

    def waiting_text() -> str:
        return f"still waiting for a reply of {who} (times out after {HELLO_SECONDS:g} s)"

    with speaking(waiting_text):
        link = _call(server, port, interface, admission)
    try:
        own = host_of(1, find_interface(interface, link.local_host))
        with speaking(waiting_text):
            prover = handshake(link, admission.secret, who)
            say_proved(link, prover, hello(host=as_dict(own), options=options.as_dict(), job=job))
            other = read_host(read_proved(link, prover, who), who)
        hosts = [other, own]
        check_hosts(hosts, options)
    except BaseException as error:
        link.send_last({"do": "end", "error": str(error) or "the client was interrupted"})
        link.close()
        raise
    events: Events = queue.SimpleQueue()
    all_agents = [LocalAgents({1: place_of(own, 2, job)}, options, events), RemoteAgents(link, other, events)]
    return _lead("server and client", options, hosts, all_agents, events, observe)


@dataclass(frozen=True)
class _Admission:
    """Hosts that may measure with this one: those that know the ``secret``; without one, only this host itself, unless
    ``insecure``."""

    secret: JobSecret | None
    insecure: bool

    @classmethod
    def resolve(cls, environ: Mapping[str, str] | None) -> _Admission:
        return cls(secret_module.resolve(None, environ), secret_module.is_insecure(environ))

    def check(self, purpose: str) -> Callable[[str], None]:
        """Raises ConfigError for an address that requires a secret."""
        return lambda address: secret_module.require(self.secret, self.insecure, address, purpose)


def _serving(port: int, interface: str | None, admission: _Admission, say: Say) -> list[socket.socket]:
    """The sockets on which ``serve`` listens. Raises PerfError, ConfigError."""
    the_other = f"the other side: mlt perf HOST --port {port}"
    check = admission.check("mlt perf would listen at")
    if interface is not None:
        address = find_interface(interface, LOOPBACK).address
        check(address)
        found = [listen(address, port)]
        say(f"mlt perf: serving at {address}, port {port}; {the_other}")
    elif admission.secret is None and not admission.insecure:
        # As in a job without a secret: the measured transport accepts no other host either.
        found = [listen(LOOPBACK, port)]
        if interfaces.is_own_address(LOOPBACK_V6):
            try:
                found.append(listen(LOOPBACK_V6, port))
            except PerfError:
                found[0].close()
                raise
        say(
            f"mlt perf: serving at loopback addresses only, port {port}, because there is no job secret; for other "
            f"hosts {secret_module.WAYS_OUT}"
        )
    else:
        check("0.0.0.0")
        found = [listen("", port)]
        say(f"mlt perf: serving at all addresses, port {port}; {the_other}")
    return found


def serve(port: int, interface: str | None, *, once: bool, say: Say, environ: Mapping[str, str] | None = None) -> None:
    """Be rank 0 for one client after another, until interrupted (or for one client, whose error is raised)."""
    admission = _Admission.resolve(environ)
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(one) for one in _serving(port, interface, admission, say)]
        handshakes = HandshakeServer(SERVICE, PROTOCOL, admission.secret, listeners=listeners, report=_Limited(say))
        stack.callback(handshakes.close)
        reported = ""
        waiting: list[Caller] = []
        while True:
            # Clients with a hello, one after another, until one of them starts a run.
            waiting = waiting or handshakes.wait(REPORT_SECONDS)
            if reported != (reported := handshakes.rejected_text()):
                say(f"mlt perf: connections rejected so far: {reported}")
            if not waiting:
                continue
            caller = waiting.pop(0)
            try:
                link = Link(caller.connection, PROGRAM, caller.received)
                link.watch_network()
                address = link.peer_host
            except OSError:  # already disconnected
                caller.connection.close()
                continue
            try:
                follower = _admit(link, caller, admission)
                with _turning_away(handshakes, waiting):
                    follow(link, follower)
                say(f"mlt perf: a run with {address} is done")
            except LinkError as error:
                refuse(link, caller.prover, cause_of(error))
                handshakes.count("refusals")
                say(f"mlt perf: rejected: {error}")
                continue
            except (MltError, OSError) as error:
                refuse(link, caller.prover, cause_of(error))
                if once:
                    raise (
                        error
                        if isinstance(error, MltError)
                        else PerfError(f"the client at {address}: {cause_of(error)}")
                    ) from None
                say(f"mlt perf: the run with {address} failed: {cause_of(error)}")
            except Exception as error:  # whatever error a client causes, the next client is served
                refuse(link, caller.prover, f"invalid request ({type(error).__name__})")
                if once:
                    raise
                said = f"{type(error).__name__}: {quoted(str(error))}"
                say(f"mlt perf: invalid request from {address}: {said}")
            if once:
                return


class _Limited:
    """Passes on the first lines only: clients could cause any number."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._left = MAX_REPORTS

    def __call__(self, why: str) -> None:
        self._left -= 1
        if self._left >= 0:
            more = "" if self._left else "; further ones are only counted"
            self._say(f"mlt perf: rejected: {quoted(why, MAX_ERROR)}{more}")


def _admit(link: Link, caller: Caller, admission: _Admission) -> Follower:
    """A client's request, validated; replies that it is served."""
    who = f"the caller from {link.peer_host}"
    message = read_hello(caller.content, who)
    options = Options.read(message.get("options"))
    client = read_host(message, "the client")
    if options.ranks != 2:
        raise BadOptionError(f"{options.ranks} ranks: a server and a client are 2")
    if client.address != link.peer_host:
        # Otherwise it could have this host send to any other.
        raise BadOptionError(
            f"the client announces {client.address} and calls from {link.peer_host}: only the address that calls can "
            "be measured with (no address translation between the hosts)"
        )
    host = host_of(0, find_interface(None, link.local_host))
    say_proved(link, caller.prover, hello(host=as_dict(host)))
    place = place_of(host, 2, quoted(message.get("job")))
    return Follower(place, options, admission.secret, admission.insecure, link.peer_host)


def _busy(handshakes: HandshakeServer, caller: Caller) -> None:
    """Reply to other clients that one is served, rather than let them wait."""
    handshakes.count("refusals")
    caller.say(proved(caller.prover, {"refused": "it is busy with another client; try again later"}))
    caller.connection.close()


@contextlib.contextmanager
def _turning_away(handshakes: HandshakeServer, waiting: list[Caller]) -> Iterator[None]:
    """Another thread runs the handshakes in the meantime."""
    while waiting:
        _busy(handshakes, waiting.pop())

    def turn_away(is_over: threading.Event) -> None:
        while not is_over.is_set():
            for caller in handshakes.turn(min(handshakes.seconds_left(), TURN_AWAY_SECONDS)):
                _busy(handshakes, caller)

    with beside(turn_away, "mlt-perf-busy"):
        yield


def run_job(
    options: Options,
    environ: Mapping[str, str],
    interface: str | None,
    observe: Observe,
    say: Say = lambda text: None,
) -> Result | None:
    """This process's part in a job of RANK and WORLD_SIZE; the result on rank 0, None on the others."""
    config = JobConfig.resolve(environ={**environ, "MLT_SERVICES": "0"}, interface=interface)
    options = replace(options, ranks=config.world_size)
    port = _job_port(environ, config)
    own = host_of(config.rank, find_interface(None, local_host(config)))
    if config.rank == 0:
        return _lead_job(options, config, own, port, observe, say)
    link, answer = _join(config, own, port, options)
    try:
        agreed = Options.read(answer.get("options"))
        place = place_of(own, agreed.ranks, quoted(answer.get("job")))
        follow(link, Follower(place, agreed, config.secret, config.insecure))
    finally:
        link.close()
    return None


def _lead_job(options: Options, config: JobConfig, own: Host, port: int, observe: Observe, say: Say) -> Result:
    job = _job_name()
    with Gathering(listeners(config, own.address, port), own, config.world_size, config.secret, say) as gathering:
        members = gathering.members
        try:
            gathering.run(options.timeout)
            hosts = gathering.hosts
            check_hosts([hosts[rank] for rank in sorted(hosts)], options)
            for member in members.values():
                agreed = hello(host=as_dict(own), options=options.as_dict(), job=job)
                try:
                    say_proved(member.link, member.prover, agreed)
                except LinkClosedError as error:
                    raise PerfError(f"{member.host} was lost: {error}", peer=member.host.rank) from None
        except BaseException as error:
            for member in members.values():
                refuse(member.link, member.prover, str(error) or "rank 0 was interrupted")
            raise
    events: Events = queue.SimpleQueue()
    all_agents: list[Agents] = [LocalAgents({0: place_of(own, options.ranks, job)}, options, events)]
    all_agents += [RemoteAgents(members[rank].link, hosts[rank], events) for rank in sorted(members)]
    return _lead("job", options, [hosts[rank] for rank in sorted(hosts)], all_agents, events, observe)


def _lead(
    mode: str, options: Options, hosts: list[Host], all_agents: list[Agents], events: Events, observe: Observe
) -> Result:
    began = time.monotonic()
    conductor = Conductor(options, all_agents, events, observe)
    with _ended(all_agents):
        measurements = conductor.run()
    return Result(options, mode, tuple(hosts), tuple(measurements), tuple(conductor.skipped), time.monotonic() - began)


@contextlib.contextmanager
def _ended(all_agents: list[Agents]) -> Iterator[None]:
    """Ends all agents on exit, here and on other hosts; reports a failure and its cause to them."""
    error: str | None = None
    try:
        yield
    except BaseException as failure:
        error = str(failure) or "the run was interrupted on the machine that leads it"
        raise
    finally:
        for agents in all_agents:
            if isinstance(agents, RemoteAgents):
                agents.end(error)
        for agents in all_agents:
            agents.close()


def _call(server: str, port: int, interface: str | None, admission: _Admission) -> Link:
    def source(address: str) -> str | None:
        """Address of the measured interface: the server sends to the client's source address."""
        return None if interface is None else find_interface(interface, interfaces.source_towards(address)).address

    check = admission.check("mlt perf would connect to")
    try:
        found = look_up(server, port, socket.SOCK_STREAM)
        link = Link(dial(found, HELLO_SECONDS, check, source), PROGRAM)
    except OSError as error:
        raise PerfError(
            f"no mlt perf at {where(server, port)} ({error.strerror or error}); start 'mlt perf --serve' there (with a "
            f"job secret, {secret_module.VARIABLE}: else it serves loopback only), and let its port through the "
            "firewall"
        ) from None
    link.watch_network()
    return link


def _join(config: JobConfig, own: Host, port: int, options: Options) -> tuple[Link, Message]:
    """The link to rank 0, and its message when all ranks are connected. Connects again if rank 0 closes it without a
    reply."""
    deadline = time.monotonic() + options.timeout
    who = f"rank 0 at {where(config.master_addr, port)}"
    is_announced = False

    def waiting_text() -> str:
        if is_announced:
            return f"rank {config.rank}: {who} still waits for other ranks; it reports which are missing"
        return (
            f"rank {config.rank}: still waiting for {who} (times out {options.timeout:g} s after its start); check "
            "that mlt perf is running there, with the same MASTER_PORT"
        )

    with speaking(waiting_text):
        while True:
            is_announced = False
            link = _reach(config, port, deadline)
            try:
                prover = handshake(link, config.secret, who)
                say_proved(link, prover, hello(host=as_dict(own)))
                is_announced = True
                return link, read_proved(link, prover, who, options.timeout + HELLO_SECONDS)
            except (LinkClosedError, OSError) as error:
                link.close()
                if time.monotonic() >= deadline:
                    raise PerfError(f"rank {config.rank}: {cause_of(error)}") from None
                time.sleep(RETRY_SECONDS)
            except BaseException:
                link.close()
                raise


def _reach(config: JobConfig, port: int, deadline: float) -> Link:
    check = _Admission(config.secret, config.insecure).check(f"rank {config.rank} would announce itself at")
    while True:
        try:
            found = [(*one[:4], (one[4][0], port, *one[4][2:])) for one in resolve_master(config, socket.SOCK_STREAM)]
            link = Link(dial(found, max(deadline - time.monotonic(), 0.1), check), PROGRAM)
            link.watch_network()
            return link
        except OSError as error:
            if time.monotonic() >= deadline:
                raise PerfError(
                    f"rank {config.rank}: rank 0 does not reply at {where(config.master_addr, port)} "
                    f"({error.strerror or error}); check that mlt perf is running there, with the same MASTER_PORT"
                ) from None
            time.sleep(RETRY_SECONDS)


def _job_port(environ: Mapping[str, str], config: JobConfig) -> int:
    own = variables.port(environ, "MLT_PERF_PORT")
    return port_beside(config.rendezvous_port, PERF_OFFSET - RENDEZVOUS_OFFSET) if own is None else own


def _job_name() -> str:
    return f"perf-{os.urandom(6).hex()}"
