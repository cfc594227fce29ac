"""Clients with the job's secret that are slow between their opening and their proof, as over a slow link.

    MLT_JOB_SECRET=... python tools/attacks/slow_ranks.py ADDRESS PORT CLIENTS SECONDS

Each opens at rank 0's rendezvous, waits SECONDS, proves itself, and names another job, so that a reply shows that it
was admitted and no rank joins. Prints how many were admitted.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mlt._shared.json_lines import line_of, object_of
from mlt.job.handshake_client import HandshakeError, handshake, proved
from mlt.job.rendezvous import VERSION
from mlt.job.secret import JobSecret


def is_admitted(address: str, port: int, seconds: float) -> bool:
    secret = JobSecret(os.environ["MLT_JOB_SECRET"])
    announcement = {"job": "slow", "rank": 1, "size": 2, "services": 0, "host": "192.0.2.1", "port": 1}
    try:
        with socket.create_connection((address, port), 5.0) as connection, connection.makefile("rb") as stream:

            def say(message: dict[str, Any]) -> None:
                connection.sendall(line_of(message))

            prover = handshake("rendezvous", VERSION, secret, say, lambda: object_of(stream.readline()))
            time.sleep(seconds)
            say(proved(prover, announcement))
            reply = object_of(stream.readline())
            return prover.check(reply.get("proof"), str(reply.get("content")))
    except (OSError, HandshakeError, ValueError):
        return False


def main() -> None:
    address, port, clients, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    with ThreadPoolExecutor(clients) as pool:
        print(json.dumps(sum(pool.map(lambda _: is_admitted(address, port, seconds), range(clients)))))


if __name__ == "__main__":
    main()
