"""The examining side of ``mlt doctor HOST``: a connection to the responder, and the measurements over it."""

from __future__ import annotations

import select
import socket
import time
from dataclasses import asdict, dataclass

from mlt._shared.link import LinkError
from mlt.diagnosis.datagrams import ECHO, REPLY, Port, Sent, Tally
from mlt.diagnosis.messages import Hello, hear, make_hello, open_link, read_hello
from mlt.job import interfaces
from mlt.options.qos import DscpMap

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
# Another examination may be in progress there.
TURN_SECONDS = 150.0


@dataclass(frozen=True)
class Echoes:
    """``sent`` datagrams, of which ``arrived`` reached the other side; ``seconds``: sorted round-trip times of those
    that came back."""

    sent: int
    arrived: int
    seconds: tuple[float, ...]

    def quantile(self, fraction: float) -> float:
        return self.seconds[min(int(fraction * len(self.seconds)), len(self.seconds) - 1)]


def connect(address: str, port: int, source: str | None, seconds: float = CONNECT_SECONDS) -> socket.socket:
    """A TCP connection from ``source`` (None: chosen by the routes). Raises OSError."""
    return socket.create_connection(
        (address, port), timeout=seconds, source_address=None if source is None else (source, 0)
    )


class Session:
    """A context manager. Raises LinkError or OSError if the other side breaks off."""

    def __init__(self, connection: socket.socket, dscp: DscpMap) -> None:
        self._tests = 0
        self._link = open_link(connection)
        self.local_address = str(connection.getsockname()[0])
        self.remote_address = str(connection.getpeername()[0])
        self.interface = interfaces.interface_of(self.local_address)
        self.port = Port(self.local_address, 0)
        try:
            self._greet(dscp)
        except BaseException:
            self.port.close()
            raise

    def _greet(self, dscp: DscpMap) -> None:
        mtu = self.interface.mtu if self.interface else 1_500
        self.hello: Hello = make_hello(
            dscp,
            interface=self.interface.name if self.interface else self.local_address,
            mtu=mtu,
            buffer=self.port.granted_bytes,
            port=self.port.number,
        )
        self._link.send(asdict(self.hello))
        self.there = read_hello(hear(self._link, TURN_SECONDS))
        self.port.token = self.there.token
        self.port.peer = (self.remote_address, self.there.port)
        self.port.interface_mtu = mtu

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.port.close()
        self._link.close()

    def bye(self, problems: int) -> None:
        """Report the number of problems found to the other side."""
        self._link.send({"do": "bye", "problems": problems})

    def _ask(self, **question: object) -> dict[str, object]:
        self._link.send(question)
        return hear(self._link, ANSWER_SECONDS)

    def _test(self) -> int:
        self._tests += 1
        return self._tests

    def there_and_counted(
        self, count: int, size: int, traffic_class: int, *, minimum: int, wait: float, interval: float = 0.0005
    ) -> tuple[Sent, Tally]:
        """Send datagrams to the other side; returns the results of both sides."""
        test = self._test()
        self._ask(do="expect", test=test)
        sent = self.port.send_many(test, count, size, traffic_class, interval)
        tally = self._tally(test, min(minimum, sent.count), wait)
        # A router's reply may take as long as the datagram.
        self.port.heed(sent)
        return sent, tally

    def _tally(self, test: int, minimum: int, wait: float) -> Tally:
        answer = self._ask(do="tally", test=test, least=minimum, seconds=wait)
        classes = answer.get("classes")
        if not isinstance(classes, dict):
            raise LinkError("it sent no tally")
        return Tally(int(str(answer.get("received", 0))), {int(one): int(n) for one, n in classes.items()})

    def back_and_counted(
        self, count: int, size: int, traffic_class: int, *, minimum: int, wait: float, interval: float = 0.0005
    ) -> tuple[Sent, Tally]:
        """Have the other side send datagrams; returns the results of both sides."""
        test = self._test()
        self.port.expect(test)
        question = {"test": test, "count": count, "size": size, "class": traffic_class, "interval": interval}
        answer = self._ask(do="send", **question)
        sent = Sent(
            int(str(answer["count"])), int(str(answer["errno"])), int(str(answer["mtu"])), str(answer["by"])[:64]
        )
        tally = self.port.wait(test, min(minimum, sent.count), wait)
        if sent.count and not tally.received and not sent.mtu:
            # The router's report arrived after the other side's reply: its socket has it now.
            late = self._ask(do="send", **{**question, "count": 0})
            sent.mtu, sent.by = int(str(late["mtu"])), str(late["by"])[:64]
        return sent, tally

    def echoes(self, count: int, size: int, traffic_class: int, *, interval: float, wait: float) -> Echoes:
        """Send echo requests ``interval`` seconds apart, without waiting for replies."""
        test = self._test()
        self._ask(do="expect", test=test)
        waiting: dict[int, float] = {}
        seconds: list[float] = []
        begin = time.perf_counter()
        end = begin + count * interval + wait
        sequence = sent = 0
        while (now := time.perf_counter()) < end and (sequence < count or waiting):
            due = begin + sequence * interval
            if sequence < count and now >= due:
                if self.port.send(ECHO, test, sequence, size, traffic_class) == 0:
                    waiting[sequence] = now
                    sent += 1
                sequence += 1
                continue
            pause = (due if sequence < count else end) - now
            if not select.select([self.port.socket], [], [], max(pause, 0))[0]:
                continue
            got = self.port.receive()
            if got is None:
                self.port.errors()
            elif got[:2] == (REPLY, test) and got[2] in waiting:
                seconds.append(time.perf_counter() - waiting.pop(got[2]))
        tally = self._tally(test, 0, 0)
        return Echoes(sent, tally.received, tuple(sorted(seconds)))
