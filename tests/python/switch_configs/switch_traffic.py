"""Two paced UDP flows and a receiver that counts them, for namespaces and user-mode-linux. Plain Python, no mlt.

usage: switch_traffic.py receive SECONDS PORT...            prints {"port": {"received": n, "marked": n}}
       switch_traffic.py send SECONDS ADDRESS PORT:TOS:BITS_PER_SECOND...   prints {"port": sent}
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import sys
import time

PAYLOAD = 1400
WIRE = PAYLOAD + 42


def receive(seconds: float, ports: list[int]) -> None:
    sockets = {}
    for port in ports:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        sock.bind(("0.0.0.0", port))
        sock.setblocking(False)
        sockets[sock] = {"port": port, "received": 0, "marked": 0}
    print("ready", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for sock in select.select(list(sockets), [], [], 0.1)[0]:
            try:
                while True:
                    _, ancillary, _, _ = sock.recvmsg(2048, 64)
                    sockets[sock]["received"] += 1
                    sockets[sock]["marked"] += ancillary[0][2][0] & 3 == 3
            except BlockingIOError:
                pass
    print(json.dumps({str(c["port"]): {k: c[k] for k in ("received", "marked")} for c in sockets.values()}), flush=True)


def send(seconds: float, address: str, flows: list[str]) -> None:
    sockets = []
    for flow in flows:
        port, tos, rate = (int(part, 0) for part in flow.split(":"))
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        sock.connect((address, port))
        sockets.append([sock, port, rate / 8 / WIRE, 0])
    body, start = b"x" * PAYLOAD, time.monotonic()
    while (now := time.monotonic() - start) < seconds:
        for entry in sockets:
            # At most four at once: a stall of this process must not become one burst.
            for _ in range(min(4, int(now * entry[2]) - entry[3])):
                with contextlib.suppress(ConnectionRefusedError):  # an answer to an earlier packet
                    entry[0].send(body)
                entry[3] += 1
        time.sleep(0.0005)  # the pace of the flows
    print(json.dumps({str(port): sent for _, port, _, sent in sockets}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(float(sys.argv[2]), [int(port) for port in sys.argv[3:]])
    else:
        send(float(sys.argv[2]), sys.argv[3], sys.argv[4:])
