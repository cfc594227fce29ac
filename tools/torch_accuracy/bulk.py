"""TCP of another job: one connection that sends as fast as it may until it is killed.

bulk.py receive PORT
bulk.py send ADDRESS PORT
"""

from __future__ import annotations

import socket
import sys
import time

CHUNK = bytes(1 << 18)
RETRY_SECONDS = 0.05
CONNECT_SECONDS = 10.0


def receive(port: int) -> None:
    with socket.create_server(("", port)) as server, server.accept()[0] as connection:
        buffer = bytearray(len(CHUNK))
        while connection.recv_into(buffer):
            pass


def send(address: str, port: int) -> None:
    give_up = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            with socket.create_connection((address, port)) as connection:
                while True:
                    connection.sendall(CHUNK)
        except ConnectionRefusedError:  # the receiver has not started
            if time.monotonic() > give_up:
                raise
            time.sleep(RETRY_SECONDS)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(int(sys.argv[2]))
    else:
        send(sys.argv[2], int(sys.argv[3]))
