"""Agents on other hosts: one TCP connection to each host carries the messages to and from them.

Both ends first prove the job's secret (``mlt.job.handshake_server``). The next line holds the versions and the sender's
interface, so that incompatible hosts report it before anything starts. A client of ``mlt perf --serve`` can start
measurements with that host, and nothing else: options are validated as if typed there, transports are chosen by name,
no code is transferred, cases are those of the options, traffic goes to the client's own address, and the time is
limited (``Follower``).
"""

from __future__ import annotations

import contextlib
import ipaddress
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlt import __version__
from mlt._shared.json_lines import MAX_QUOTED, object_of, quoted
from mlt._shared.link import Link, LinkClosedError, LinkError, LinkTimeoutError, Message
from mlt.errors import ConfigError
from mlt.job import handshake_client
from mlt.job.secret import VARIABLE, JobSecret, Prover, require
from mlt.perf.agents import Agents, Event, Events, LocalAgents
from mlt.perf.local_address import Interface, family_of, fitting_payload
from mlt.perf.options import OURS, Options
from mlt.perf.problem import BadOptionError, PerfError
from mlt.perf.transports import Place

# Version of the lines between hosts; incremented when one changes its meaning.
PROTOCOL = 4
SERVICE = "perf"
MAX_HELLO_BYTES = 64 << 10
HELLO_SECONDS = 20.0
# Max seconds that a line of the start may wait until the other side reads.
SEND_SECONDS = 5.0
# Max characters of a reason that the other host sent.
MAX_REASON, MAX_ERROR = 1_000, 10_000
# A rank has 16 bits on the wire; an MTU is the kernel's int.
MAX_RANKS, MAX_MTU = 1 << 16, (1 << 31) - 1
# Seconds between keepalive messages of the coordinating host.
ALIVE_SECONDS, SILENCE_SECONDS = 5.0, 30.0


@dataclass(frozen=True)
class Host:
    """A rank's host, as it describes itself."""

    rank: int
    address: str
    interface: str
    mtu: int

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.interface} {self.address}, MTU {self.mtu})"


def host_of(rank: int, interface: Interface) -> Host:
    return Host(rank, interface.address, interface.name, interface.mtu)


def place_of(host: Host, ranks: int, job: str) -> Place:
    return Place(host.rank, ranks, host.address, host.interface, host.mtu, job)


def hello(**content: Any) -> Message:
    """The first line in each direction."""
    return {"mlt_perf": PROTOCOL, "version": __version__, **content}


def handshake(link: Link, secret: JobSecret | None, who: str, seconds: float = HELLO_SECONDS) -> Prover:
    """Prove the secret to the listening side, and have it prove the same.

    Raises PerfError; LinkClosedError if it closed the connection; LinkError if it is not mlt perf.
    """

    def hear() -> Message:
        try:
            return link.receive(timeout=seconds, limit=MAX_HELLO_BYTES)
        except LinkClosedError as error:
            raise LinkClosedError(f"{who} sent nothing: {error}; check that mlt perf listens there") from None

    try:
        return handshake_client.handshake(SERVICE, PROTOCOL, secret, link.send, hear)
    except handshake_client.HandshakeError as error:
        if error.unproved:
            why = "this host has none" if secret is None else "it has another one, or none"
            raise PerfError(
                f"{who} did not prove that it knows the job's secret: {why}; give mlt perf the same {VARIABLE} on all "
                "hosts"
            ) from None
        check_versions(error.message or {}, who)
    raise LinkError(f"{who} is not mlt perf")


def say_proved(link: Link, prover: Prover, message: Message) -> None:
    """One line of the start, with its proof. Raises LinkClosedError."""
    link.send(handshake_client.proved(prover, message), timeout=SEND_SECONDS)


def read_proved(link: Link, prover: Prover, who: str, seconds: float = HELLO_SECONDS) -> Message:
    """The listening side's reply to a hello. Raises PerfError; LinkError for a reply without a valid proof."""
    try:
        message = link.receive(timeout=seconds, limit=MAX_HELLO_BYTES)
    except LinkClosedError as error:
        raise LinkClosedError(f"{who} sent nothing: {error}; check that mlt perf listens there") from None
    content = message.get("content")
    if not isinstance(content, str) or not prover.check(message.get("proof"), content):
        raise LinkError(f"{who} sent a reply without a proof of the job's secret")
    return read_hello(content, who)


def read_hello(content: str, who: str) -> Message:
    """The hello or rejection in ``content``, validated. Raises PerfError; LinkError if it is neither."""
    try:
        message = object_of(content)
    except ValueError:
        raise LinkError(f"{who} sent no JSON object") from None
    if "refused" in message:
        raise PerfError(f"{who} refused: {quoted(message['refused'], MAX_REASON)}")
    check_versions(message, who)
    return message


def check_versions(message: Message, who: str) -> None:
    """Raise PerfError if ``message`` is of another version; LinkError if it is not from mlt perf."""
    version, protocol = message.get("version"), message.get("mlt_perf")
    if "mlt_doctor" in message:
        raise LinkError(
            f"{who} is mlt doctor, not mlt perf: they have the same --port by default; start 'mlt perf --serve' for "
            "'mlt perf HOST', 'mlt doctor --serve' for 'mlt doctor HOST', and both with a --port each"
        )
    if protocol is None and "refused" not in message:  # versions before 3 refused unknown ones
        raise LinkError(f"{who} is not mlt perf")
    if protocol != PROTOCOL or version != __version__:
        release = f" mlt {quoted(version)}" if version is not None else " another mlt release"
        raise PerfError(
            f"{who} runs{release} (perf protocol {quoted(protocol)}), this side {__version__} ({PROTOCOL}): "
            "install the same version on all hosts"
        )


def read_host(message: Message, who: str) -> Host:
    """The host of a hello."""
    try:
        host = Host(**message["host"])
        # A JSON number may be infinite or a boolean; the client chooses it.
        known = (
            type(host.rank) is int
            and type(host.mtu) is int
            and isinstance(host.interface, str)
            and len(host.interface) <= MAX_QUOTED
        )
        if known and 0 <= host.rank < MAX_RANKS and 0 < host.mtu <= MAX_MTU and isinstance(host.address, str):
            ipaddress.ip_address(host.address)
            return host
    except (KeyError, TypeError, ValueError):
        pass
    raise PerfError(f"{who} did not send its rank and address")


def check_hosts(hosts: Sequence[Host], options: Options) -> None:
    """Raise PerfError if the IP versions differ, or if the MTUs differ and packets would have the size of the larger
    one."""
    first = hosts[0]
    for host in hosts:
        if family_of(host.address) != family_of(first.address):
            raise PerfError(
                f"{first} and {host} have no IP version in common; choose addresses of one with --interface, for "
                "example --interface 10.0.0.0/8"
            )
    smallest = min(hosts, key=lambda host: host.mtu)
    largest = max(hosts, key=lambda host: host.mtu)
    fitting = fitting_payload(smallest.address, smallest.mtu)
    if smallest.mtu != largest.mtu and (options.segment_bytes is None or options.segment_bytes > fitting):
        raise PerfError(
            f"MTU mismatch: {largest} and {smallest}: packets as large as the one sends do not fit the other's link; "
            f"give both the same (ip link set dev {largest.interface} mtu {smallest.mtu}), or --segment-bytes {fitting}"
        )


def refuse(link: Link, prover: Prover, why: str) -> None:
    """Send the reason, as far as the connection accepts it at once, and close it: never waits for a client that does
    not read."""
    link.send_last(handshake_client.proved(prover, {"refused": why[:MAX_REASON]}))
    link.close()


class RemoteAgents(Agents):
    """The agents of one other host's rank, over ``link``."""

    def __init__(self, link: Link, host: Host, events: Events) -> None:
        self.ranks = (host.rank,)
        self._link = link
        self._host = host
        self._events = events
        self._closing = False
        self._over = threading.Event()
        threading.Thread(target=self._read, name=f"mlt-perf-rank-{host.rank}", daemon=True).start()
        threading.Thread(target=self._stay_alive, name=f"mlt-perf-alive-{host.rank}", daemon=True).start()

    def start(self, transport: str) -> None:
        self._tell({"do": "start", "transport": transport})

    def send(self, rank: int, transport: str, message: Message) -> None:
        self._tell({"do": "tell", "rank": rank, "transport": transport, "message": message})

    def end(self, error: str | None) -> None:
        """Have the other host end its agents, and itself with ``error`` if there is one."""
        self._closing = True
        self._tell({"do": "end", "error": error})

    def close(self) -> None:
        self._closing = True
        self._over.set()
        self._link.close()

    def _stay_alive(self) -> None:
        while not self._over.wait(ALIVE_SECONDS):
            self._tell({"do": "alive"})

    def _tell(self, message: Message) -> None:
        # The reading thread reports a host that has disconnected.
        with contextlib.suppress(LinkClosedError):
            self._link.send(message)

    def _read(self) -> None:
        try:
            while True:
                raw = self._link.receive()
                self._events.put(Event(int(raw["rank"]), str(raw["transport"]), dict(raw["message"])))
        except (LinkError, KeyError, TypeError, ValueError, OverflowError) as error:
            text = str(error)
        if not self._closing:
            lost = f"{self._host} was lost: {text}"
            self._events.put(Event(self._host.rank, "", {"kind": "died", "text": lost, "signal": True}))


@dataclass(frozen=True)
class Follower:
    """The other host's side of ``RemoteAgents``. ``peer_host``: permitted destination of traffic, besides this rank's
    own address; None in a job, where rank 0 names the ranks, but without a ``secret`` loopback addresses only."""

    place: Place
    options: Options
    secret: JobSecret | None = None
    insecure: bool = False
    peer_host: str | None = None

    def table(self, raw: object) -> list[list[str | int]]:
        """Addresses of the ranks of a transport, from the coordinating host. Raises BadOptionError."""
        place = self.place
        if not isinstance(raw, list) or len(raw) != place.ranks:
            raise BadOptionError(f"rank {place.rank}: a table of other ranks than the run's {place.ranks}")
        found: list[list[str | int]] = []
        for rank, row in enumerate(raw):
            match row:
                case [str(host), int(port)] if 0 < port < 65_536 and not isinstance(port, bool):
                    pass
                case _:
                    raise BadOptionError(f"rank {place.rank}: no address and port of rank {rank}")
            if rank == place.rank:
                host = place.address
            elif self.peer_host is not None:
                # Otherwise a client could have this host send to any other.
                host = self.peer_host
            try:
                ipaddress.ip_address(host)
            except ValueError:
                raise BadOptionError(f"rank {place.rank}: rank {rank}'s address {quoted(host)} is none") from None
            require(self.secret, self.insecure, host, f"rank {place.rank} would send to rank {rank} at")
            found.append([host, port])
        return found


def follow(link: Link, follower: Follower) -> None:
    """Run the agents of this host until the coordinating host ends the run or it exceeds the max duration of its
    options.

    Raises PerfError with the error of the coordinating host, or if the connection breaks.
    """
    place, options = follower.place, follower.options
    events: Events = queue.SimpleQueue()
    agents = LocalAgents({place.rank: place}, options, events)
    pump = threading.Thread(target=_pump, args=(events, link), name="mlt-perf-pump", daemon=True)
    pump.start()
    started: set[str] = set()
    deadline = time.monotonic() + options.longest_seconds
    try:
        while True:
            message = _next(link, place.rank)
            if message.get("do") == "end":
                if message.get("error"):
                    raise PerfError(str(message["error"])[:MAX_ERROR])
                return
            if time.monotonic() > deadline:
                raise BadOptionError(
                    f"rank {place.rank}: the run took more than {options.longest_seconds:.0f} s, more than its options "
                    "need; give it fewer --rounds or sizes"
                )
            _obey(agents, message, follower, started)
    except (BadOptionError, ConfigError) as error:
        link.send_last({"rank": place.rank, "transport": "", "message": {"kind": "error", "text": str(error)}})
        raise
    finally:
        agents.close()
        link.close()
        events.put(_OVER)
        pump.join()


def _next(link: Link, rank: int) -> Message:
    """The next message of the coordinating host."""
    try:
        return link.receive(timeout=SILENCE_SECONDS, limit=MAX_HELLO_BYTES)
    except LinkClosedError:
        raise PerfError(f"rank {rank}: lost the connection to the leading host; this host's ranks were ended") from None
    except LinkTimeoutError:
        raise PerfError(
            f"rank {rank}: the leading host has been silent for {SILENCE_SECONDS:g} s; this host's ranks were ended"
        ) from None


def _obey(agents: LocalAgents, message: Message, follower: Follower, started: set[str]) -> None:
    try:
        if message["do"] == "start":
            transport = message["transport"]
            if transport not in (OURS, *follower.options.transports) or transport in started:
                raise BadOptionError(f"transport {quoted(transport)}: not one of the run's options, or started already")
            started.add(transport)
            agents.start(transport)
        elif message["do"] == "tell":
            told = dict(message["message"])
            if told.get("do") == "open":
                told["table"] = follower.table(told.get("table"))
            agents.send(int(message["rank"]), str(message["transport"]), told)
        elif message["do"] != "alive":
            raise ValueError(message["do"])
    except (BadOptionError, ConfigError):
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        why = quoted(repr(error))
        raise BadOptionError(f"the leading host sent an unknown command: {why}") from None


_OVER = Event(-1, "", {})


def _pump(events: Events, link: Link) -> None:
    with contextlib.suppress(LinkClosedError):
        while (event := events.get()) is not _OVER:
            link.send({"rank": event.rank, "transport": event.transport, "message": event.message})


def as_dict(host: Host) -> Message:
    """For a hello and for the report."""
    return asdict(host)
