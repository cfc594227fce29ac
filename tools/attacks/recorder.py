"""Records the start of a job as an on-path attacker could; the recording is replayed from elsewhere.

    python tools/attacks/recorder.py INTERFACE OUT

Records until its standard input ends. Writes JSON: ``streams``, a list of {"to": [address, port], "data": hex} with the
bytes of each TCP connection that began during the recording, and ``datagrams``, a list of {"from": [address, port],
"to": [address, port], "data": hex}.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
from pathlib import Path
from typing import Any

ETH_P_IP = 0x0800
MAX_DATAGRAMS = 2_000
SYN = 0x02


def parse(frame: bytes) -> tuple[int, str, str, bytes] | None:
    """(protocol, source, destination, IP payload) of an Ethernet frame with IPv4."""
    if len(frame) < 34 or struct.unpack_from("!H", frame, 12)[0] != ETH_P_IP:
        return None
    header = (frame[14] & 15) * 4
    total = struct.unpack_from("!H", frame, 16)[0] or len(frame) - 14
    body = frame[14 + header : 14 + total]
    return frame[23], socket.inet_ntoa(frame[26:30]), socket.inet_ntoa(frame[30:34]), body


def main() -> None:
    interface, out = sys.argv[1], Path(sys.argv[2])
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
    sock.bind((interface, 0))
    pieces: dict[tuple[str, int, str, int], dict[int, bytes]] = {}
    first: dict[tuple[str, int, str, int], int] = {}
    datagrams: list[dict[str, Any]] = []
    print("recording", flush=True)
    while sys.stdin not in select.select([sock, sys.stdin], [], [])[0]:
        found = parse(sock.recv(70_000))
        if found is None:
            continue
        protocol, source, target, body = found
        if protocol == socket.IPPROTO_UDP and len(body) >= 8 and len(datagrams) < MAX_DATAGRAMS:
            ports = struct.unpack_from("!HH", body)
            datagrams.append({"from": [source, ports[0]], "to": [target, ports[1]], "data": body[8:].hex()})
        elif protocol == socket.IPPROTO_TCP and len(body) >= 20:
            from_port, to_port, sequence = struct.unpack_from("!HHI", body)
            key = (source, from_port, target, to_port)
            if body[13] & SYN:
                first[key] = sequence + 1
            elif key in first and len(body) > (body[12] >> 4) * 4:
                pieces.setdefault(key, {})[(sequence - first[key]) & 0xFFFFFFFF] = body[(body[12] >> 4) * 4 :]
    streams = []
    for (_, _, target, to_port), parts in pieces.items():
        data = bytearray()
        for offset, part in sorted(parts.items()):
            if offset <= len(data) < 1 << 16:
                data[offset : offset + len(part)] = part
        streams.append({"to": [target, to_port], "data": bytes(data).hex()})
    out.write_text(json.dumps({"streams": streams, "datagrams": datagrams}))


if __name__ == "__main__":
    main()
