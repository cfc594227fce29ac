"""Agents on other machines: one TCP connection to each machine carries what is said to them and by them.

It also carries who each is: the first line each way holds the versions and the sender's interface, so that machines
that cannot measure together say so before anything starts. Whoever reaches the port of ``mlt perf --serve`` may start
measurements on that machine, and nothing else: options are checked as if typed there, transports are named, no code
passes.
"""

from __future__ import annotations

import contextlib
import ipaddress
import queue
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlt import __version__
from mlt._shared.link import GoneError, Link, Message, SilenceError, StrangerError
from mlt.perf.agents import Agents, Event, Events, LocalAgents
from mlt.perf.local_address import Interface, family_of, fitting_payload
from mlt.perf.options import Options
from mlt.perf.problem import BadOptionError, PerfError
from mlt.perf.transports import Place

# Of the lines between machines; raised when one changes its meaning.
PROTOCOL = 2
MAX_HELLO_BYTES = 64 << 10
HELLO_SECONDS = 20.0
# How long whoever calls may take to say who it is: others wait behind it.
CALLER_SECONDS = 5.0
# A rank is 16 bits on the wire; an MTU is the kernel's int.
MAX_RANKS, MAX_MTU = 1 << 16, (1 << 31) - 1
# The machine that leads says at least that it is still there.
ALIVE_SECONDS, SILENCE_SECONDS = 5.0, 30.0


@dataclass(frozen=True)
class Host:
    """A rank's machine, as it describes itself."""

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
    """The first line each way."""
    return {"mlt_perf": PROTOCOL, "version": __version__, **content}


def read_hello(link: Link, who: str, seconds: float = HELLO_SECONDS) -> Message:
    """The other side's first line, checked. Raises PerfError; StrangerError if it is not mlt perf."""
    try:
        message = link.receive(timeout=seconds, limit=MAX_HELLO_BYTES)
    except GoneError as error:
        raise GoneError(f"{who} said nothing: {error}; is it mlt perf that listens there?") from None
    check_hello(message, who)
    return message


def check_hello(message: Message, who: str) -> None:
    """Raise PerfError if ``message`` refuses, is of another version, or is not mlt perf's."""
    if "refused" in message:
        raise PerfError(f"{who} refused: {message['refused']}")
    version, protocol = message.get("version"), message.get("mlt_perf")
    if "mlt_doctor" in message:
        raise StrangerError(
            f"{who} is mlt doctor, not mlt perf: they have the same --port by default; start 'mlt perf --serve' for "
            "'mlt perf HOST', 'mlt doctor --serve' for 'mlt doctor HOST', and both with a --port each"
        )
    if protocol is None:
        raise StrangerError(f"{who} is not mlt perf")
    if protocol != PROTOCOL or version != __version__:
        raise PerfError(
            f"{who} runs mlt {version} (perf protocol {protocol}), this side {__version__} ({PROTOCOL}): figures would "
            "not be of one program; install the same version on all machines"
        )


def read_host(message: Message, who: str) -> Host:
    """The machine of a hello."""
    try:
        host = Host(**message["host"])
        # What JSON calls a number may be infinite, or a truth value; whoever connects chooses it.
        known = type(host.rank) is int and type(host.mtu) is int and isinstance(host.interface, str)
        if known and 0 <= host.rank < MAX_RANKS and 0 < host.mtu <= MAX_MTU and isinstance(host.address, str):
            ipaddress.ip_address(host.address)
            return host
    except (KeyError, TypeError, ValueError):
        pass
    raise PerfError(f"{who} did not send its rank and address")


def check_hosts(hosts: Sequence[Host], options: Options) -> None:
    """Raise PerfError where the MTUs differ and packets would be as large as the larger allows, or the IP versions."""
    first = hosts[0]
    for host in hosts:
        if family_of(host.address) != family_of(first.address):
            raise PerfError(
                f"{first} and {host} have no IP version in common; choose addresses of one with --interface, for "
                "example --interface 10.0.0.0/8"
            )
    least = min(hosts, key=lambda host: host.mtu)
    most = max(hosts, key=lambda host: host.mtu)
    fitting = fitting_payload(least.address, least.mtu)
    if least.mtu != most.mtu and (options.segment_bytes is None or options.segment_bytes > fitting):
        raise PerfError(
            f"MTU mismatch: {most} and {least}: packets as large as the one sends do not fit the other's link; give "
            f"both the same (ip link set dev {most.interface} mtu {least.mtu}), or --segment-bytes {fitting}"
        )


def refuse(link: Link, why: str) -> None:
    """Tell the other side why, and hang up."""
    with contextlib.suppress(GoneError):
        link.send({"refused": why})
    link.close()


class RemoteAgents(Agents):
    """The agents of one other machine's rank, over ``link``."""

    def __init__(self, link: Link, host: Host, events: Events) -> None:
        self.ranks = (host.rank,)
        self._link = link
        self._host = host
        self._events = events
        self._closing = False
        self._over = threading.Event()
        threading.Thread(target=self._read, name=f"mlt-perf-rank-{host.rank}", daemon=True).start()
        threading.Thread(target=self._stay_alive, name=f"mlt-perf-alive-{host.rank}", daemon=True).start()

    def start(self, peer: str) -> None:
        self._tell({"do": "start", "peer": peer})

    def send(self, rank: int, peer: str, message: Message) -> None:
        self._tell({"do": "tell", "rank": rank, "peer": peer, "message": message})

    def end(self, error: str | None) -> None:
        """Have the other machine end its agents, and itself with ``error`` if there is one."""
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
        # A machine that is gone is reported by the thread that reads.
        with contextlib.suppress(GoneError):
            self._link.send(message)

    def _read(self) -> None:
        try:
            while True:
                raw = self._link.receive()
                self._events.put(Event(int(raw["rank"]), str(raw["peer"]), dict(raw["message"])))
        except (StrangerError, KeyError, TypeError, ValueError, OverflowError) as error:
            text = str(error)
        if not self._closing:
            lost = f"{self._host} was lost: {text}"
            self._events.put(Event(self._host.rank, "", {"kind": "died", "text": lost, "signal": True}))


def follow(link: Link, place: Place, options: Options) -> None:
    """The other machine's side of ``RemoteAgents``: run its agents until it says that it is over.

    Raises PerfError with what went wrong there, or if the connection breaks.
    """
    events: Events = queue.SimpleQueue()
    agents = LocalAgents({place.rank: place}, options, events)
    pump = threading.Thread(target=_pump, args=(events, link), name="mlt-perf-pump", daemon=True)
    pump.start()
    try:
        while True:
            message = _next(link, place.rank)
            if message.get("do") == "end":
                if message.get("error"):
                    raise PerfError(str(message["error"]))
                return
            _obey(agents, message)
    finally:
        agents.close()
        link.close()
        events.put(_OVER)
        pump.join()


def _next(link: Link, rank: int) -> Message:
    """What the machine that leads the run says next."""
    try:
        return link.receive(timeout=SILENCE_SECONDS)
    except GoneError:
        raise PerfError(f"rank {rank}: lost the connection to the leading host; this host's ranks were ended") from None
    except SilenceError:
        raise PerfError(
            f"rank {rank}: the machine that leads the run has said nothing for {SILENCE_SECONDS:g} s; what ran here "
            "was ended"
        ) from None


def _obey(agents: LocalAgents, message: Message) -> None:
    try:
        if message["do"] == "start":
            agents.start(str(message["peer"]))
        elif message["do"] == "tell":
            agents.send(int(message["rank"]), str(message["peer"]), dict(message["message"]))
        elif message["do"] != "alive":
            raise ValueError(message["do"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadOptionError(f"the machine that leads the run sent something unknown: {error!r}") from None


_OVER = Event(-1, "", {})


def _pump(events: Events, link: Link) -> None:
    with contextlib.suppress(GoneError):
        while (event := events.get()) is not _OVER:
            link.send({"rank": event.rank, "peer": event.peer, "message": event.message})


def as_dict(host: Host) -> Message:
    """For a hello and for the report."""
    return asdict(host)
