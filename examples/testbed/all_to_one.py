"""Every rank sends a tensor to rank 0, again and again; rank 0 says how long the rounds took and what was missing.

Run it with `mlt testbed run`, once over mlt and once over TCP, and compare:

    mlt testbed run --hosts 3 --rate 200mbit --loss 1% -- python examples/testbed/all_to_one.py
    mlt testbed run --hosts 3 --rate 200mbit --loss 1% -- python examples/testbed/all_to_one.py --transport tcp

A round starts when rank 0 asks for it and ends when the last tensor is there. Times in milliseconds.
"""

from __future__ import annotations

import argparse
import os
import socket
import threading
import time

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
TCP_PORT_OFFSET = 7


def mlt_rounds(options: argparse.Namespace, rank: int, ranks: int) -> tuple[list[float], float]:
    """Rounds over mlt: seconds of each, and the largest fraction of a tensor that was missing."""
    import mlt

    # Large and small values, as gradients have: the small ones are what a switch may drop.
    values = np.random.default_rng(rank).standard_normal(options.bytes // 4, dtype=np.float32)
    times, missing = [], 0.0
    with mlt.Context() as context:
        # All ranks are there: a lost SYN keeps two of them apart for a second, which is no round's fault.
        context.all_reduce(np.zeros(1, dtype=np.float32))
        go = np.zeros(8, dtype=np.float32)
        for number in range(options.rounds):
            if rank:
                context.wait(context.post_recv(go, from_=0, tag=number))
                context.wait(context.post_send(values, to=0, tag=number))
                continue
            buffers = [np.empty_like(values) for _ in range(ranks - 1)]
            began = time.monotonic()
            receives = [
                context.post_recv(buffer, options.loss_bound, from_=peer, tag=number)
                for peer, buffer in enumerate(buffers, start=1)
            ]
            asks = [context.post_send(go, to=peer, tag=number) for peer in range(1, ranks)]
            for receive in receives:
                missing = max(missing, context.wait(receive).loss_fraction)
            times.append(time.monotonic() - began)
            for ask in asks:
                context.wait(ask)
    return times, missing


def tcp_rounds(options: argparse.Namespace, rank: int, ranks: int) -> tuple[list[float], float]:
    """The same over one TCP connection per rank, with this machine's congestion control unless one is named."""
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + TCP_PORT_OFFSET)
    data = np.full(options.bytes // 4, rank + 1, dtype=np.float32).tobytes()
    if rank:
        with _connect(address, options.congestion) as connection:
            for _ in range(options.rounds):
                _read(connection, 1)
                connection.sendall(data)
        return [], 0.0
    times = []
    with socket.create_server(address) as server:
        peers = [server.accept()[0] for _ in range(1, ranks)]
    for _ in range(options.rounds):
        began = time.monotonic()
        readers = [threading.Thread(target=_ask, args=(peer, len(data))) for peer in peers]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        times.append(time.monotonic() - began)
    for peer in peers:
        peer.close()
    return times, 0.0


def _connect(address: tuple[str, int], congestion: str | None) -> socket.socket:
    deadline = time.monotonic() + 30
    while True:
        connection = socket.socket()
        if congestion is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        try:
            connection.connect(address)
        except ConnectionRefusedError:
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return connection


def _ask(peer: socket.socket, size: int) -> None:
    peer.sendall(b"g")
    _read(peer, size)


def _read(connection: socket.socket, size: int) -> None:
    while size:
        got = len(connection.recv(min(size, 1 << 20)))
        if got == 0:
            raise ConnectionError("the other side closed the connection in the middle of a round")
        size -= got


def fraction(text: str) -> float:
    """A loss as mlt's own options take it: 10% or 0.1."""
    return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", choices=("mlt", "tcp"), default="mlt")
    parser.add_argument("--bytes", type=int, default=262_144, help="bytes per tensor (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--loss-bound", type=fraction, default=0.1, help="loss bound of mlt, as 10%% or 0.1")
    parser.add_argument("--congestion", help="congestion control of TCP, for example cubic; default: the host's")
    options = parser.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rounds = mlt_rounds if options.transport == "mlt" else tcp_rounds
    times, missing = rounds(options, rank, ranks)
    if rank == 0:
        p50, p99, worst = (1000 * float(np.quantile(times, q)) for q in (0.5, 0.99, 1.0))
        print(
            f"{options.transport}: {options.rounds} rounds of {options.bytes} B from {ranks - 1} hosts: "
            f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, worst {worst:.1f} ms; at most {missing:.2%} of a tensor missing"
        )


if __name__ == "__main__":
    main()
