"""A caller of rank 0's rendezvous that says what it likes, with or without the job's secret."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

from checks import until

from mlt.job.rendezvous import VERSION
from mlt.job.secret import JobSecret, Prover

START_SECONDS = 5.0
ANNOUNCEMENT = {"job": "test", "rank": 1, "size": 2, "services": 0, "host": "127.0.0.1", "port": 1}


def connect(port: int, *, source: str = "127.0.0.1") -> socket.socket:
    """A connection to rank 0, once it listens."""

    def attempt() -> socket.socket | None:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), timeout=5.0, source_address=(source, 0))
        return None

    found = until(attempt, START_SECONDS, every=0.01)
    assert found is not None
    return found


class Caller:
    """Waits until rank 0 listens. A context manager."""

    def __init__(self, port: int, *, secret: JobSecret | None = None, source: str = "127.0.0.1") -> None:
        self.prover = Prover(secret, "rendezvous", role="caller")
        self.socket = connect(port, source=source)
        self._stream = self.socket.makefile("rb")

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self.socket.close()

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def line(self) -> bytes:
        """Rank 0's next line; empty once it has closed the connection."""
        try:
            return self._stream.readline()
        except ConnectionResetError:
            return b""

    def open(self) -> bool:
        """Say an opening and take rank 0's; whether its proof is good."""
        self.say(json.dumps({"mlt_rendezvous": VERSION, "nonce": self.prover.nonce}).encode() + b"\n")
        answer = json.loads(self.line())
        assert set(answer) == {"mlt_rendezvous", "nonce", "proof"}  # nothing of the job
        assert self.prover.meet(answer["nonce"])
        return self.prover.check(answer["proof"])

    def announce(self, content: str | None = None, **changes: Any) -> None:
        """Announce a rank, or say any content, with its proof."""
        text = json.dumps({**ANNOUNCEMENT, **changes}) if content is None else content
        self.say(json.dumps({"content": text, "proof": self.prover.prove(text)}).encode() + b"\n")

    def content(self) -> Any:
        """The reply of rank 0, once its proof was found good."""
        answer = json.loads(self.line())
        assert self.prover.check(answer["proof"], answer["content"])
        return json.loads(answer["content"])
