"""Random lines at rank 0's rendezvous, with the secret and without: none ends it, none admits an unknown client."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from rendezvous_caller import ANNOUNCEMENT, Caller

from mlt._shared.ports import free_port
from mlt.job._rendezvous_host import Host
from mlt.job.configuration import JobConfig
from mlt.job.rendezvous import VERSION, Endpoint
from mlt.job.secret import JobSecret

SECRET = JobSecret("known to the ranks alone")
TURNS = 150
ODD = (
    *(None, True, [], {}, "", "\ud800", "\x00", "\x1b[2J", "::1", "127.0.0.1%lo", "256.1.1.1", "fe80::1%" + "x" * 99),
    *(0, -1, 1, 1.0, 0.1, 1 << 16, 1 << 64, -(1 << 64), float("inf"), float("nan")),
    *("[" * 50, "9" * 300, [[]] * 9, {"": {}}),
)
SPLICES = (
    *(b"", b"\n", b"\r", b"\0", b'"', b"{", b"}", b",", b"[" * 200),
    *(b"\xff", b"\xed\xa0\x80", b"1e999", b"NaN", b"\\u"),
)


@pytest.fixture
def host() -> Iterator[Host]:
    config = JobConfig(
        rank=0, world_size=3, services=0, job="test", master_addr="127.0.0.1", rendezvous_port=free_port(), host=None,
        secret=SECRET,
    )  # fmt: skip
    with Host(config, Endpoint(0, "127.0.0.1", 1_000), None, Counter()) as made:
        yield made


def serve(host: Host, seconds: float = 0.0) -> None:
    """Runs one turn of ``Host.run``."""
    for key, _ in host._selector.select(seconds):
        if key.data is not None:
            host._read(key.data)
    for caller in host._handshakes.turn():
        host._admit(caller)


def altered(draw: random.Random, message: dict[str, Any]) -> dict[str, Any]:
    """``message`` with a few fields changed, missing, or of another name."""
    fields = dict(message)
    for _ in range(draw.randrange(3)):
        name = draw.choice([*fields, "more"])
        if draw.random() < 0.2:
            fields.pop(name, None)
        else:
            fields[name] = draw.choice(ODD)
    return fields


def damaged(draw: random.Random, line: bytes) -> bytes:
    """``line`` with a few bytes cut out or put in."""
    for _ in range(draw.randrange(3)):
        at = draw.randrange(len(line) + 1)
        line = line[:at] + draw.choice(SPLICES) + line[at + draw.randrange(4) :]
    return line + b"\n"


def answer(host: Host, caller: Caller) -> bytes:
    """The next line that the host says; empty once it has closed, or says nothing for a moment."""
    caller.socket.setblocking(False)
    received, until = b"", time.monotonic() + 0.05
    while b"\n" not in received and time.monotonic() < until:
        serve(host, 0.002)
        try:
            piece = caller.socket.recv(4_096)
        except BlockingIOError:
            continue
        except ConnectionResetError:
            return b""
        if not piece:
            return received
        received += piece
    return received


@pytest.mark.parametrize("knows", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_host__outlives_whatever_is_drawn(host: Host, seed: int, knows: bool) -> None:
    draw = random.Random(seed)
    port, joined = host._config.rendezvous_port, 0
    for _ in range(TURNS):
        with Caller(port, secret=SECRET if knows else JobSecret("guessed, and wrong all the way")) as caller:
            opening = {"mlt_rendezvous": VERSION, "nonce": caller.prover.nonce}
            gentle = draw.random() < 0.7
            line = json.dumps(opening if gentle else altered(draw, opening)).encode()
            caller.say(line + b"\n" if gentle else damaged(draw, line))
            heard = answer(host, caller)
            if not gentle or not heard.endswith(b"\n"):
                assert b"test" not in heard
                continue
            caller.prover.meet(json.loads(heard)["nonce"])
            content = json.dumps(altered(draw, {**ANNOUNCEMENT, "size": 3}))
            said = {"content": content, "proof": caller.prover.prove(content)}
            said = said if draw.random() < 0.7 else altered(draw, said)
            line = json.dumps(said).encode()
            caller.say(damaged(draw, line) if draw.random() < 0.3 else line + b"\n")
            heard = answer(host, caller)
            assert knows or not heard
            joined += len(host._ranks) == 2
        until = time.monotonic() + 5
        while host._callers or host._handshakes._callers:  # until it has noticed that this one left
            assert time.monotonic() < until
            serve(host, 0.01)
        assert list(host._ranks) == [0]
    assert (joined > 0) == knows
    assert host._handshakes.counts["rendezvous_accepted"] == TURNS
