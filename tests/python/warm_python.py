"""Python programs as processes of their own that start with slow modules imported: they are forked from a server.

`import torch` takes two seconds of CPU, and most jobs of the tests are over in less. A server imports the modules once,
starts no thread, and forks for each program: a child gets its arguments, environment and output, runs the file as
``__main__`` and ends as any interpreter does. What it imports beyond those modules, or reads from the environment later
than they do, is its own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO

REQUEST_BYTES = 1 << 18


class WarmProcess:
    """A running program; as much of subprocess.Popen as tests of jobs use."""

    def __init__(self, command: Sequence[str], pid: int, output: IO[str], status: socket.socket) -> None:
        self.args = list(command)
        self.pid = pid
        self.stdout = output
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        return self._end(0)

    def wait(self, timeout: float | None = None) -> int:
        ended = self._end(timeout)
        if ended is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return ended

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """All that it prints from now on, when it has ended."""
        printed: list[str] = []
        if not self.stdout.closed:
            reader = threading.Thread(target=lambda: printed.append(self.stdout.read()), daemon=True)
            reader.start()
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.stdout.close()
        self.wait(timeout)
        return "".join(printed), None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _end(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            told = self._status.recv(64)
            assert told, f"the server that forked {self.args} has ended"
            self.returncode = int(told)
            self._status.close()
        return self.returncode


def start(modules: Sequence[str], command: Sequence[str], env: Mapping[str, str]) -> WarmProcess:
    """Run ``command``, a Python file and its arguments, with these modules imported; stderr goes to stdout."""
    server = server_of(tuple(modules))
    reading, writing = os.pipe()
    status, of_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = json.dumps({"command": list(command), "env": dict(env), "folder": os.getcwd()}).encode()
    assert len(request) < REQUEST_BYTES
    socket.send_fds(server, [request], [writing, of_server.fileno()])
    os.close(writing)
    of_server.close()
    pid = int(status.recv(64))
    return WarmProcess(command, pid, os.fdopen(reading, encoding="utf-8", errors="replace"), status)


@functools.cache
def server_of(modules: tuple[str, ...]) -> socket.socket:
    ours, of_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    of_server.set_inheritable(True)
    process = subprocess.Popen(
        [sys.executable, __file__, str(of_server.fileno()), *modules],
        pass_fds=[of_server.fileno()],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
    )
    of_server.close()

    def end() -> None:
        ours.close()  # which ends it
        process.wait(30)

    atexit.register(end)
    return ours


# ---- the server ------------------------------------------------------------------------------------------------------


def serve(server: socket.socket) -> dict[str, object] | None:
    """Fork for each request; None when the tests have ended, in the server. A child returns with its request."""
    statuses: dict[int, socket.socket] = {}
    waking, woken = socket.socketpair()
    woken.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken.fileno())
    while True:
        ready = select.select([server, waking], [], [])[0]
        if waking in ready:
            waking.recv(4096)
            while statuses:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                with contextlib.suppress(OSError), statuses.pop(pid) as told:
                    told.send(str(os.waitstatus_to_exitcode(status)).encode())
        if server not in ready:
            continue
        request, fds, _, _ = socket.recv_fds(server, REQUEST_BYTES, 2)
        if not request:
            return None
        output, status_fd = fds
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(output, 1)
            os.dup2(output, 2)
            for ours in (server, waking, woken, *statuses.values()):
                ours.close()
            os.close(output)
            os.close(status_fd)
            chosen: dict[str, object] = json.loads(request)
            return chosen
        os.close(output)
        statuses[pid] = socket.socket(fileno=status_fd)
        statuses[pid].send(str(pid).encode())


def main() -> None:
    for module in sys.argv[2:]:
        __import__(module)
    gc.freeze()  # no collection in a child looks through the modules, which would copy their pages
    chosen = serve(socket.socket(fileno=int(sys.argv[1])))
    if chosen is None:
        return
    command, env = chosen["command"], chosen["env"]
    assert isinstance(command, list)
    assert isinstance(env, dict)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(str(chosen["folder"]))
    sys.argv = command
    sys.path[0] = os.path.dirname(command[0])  # as the interpreter has it for a file
    runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main()
