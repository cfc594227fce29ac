"""The ways into a run: all ranks here (--local), a server and a client, or the ranks of a job from the environment.

In a job rank 0 leads and prints. Between a server and a client the server is rank 0, because only it is known to be
reachable; the client leads and prints.
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

from mlt._shared.link import GoneError, Link, Message, StrangerError
from mlt.errors import MltError
from mlt.job.address import local_host
from mlt.job.configuration import JobConfig
from mlt.job.door import Caller, Door
from mlt.perf.agents import Agents, Events, LocalAgents
from mlt.perf.conductor import Conductor, Measurement, Observe, Skipped
from mlt.perf.gathering import Gathering, listeners
from mlt.perf.local_address import find_interface, listen, where
from mlt.perf.options import Options
from mlt.perf.problem import PROGRAM, BadOptionError, PerfError
from mlt.perf.remote import (
    CALLER_SECONDS,
    HELLO_SECONDS,
    PROTOCOL,
    Host,
    RemoteAgents,
    as_dict,
    check_hosts,
    follow,
    hello,
    host_of,
    place_of,
    read_hello,
    read_host,
    refuse,
)

DEFAULT_PORT = 29_600
# After MASTER_PORT and mlt's own rendezvous.
JOB_PORT_OFFSET = 2
RETRY_SECONDS = 0.1
REPORT_SECONDS = 10.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """What a run came to, on the rank that led it."""

    options: Options
    mode: str
    hosts: tuple[Host, ...]
    measurements: tuple[Measurement, ...]
    skipped: tuple[Skipped, ...]
    seconds: float


def run_local(options: Options, interface: str | None, observe: Observe) -> Result:
    """All ranks on this machine, over loopback unless an interface is named."""
    found = find_interface(interface, "127.0.0.1")
    hosts = [host_of(rank, found) for rank in range(options.ranks)]
    job = _job_name()
    events: Events = queue.SimpleQueue()
    agents = LocalAgents({host.rank: place_of(host, options.ranks, job) for host in hosts}, options, events)
    return _lead("local", options, hosts, [agents], events, observe)


def run_client(options: Options, server: str, port: int, interface: str | None, observe: Observe) -> Result:
    """Point to point with ``mlt perf --serve`` on another machine: rank 1 here sends to rank 0 there."""
    if options.ranks != 2:
        raise BadOptionError(f"{options.ranks} ranks: a server and a client are 2; more are a job (RANK, WORLD_SIZE)")
    link, who, job = _call(server, port), f"the server at {where(server, port)}", _job_name()
    try:
        own = host_of(1, find_interface(interface, link.local_host))
        link.send(hello(host=as_dict(own), options=options.as_dict(), job=job))
        other = read_host(read_hello(link, who), who)
        hosts = [other, own]
        check_hosts(hosts, options)
    except BaseException as error:
        refuse(link, str(error))
        raise
    events: Events = queue.SimpleQueue()
    all_agents = [LocalAgents({1: place_of(own, 2, job)}, options, events), RemoteAgents(link, other, events)]
    return _lead("server and client", options, hosts, all_agents, events, observe)


def serve(port: int, interface: str | None, *, once: bool, say: Say) -> None:
    """Be rank 0 for one client after another, until interrupted (or for one: what went wrong with it is raised)."""
    bind = "" if interface is None else find_interface(interface, "127.0.0.1").address
    with listen(bind, port) as listener:
        say(f"mlt perf: serving at {bind or 'all addresses'}, port {port}; the other side: mlt perf HOST --port {port}")
        door = Door("perf", PROTOCOL, None, proof=False, listeners=[listener])
        waiting: list[Caller] = []
        told = ""
        while True:
            # Those that said something, one after the other; those that say nothing hold nobody up.
            while not waiting:
                waiting = door.wait(REPORT_SECONDS)
                if told != (told := door.turned_away()):
                    say(f"mlt perf: connections rejected so far: {told}")
            caller = waiting.pop(0)
            address = caller.address
            try:
                link = Link(caller.connection, PROGRAM, caller.content.encode() + b"\n" + caller.received)
                link.watch_network()
            except OSError:  # gone already
                continue
            busy = threading.Event()
            turn_away = threading.Thread(target=_turn_away, args=(listener, busy), daemon=True)
            turn_away.start()
            try:
                _serve_one(link)
                say(f"mlt perf: a run with {address} is done")
            except StrangerError as error:
                refuse(link, str(error))
                say(f"mlt perf: rejected: {error}")
                continue
            except (MltError, OSError) as error:
                refuse(link, str(error))
                if once:
                    raise (
                        error if isinstance(error, MltError) else PerfError(f"the client at {address}: {error}")
                    ) from None
                say(f"mlt perf: the run with {address} failed: {error}")
            except Exception as error:  # whatever a stranger's bytes may raise, the next client is served
                refuse(link, f"what you said was not understood ({type(error).__name__})")
                if once:
                    raise
                say(f"mlt perf: {address} said what was not understood: {type(error).__name__}: {error}")
            finally:
                busy.set()
                turn_away.join()
            if once:
                return


def _serve_one(link: Link) -> None:
    message = read_hello(link, f"the caller from {link.peer_host}", CALLER_SECONDS)
    options = Options.read(message.get("options"))
    read_host(message, "the client")
    if options.ranks != 2:
        raise BadOptionError(f"{options.ranks} ranks: a server and a client are 2")
    host = host_of(0, find_interface(None, link.local_host))
    link.send(hello(host=as_dict(host)))
    follow(link, place_of(host, 2, str(message.get("job"))), options)


def _turn_away(listener: socket.socket, busy: threading.Event) -> None:
    """While one client is served, tell others so rather than let them wait."""
    listener.settimeout(RETRY_SECONDS)
    while not busy.is_set():
        with contextlib.suppress(TimeoutError, OSError):
            refuse(Link(listener.accept()[0], PROGRAM), "it is busy with another client; try again later")
    listener.setblocking(False)


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
        follow(link, place_of(own, agreed.ranks, str(answer.get("job"))), agreed)
    finally:
        link.close()
    return None


def _lead_job(options: Options, config: JobConfig, own: Host, port: int, observe: Observe, say: Say) -> Result:
    job = _job_name()
    with Gathering(listeners(config, own.address, port), own, config.world_size, say) as gathering:
        try:
            gathering.run(options.timeout)
            links, hosts = gathering.links, gathering.hosts
            check_hosts([hosts[rank] for rank in sorted(hosts)], options)
            for link in links.values():
                link.send(hello(host=as_dict(own), options=options.as_dict(), job=job))
        except BaseException as error:
            for link in gathering.links.values():
                refuse(link, str(error) or "rank 0 was interrupted")
            raise
    events: Events = queue.SimpleQueue()
    all_agents: list[Agents] = [LocalAgents({0: place_of(own, options.ranks, job)}, options, events)]
    all_agents += [RemoteAgents(links[rank], hosts[rank], events) for rank in sorted(links)]
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
    """Afterwards no agent is left, here or there; others learn of a failure and its cause."""
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


def _call(server: str, port: int) -> Link:
    try:
        link = Link(socket.create_connection((server, port), timeout=HELLO_SECONDS), PROGRAM)
    except OSError as error:
        raise PerfError(
            f"no mlt perf at {where(server, port)} ({error.strerror or error}); start 'mlt perf --serve' there, and "
            "let its port through the firewall"
        ) from None
    link.watch_network()
    return link


def _join(config: JobConfig, own: Host, port: int, options: Options) -> tuple[Link, Message]:
    """The link to rank 0, and what it says when all ranks are there. Who is hung up on without a word comes again."""
    deadline = time.monotonic() + options.timeout
    while True:
        link = _reach(config, port, deadline)
        try:
            link.send(hello(host=as_dict(own)))
            who = f"rank 0 at {where(config.master_addr, port)}"
            return link, read_hello(link, who, options.timeout + HELLO_SECONDS)
        except (GoneError, OSError) as error:
            link.close()
            if time.monotonic() >= deadline:
                raise PerfError(f"rank {config.rank}: {error}") from None
            time.sleep(RETRY_SECONDS)
        except BaseException:
            link.close()
            raise


def _reach(config: JobConfig, port: int, deadline: float) -> Link:
    while True:
        try:
            link = Link(
                socket.create_connection((config.master_addr, port), timeout=max(deadline - time.monotonic(), 0.1)),
                PROGRAM,
            )
            link.watch_network()
            return link
        except OSError as error:
            if time.monotonic() >= deadline:
                raise PerfError(
                    f"rank {config.rank}: rank 0 does not answer at {where(config.master_addr, port)} "
                    f"({error.strerror or error}); is mlt perf running there, with the same MASTER_PORT?"
                ) from None
            time.sleep(RETRY_SECONDS)


def _job_port(environ: Mapping[str, str], config: JobConfig) -> int:
    text = environ.get("MLT_PERF_PORT")
    if text is None:
        return config.rendezvous_port + JOB_PORT_OFFSET - 1
    if not text.isdecimal() or not 0 < int(text) < 65_536:
        raise BadOptionError(f"MLT_PERF_PORT is {text!r}; a port is 1 to 65535")
    return int(text)


def _job_name() -> str:
    return f"perf-{os.urandom(6).hex()}"
