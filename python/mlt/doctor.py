"""What this machine has and lacks for mlt: one finding per check, with the command that fixes it.

Reads only; the sockets it opens send nothing. Plain Python: it must run where the native library does not load.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import platform
import shutil
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

Level = Literal["ok", "problem", "optional"]
# What the engine asks the kernel for (src/engine/datapath_opening.cc).
SOCKET_BUFFER_BYTES = 8 << 20
# GSO came to UDP with 4.18, GRO with 5.0.
LEAST_KERNEL = (5, 0)
_UDP_SEGMENT, _UDP_GRO = 103, 104
_SIOCGIFCONF, _SIOCGIFMTU = 0x8912, 0x8921
_CAP_NET_ADMIN = 12
_IFREQ = struct.Struct("@16s24s")


@dataclass(frozen=True)
class Finding:
    """``problem`` makes the exit code 1; ``optional`` is something that only some commands need. ``fix``: a command."""

    level: Level
    what: str
    fix: str = ""


@dataclass(frozen=True)
class Interface:
    """One IPv4 address of this machine. ``speed``: Mbit/s as the driver says, None if it does not."""

    name: str
    address: str
    mtu: int
    speed: int | None

    @property
    def is_loopback(self) -> bool:
        return self.address.startswith("127.")

    def __str__(self) -> str:
        speed = f", {self.speed} Mbit/s" if self.speed else ""
        return f"{self.name} {self.address} (MTU {self.mtu}{speed})"


def examine(environ: Mapping[str, str] | None = None) -> list[Finding]:
    """Every check, in the order in which a person would ask."""
    env = os.environ if environ is None else environ
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _library, _kernel, lambda: _interface(env), _buffers, _offloads, _processors, _testbed,
    )  # fmt: skip
    return [finding for check in checks for finding in check()]


def _library() -> Iterator[Finding]:
    try:
        import_module("mlt._core")
    except ImportError as error:
        yield Finding("problem", f"the native library does not load: {error}", "pip install --force-reinstall mlt")
    else:
        yield Finding("ok", f"native library loads (Python {platform.python_version()})")


def _kernel() -> Iterator[Finding]:
    release = platform.release()
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
    if platform.system() != "Linux" or numbers < LEAST_KERNEL:
        yield Finding("problem", f"{platform.system()} {release}: mlt needs Linux 5.0 or newer", "upgrade the kernel")
    else:
        yield Finding("ok", f"Linux {release}")


def interfaces() -> list[Interface]:
    """Interfaces that are up and have an IPv4 address."""
    buffer = array.array("B", bytes(_IFREQ.size * 128))
    address, length = buffer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("@iP", length, address)
        used = struct.unpack("@iP", fcntl.ioctl(sock, _SIOCGIFCONF, request))[0]
        found = []
        for at in range(0, used, _IFREQ.size):
            raw, rest = _IFREQ.unpack_from(buffer, at)
            name = raw.split(b"\0")[0].decode()
            reply = fcntl.ioctl(sock, _SIOCGIFMTU, struct.pack("@16s24x", raw))
            mtu = struct.unpack_from("@16si", reply)[1]
            found.append(Interface(name, socket.inet_ntoa(rest[4:8]), mtu, _speed(name)))
    return found


def _speed(name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        speed = int(Path(f"/sys/class/net/{name}/speed").read_text(encoding="ascii"))
        return speed if speed > 0 else None
    return None


def _source_towards(host: str) -> str:
    # Connecting a UDP socket sends nothing: it only asks the routing table.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((host, 9))
        return str(sock.getsockname()[0])


def _interface(env: Mapping[str, str]) -> Iterator[Finding]:
    all_ = interfaces()
    candidates = ", ".join(str(one) for one in all_ if not one.is_loopback) or "none"
    by_address = {one.address: one for one in all_}
    host, master = env.get("MLT_HOST"), env.get("MASTER_ADDR")
    if host is not None:
        if host not in by_address and not host.startswith("127."):
            yield Finding("problem", f"MLT_HOST {host} is no address of this machine; candidates: {candidates}",
                          "export MLT_HOST=<one of the candidates' addresses>")  # fmt: skip
            return
        source, why = host, "MLT_HOST says so"
    else:
        target = master or "192.0.2.1"  # an address for documentation: the default route decides
        why = (
            f"it routes to MASTER_ADDR {master}" if master else "the default route leads there; MASTER_ADDR is not set"
        )
        try:
            source = _source_towards(target)
        except OSError as error:
            level: Level = "problem" if master else "optional"
            whom = master or "other machines"
            yield Finding(level, f"no route to {whom} ({error.strerror}); interfaces: {candidates}",
                          "export MLT_HOST=<address to use>, or set MASTER_ADDR to a reachable address")  # fmt: skip
            return
    chosen = by_address.get(source)
    text = f"interface {chosen or source}: {why}"
    if source.startswith("127.") and len(all_) > 1 and (master or "").split(".")[0] != "127":
        yield Finding("problem", f"{text}; that is loopback, which no other machine reaches. Candidates: {candidates}",
                      "export MASTER_ADDR=<an address of rank 0's machine, not a name that is 127.x here>")  # fmt: skip
        return
    yield Finding("ok", text)


def _has_net_admin() -> bool:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_NET_ADMIN & 1)
    return False


def _buffers() -> Iterator[Finding]:
    for name in ("rmem_max", "wmem_max"):
        try:
            limit = int(Path(f"/proc/sys/net/core/{name}").read_text(encoding="ascii"))
        except OSError:
            continue  # inside a network namespace the limit is the machine's and is not shown
        text = f"net.core.{name} is {limit >> 10} KiB"
        if limit >= SOCKET_BUFFER_BYTES:
            yield Finding("ok", text)
        elif _has_net_admin():
            yield Finding("ok", f"{text}, but this process may exceed it (CAP_NET_ADMIN)")
        else:
            wanted = f"{SOCKET_BUFFER_BYTES >> 20} MiB"
            yield Finding("problem", f"{text}; mlt asks for {wanted} and gets less: bursts are lost",
                          f"sudo sysctl -w net.core.{name}={SOCKET_BUFFER_BYTES}")  # fmt: skip


def _offloads() -> Iterator[Finding]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for option, value, name in ((_UDP_SEGMENT, 1400, "GSO"), (_UDP_GRO, 1, "GRO")):
            try:
                sock.setsockopt(socket.IPPROTO_UDP, option, value)
            except OSError as error:
                yield Finding("optional", f"UDP {name} is not there ({error.strerror}): one system call per packet",
                              "use a kernel from 5.0 on, outside sandboxes that filter socket options")  # fmt: skip
            else:
                yield Finding("ok", f"UDP {name}")


def _processors() -> Iterator[Finding]:
    usable = len(os.sched_getaffinity(0))
    if usable < 2:
        yield Finding("optional", "one processor: the I/O thread and the program take turns",
                      "give the process two (taskset, cgroup cpuset)")  # fmt: skip
    else:
        yield Finding("ok", f"{usable} processors")


def _testbed() -> Iterator[Finding]:
    from mlt.testbed.requirements import in_user_namespace, is_privileged, kernel_has, problems, user_namespace_problem
    from mlt.testbed.topology import make

    if not is_privileged():
        why = user_namespace_problem()
        if why is not None:
            yield Finding("optional", f"mlt testbed: {why}", "sudo mlt testbed ...")
        else:
            yield Finding(
                "optional", "mlt testbed: without root, 'run' with --queue red or fifo only", "sudo mlt testbed ..."
            )
        return
    found = problems(make({"hosts": 2}))
    for problem in found:
        what, _, fix = problem.rpartition(": ")
        yield Finding("optional", f"mlt testbed: {what or problem}", fix)
    if found:
        return
    yield Finding("ok", "mlt testbed: namespaces, switch queues and losses")
    if shutil.which("tc") and not in_user_namespace():
        extra = [name for name in ("red", "prio", "netem") if not kernel_has(name)]
        if extra:
            absent = f"sch_{', sch_'.join(extra)}"
            yield Finding("optional", f"mlt testbed: the kernel has no {absent}: no --queue red or --delay",
                          f"modprobe sch_{' sch_'.join(extra)}, or a distribution kernel")  # fmt: skip
