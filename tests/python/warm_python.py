"""Python programs as processes of their own that start with slow modules imported: they are forked from a server.

`import torch` takes two seconds of CPU, and most jobs of the tests are over in less. A server imports the modules once,
starts no thread, and forks for each program: a child gets its arguments, environment and output, runs the file, or the
text after ``-c``, as ``__main__`` and ends as any interpreter does. What it imports beyond those modules, or reads from
the environment later than they do, is its own.
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

    def __init__(self, command: Sequence[str], pid: int, outputs: list[IO[str]], status: socket.socket) -> None:
        self.args = list(command)
        self.pid = pid
        self.stdout = outputs[0]
        self.returncode: int | None = None
        self._outputs = outputs
        self._status = status

    def poll(self) -> int | None:
        return self._end(0)

    def wait(self, timeout: float | None = None) -> int:
        ended = self._end(timeout)
        if ended is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return ended

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it prints from now on, when it has ended, and its errors if they are apart."""
        printed = ["", ""]

        def read(number: int, output: IO[str]) -> None:
            printed[number] = output.read()

        readers = [
            threading.Thread(target=read, args=pair, daemon=True)
            for pair in enumerate(self._outputs)
            if not pair[1].closed
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        for output in self._outputs:
            output.close()
        self.wait(timeout)
        return printed[0], printed[1]

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


def start(
    modules: Sequence[str],
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    errors_apart: bool = False,
    folder: str | None = None,
) -> WarmProcess:
    """Run ``command``, a Python file and its arguments, with these modules imported, in ``folder`` (default: ours).

    What it writes to stderr goes to stdout, or to a pipe of its own.
    """
    server = server_of(tuple(modules))
    pipes = [os.pipe() for _ in range(2 if errors_apart else 1)]
    writing = [pipe[1] for pipe in pipes]
    status, of_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = json.dumps({"command": list(command), "env": dict(env), "folder": folder or os.getcwd()}).encode()
    assert len(request) < REQUEST_BYTES
    socket.send_fds(server, [request], [of_server.fileno(), *writing])
    for fd in writing:
        os.close(fd)
    of_server.close()
    pid = int(status.recv(64))
    outputs = [os.fdopen(pipe[0], encoding="utf-8", errors="replace") for pipe in pipes]
    return WarmProcess(command, pid, outputs, status)


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
        request, fds, _, _ = socket.recv_fds(server, REQUEST_BYTES, 3)
        if not request:
            return None
        status_fd, *outputs = fds
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(outputs[0], 1)
            os.dup2(outputs[-1], 2)
            for ours in (server, waking, woken, *statuses.values()):
                ours.close()
            for fd in fds:
                os.close(fd)
            chosen: dict[str, object] = json.loads(request)
            return chosen
        for fd in outputs:
            os.close(fd)
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
    if command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        sys.path[0] = ""
        exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})
        return
    sys.argv = command
    sys.path[0] = os.path.dirname(command[0])  # as the interpreter has it for a file
    runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main()
