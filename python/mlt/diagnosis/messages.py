"""Messages between the two sides of ``mlt doctor`` over TCP: one JSON object per line, and a greeting both ways.

Requests of the examining side, and their replies:

    hello                          hello                     who we are; every other question comes after it
    tally test least seconds       received classes          datagrams of a test that arrived, after waiting for some
    send test count size ...       count error mtu by        send a test's datagrams to the side that asks
    bye problems                   -                         over

A line is at most 8 KiB. Everything from the network is validated before it is used.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlt import __version__
from mlt._shared.json_lines import quoted
from mlt._shared.link import Link, LinkError, Message
from mlt.diagnosis.datagrams import BUFFER_BYTES
from mlt.options.qos import DscpMap

VERSION = 1
DEFAULT_PORT = 29_600
MAX_LINE = 8_192


@dataclass(frozen=True)
class Hello:
    """One side. ``protocol``: the transport's version, None if the native library does not load."""

    mlt_doctor: int
    package: str
    protocol: int | None
    data_dscp: list[int]
    control_dscp: int
    host: str
    interface: str
    mtu: int
    buffer: int
    port: int
    token: int = 0
    wanted_buffer: int = BUFFER_BYTES

    @property
    def dscp(self) -> DscpMap:
        return DscpMap(data=tuple(self.data_dscp), control=self.control_dscp)


# Code points of a rank without a policy: defaults of the native library (src/core/priority.h).
DEFAULT_DSCP = DscpMap(data=(3, 7, 11, 15, 19, 23, 27), control=31)


def protocol_version() -> int | None:
    """The protocol version in the hello of the installed library."""
    with contextlib.suppress(ImportError):
        from mlt import _core

        return int(_core.PROTOCOL_VERSION)
    return None


def make_hello(dscp: DscpMap, *, interface: str, mtu: int, buffer: int, port: int, token: int = 0) -> Hello:
    """This side's greeting."""
    used = dscp if dscp.data else DEFAULT_DSCP
    return Hello(
        mlt_doctor=VERSION,
        package=__version__,
        protocol=protocol_version(),
        data_dscp=list(used.data),
        control_dscp=used.control,
        host=socket.gethostname(),
        interface=interface,
        mtu=mtu,
        buffer=buffer,
        port=port,
        token=token,
    )


def read_hello(message: Mapping[str, Any]) -> Hello:
    """A validated greeting; raises LinkError."""
    if "mlt_perf" in message or "refused" in message:
        raise LinkError(
            "the program there is mlt perf, not mlt doctor: they have the same --port by default; start 'mlt doctor "
            "--serve' for 'mlt doctor HOST', 'mlt perf --serve' for 'mlt perf HOST', and both with a --port each"
        )
    version = message.get("mlt_doctor")
    if version != VERSION:
        release = quoted(message.get("package", "unknown"))
        raise LinkError(
            f"the program there is mlt doctor of version {quoted(version)} (mlt {release}); this is {VERSION} "
            f"(mlt {__version__})"
        )
    try:
        hello = Hello(
            mlt_doctor=VERSION,
            package=str(message["package"])[:64],
            protocol=None if message["protocol"] is None else int(message["protocol"]),
            data_dscp=[_number(one, 0, 63) for one in message["data_dscp"]][:8],
            control_dscp=_number(message["control_dscp"], 0, 63),
            host=str(message["host"])[:64],
            interface=str(message["interface"])[:64],
            mtu=_number(message["mtu"], 68, 1 << 32),
            buffer=_number(message["buffer"], 0, 1 << 40),
            port=_number(message["port"], 1, 65_535),
            token=_number(message["token"], 0, (1 << 64) - 1),
            wanted_buffer=_number(message["wanted_buffer"], 0, 1 << 40),
        )
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise LinkError(f"its greeting is not valid ({quoted(str(error))})") from None
    if not hello.data_dscp:
        raise LinkError("it sent a greeting without traffic classes")
    return hello


def _number(value: Any, minimum: int, maximum: int) -> int:
    number = int(value)
    if not minimum <= number <= maximum:
        raise ValueError(f"{number} is not in {minimum} to {maximum}")
    return number


def open_link(connection: socket.socket, received: bytes = b"") -> Link:
    """The connection to the other side; ``received``: bytes already read from it."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Link(connection, "mlt doctor", received)


def hear(link: Link, seconds: float) -> Message:
    """The other side's next message; raises LinkError if it is invalid or an error report."""
    message = link.receive(timeout=seconds, limit=MAX_LINE)
    if set(message) == {"error"}:
        raise LinkError(str(message["error"])[:300])
    return message
