"""Horovod's rendezvous server, one worker on each of these hosts: prints its port, and runs until it is killed.

rendezvous.py HOST...
"""

from __future__ import annotations

import sys

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer


def main(hosts: list[str]) -> None:
    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(parse_hosts(",".join(f"{host}:1" for host in hosts)), len(hosts)))
    print(port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
