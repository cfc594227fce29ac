"""One rank of one transport, in a separate process: executes commands and replies with measurements.

Started as ``python -m mlt.perf.agent JOB`` by ``agents``. Ends when the socket to its parent closes. Commands:
``announce``, ``open``, ``case``, ``verify``, ``turn``, ``close``.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from mlt._shared import variables
from mlt._shared.link import Link, Message
from mlt._shared.os_errors import cause_of
from mlt._shared.processes import end_with_parent
from mlt.errors import MltError
from mlt.perf.local_address import free_port, network_id, retransmitted_segments
from mlt.perf.options import Options
from mlt.perf.patterns import Buffers, Case, cases_of, read_case
from mlt.perf.problem import PROGRAM, BadOptionError
from mlt.perf.transports import Address, Place, transport_class
from mlt.perf.transports.mpi import RANK_VARIABLE


class Agent:
    """Owned by the main thread."""

    def __init__(self, transport: str, place: Place, options: Options) -> None:
        self._place = place
        self._options = options
        self._transport = transport_class(transport)(place, options)
        self._buffers: dict[int, Buffers] = {}
        self._counted: dict[str, int] = {}

    def obey(self, message: Message) -> Message:
        """Execute ``message``; returns the reply."""
        actions: dict[str, Callable[[Message], Message]] = {
            "announce": self._announce,
            "open": self._open,
            "case": self._case,
            "verify": self._verify,
            "turn": self._turn,
            "close": self._close,
        }
        answer = actions[str(message["do"])](message)
        return {"kind": message["do"], **answer}

    def _announce(self, _: Message) -> Message:
        address = self._place.address
        return {"host": address, "port": free_port(address), "network": network_id()}

    def _open(self, message: Message) -> Message:
        self._transport.open([Address(str(host), int(port)) for host, port in message["table"]])
        return {}

    def _case(self, message: Message) -> Message:
        is_bounded = self._transport.is_bounded
        case = read_case(message, self._options, is_bounded=is_bounded)
        if message["first"]:
            self._buffers.clear()  # before the new ones are allocated: they may be large
        number = int(message["id"])
        self._buffers.pop(number, None)
        if len(self._buffers) >= len(cases_of(self._options, case.bytes, is_bounded=is_bounded)):
            raise BadOptionError("more cases of one size than the run's options have")
        self._buffers[number] = Buffers(case, self._place.rank)
        return {}

    def _verify(self, message: Message) -> Message:
        buffers = self._buffers[int(message["id"])]
        buffers.spoil()
        outcome = self._transport.round(buffers)
        self._count()
        if not self._transport.is_reliable:
            return {"missing": 1 - (outcome.arrived_bytes or 0) / buffers.case.bytes if self._place.rank == 0 else 0.0}
        return {"missing": buffers.missing()}

    def _turn(self, message: Message) -> Message:
        """One untimed round, which synchronises the ranks, then the requested number of timed ones."""
        buffers, rounds = self._buffers[int(message["id"])], int(message["rounds"])
        if not 0 < rounds <= self._options.rounds_of(buffers.case.bytes):
            raise BadOptionError(f"{rounds} rounds in a turn: not in the run's options")
        buffers.spoil()
        self._transport.round(buffers)
        pace = self._pace(buffers.case)
        again, cpu = retransmitted_segments(), _cpu_seconds()
        began = time.perf_counter()
        outcomes = []
        for number in range(rounds):
            buffers.before_round(number)
            if pace:
                time.sleep(max(0.0, began + number * pace - time.perf_counter()))
            outcomes.append(self._transport.round(buffers))
        elapsed = time.perf_counter() - began
        return {
            "seconds": [outcome.seconds for outcome in outcomes] if self._place.rank == 0 else [],
            "elapsed": elapsed,
            "cpu": _cpu_seconds() - cpu,
            "missing": sum(outcome.missing_bytes for outcome in outcomes),
            "arrived": [outcome.arrived_bytes for outcome in outcomes if outcome.arrived_bytes is not None],
            "retransmitted": retransmitted_segments() - again,
            "counters": self._count(),
        }

    def _count(self) -> dict[str, int]:
        """Increase of the transport's counters since the last call, the untimed round included.

        Only called after a round: before the first one, other ranks may already be sending, and a packet would be
        counted as sent there and not as received here.
        """
        before, self._counted = self._counted, self._transport.counters()
        return {name: value - before.get(name, 0) for name, value in self._counted.items()}

    def _pace(self, case: Case) -> float:
        """Seconds from one round's start to the next if a rate is set; 0: without a pause."""
        asks = self._place.rank == 0 or case.pattern not in ("p2p", "incast")
        return case.port_bytes * 8 / self._options.rate if self._options.rate is not None and asks else 0.0

    def _close(self, _: Message) -> Message:
        self._transport.close()
        return {}


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(argument: str) -> None:
    """Connect to the parent and serve it. ``argument``: JSON from ``agents``."""
    job: dict[str, Any] = json.loads(argument)
    rank = variables.integer(os.environ, RANK_VARIABLE) if job["rank"] is None else int(job["rank"])
    assert rank is not None
    if job["cpus"]:
        os.sched_setaffinity(0, {job["cpus"][rank % len(job["cpus"])]})
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(job["socket"])
    link = Link(connection, PROGRAM)
    link.send({"rank": rank})
    messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
    end_with_parent(link, messages.put)
    place = Place(**{**job["place"], "rank": rank})
    try:
        agent = Agent(job["transport"], place, Options.read(job["options"]))
        link.send({"kind": "ready"})
        while True:
            message = messages.get()
            link.send(agent.obey(message))
            if message["do"] == "close":
                break
    except (MltError, RuntimeError, OSError, MemoryError, ImportError, LookupError, TypeError, ValueError) as error:
        text = cause_of(error)
        link.send({"kind": "error", "text": text if isinstance(error, MltError) else f"rank {rank}: {text}"})
        # The library may still be waiting for peers that are gone.
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
