"""Network namespaces: create, enter, search for processes, remove.

A namespace lives as long as a process is in it or its file is mounted; the files are where ``ip netns`` looks for them.
Only threads enter namespaces, never the process: each call runs in a thread of its own, which ends there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from mlt.testbed.errors import TestbedError
from mlt.testbed.state import start_time

NETNS_DIRECTORY = Path("/run/netns")
_CLONE_NEWNET = 0x4000_0000
_MS_BIND, _MNT_DETACH = 4096, 2
_libc = ctypes.CDLL(None, use_errno=True)
Result = TypeVar("Result")


def _checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise TestbedError(f"{what}: {os.strerror(code)}")


def _in_thread(work: Callable[[], Result]) -> Result:
    results: list[Result] = []
    failures: list[BaseException] = []

    def body() -> None:
        try:
            results.append(work())
        except BaseException as error:  # re-raised for the caller below
            failures.append(error)

    thread = threading.Thread(target=body, name="mlt-testbed-namespace")
    thread.start()
    try:
        thread.join()
    except BaseException:
        thread.join()  # when the caller cleans up, the thread has created the namespace or failed
        raise
    if failures:
        raise failures[0]
    return results[0]


def path_of(bed: str, node: str) -> Path:
    """Mount point of a node's namespace."""
    return NETNS_DIRECTORY / f"mlt-{bed}-{node}"


def create(path: Path) -> None:
    """Create a namespace that stays until ``remove``. Raises TestbedError."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def body() -> None:
        _checked(_libc.unshare(_CLONE_NEWNET), "new network namespace")
        path.touch()
        own = f"/proc/self/task/{threading.get_native_id()}/ns/net"
        _checked(_libc.mount(own.encode(), str(path).encode(), None, _MS_BIND, None), f"mount {path}")

    _in_thread(body)


def inside(path: Path, work: Callable[[], Result]) -> Result:
    """Run ``work`` in the namespace; sockets that it opens stay there. Raises what ``work`` raises, and TestbedError
    for pyroute2's errors."""
    from pyroute2.netlink.exceptions import NetlinkError  # type: ignore[import-untyped]

    def body() -> Result:
        fd = _opened(path)
        try:
            _checked(_libc.setns(fd, _CLONE_NEWNET), f"enter {path}")
        finally:
            os.close(fd)
        try:
            return work()
        except NetlinkError as error:
            raise TestbedError(f"{path.name}: the kernel refuses: {os.strerror(abs(error.code))}") from error

    return _in_thread(body)


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise TestbedError(
            f"{path}: {error.strerror}; 'mlt testbed down' removes what is left of the testbed"
        ) from None


def enter_command(path: Path) -> list[str]:
    """Command-line prefix to run a command in the namespace; the command replaces it, so the pid is the command's
    own. Raises TestbedError if the namespace is gone."""
    os.close(_opened(path))
    return ["nsenter", f"--net={path}", "--"]


def processes(paths: Iterable[Path]) -> list[int]:
    """Every process whose main thread is in one of the namespaces, except this one."""
    wanted = set()
    for path in paths:
        with contextlib.suppress(OSError):
            status = path.stat()
            wanted.add((status.st_dev, status.st_ino))
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            status = (entry / "ns/net").stat()
            if (status.st_dev, status.st_ino) in wanted:
                found.append(int(entry.name))
    return found


def end_processes(paths: list[Path], *, grace: float) -> int:
    """SIGTERM to every process inside, SIGKILL after ``grace`` seconds; returns their number when all are over.

    A process leaves its namespace before it is over: it may still hold files and answer to its pid.
    """
    ended: dict[int, int | None] = {}  # pid -> when it started
    deadline = time.monotonic() + grace
    terminated: set[int] = set()
    while pids := processes(paths):
        late = time.monotonic() >= deadline
        for pid in pids:
            ended.setdefault(pid, start_time(pid))
            if late or pid not in terminated:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
                terminated.add(pid)
        if late and time.monotonic() > deadline + 5:
            break  # stuck in the kernel: the namespace is removed when they end
        time.sleep(0.02)
    while any(began is not None and start_time(pid) == began for pid, began in ended.items()):
        if time.monotonic() > deadline + 5:
            break
        time.sleep(0.005)
    return len(ended)


def remove(path: Path) -> None:
    """Unmount and delete. Idempotent."""
    _libc.umount2(str(path).encode(), _MNT_DETACH)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
