"""Numbered packets of one flow whose sender moves between CPUs, while other flows fill the ports.

usage: testbed_order.py SECONDS    prints as JSON how many arrived, and how many of them after a later one
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
import subprocess
import sys

from testbed_lab import PORT, resolve, udp

from mlt.testbed import Testbed

NUMBER = struct.Struct("<Q")
SENDER = """
import itertools, os, socket, struct, sys, time
address, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
cpus = itertools.cycle(sorted(os.sched_getaffinity(0)))
end = time.monotonic() + seconds
number = 0
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    while time.monotonic() < end:
        os.sched_setaffinity(0, {next(cpus)})
        for _ in range(4):
            number += 1
            sock.sendto(struct.pack("<Q", number) + bytes(200), (address, port))
        time.sleep(0)
"""
# Long packets, which the ports hold back, so that timers send them on, on whatever CPU they expire.
FILLER = """
import socket, sys, time
address, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
end = time.monotonic() + seconds
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    while time.monotonic() < end:
        for _ in range(20):
            sock.sendto(bytes(1400), (address, port))
"""


def numbers(sock: socket.socket, senders: list[subprocess.Popen[str]]) -> list[int]:
    """Those that arrive until all senders have ended."""
    found = []
    sock.settimeout(0.3)
    while True:
        try:
            found.append(NUMBER.unpack_from(sock.recv(2048))[0])
        except TimeoutError:
            if all(sender.poll() is not None for sender in senders):
                return found


def main(seconds: str) -> None:
    with Testbed(hosts=2, rate="2gbit") as bed:
        resolve(bed, "host0", "host1")
        address = bed.address("host1")
        with udp(bed, "host1") as sock, udp(bed, "host1") as other:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 20)
            sock.bind((address, PORT))
            other.bind((address, PORT + 1))
            words = [(SENDER, PORT), *[(FILLER, PORT + 1)] * 3]
            senders = [
                bed.popen("host0", [sys.executable, "-c", code, address, str(port), seconds], text=True)
                for code, port in words
            ]
            found = numbers(sock, senders)
    late = sum(one < newest for one, newest in zip(found[1:], itertools.accumulate(found, max), strict=False))
    print(json.dumps({"arrived": len(found), "late": late}))


if __name__ == "__main__":
    main(sys.argv[1])
