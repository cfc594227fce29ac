"""Checks this host for what mlt needs: one finding per check, with the command that fixes it.

Read-only; the sockets it opens send nothing. Plain Python: it must run where the native library does not load.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Literal

from mlt.errors import ConfigError
from mlt.job import address as own_address
from mlt.job import interfaces
from mlt.job.configuration import JobConfig

Level = Literal["ok", "problem", "optional"]
# Buffer size that the engine requests from the kernel (src/engine/datapath_opening.cc).
SOCKET_BUFFER_BYTES = 8 << 20
# Kernel versions that introduced UDP GSO (4.18) and GRO (5.0).
MIN_KERNEL = (5, 0)
_UDP_SEGMENT, _UDP_GRO = 103, 104
_CAP_NET_ADMIN = 12


@dataclass(frozen=True)
class Finding:
    """``problem`` makes the exit code 1; ``optional`` affects only some commands. ``fix``: a command."""

    level: Level
    what: str
    fix: str = ""


def examine(environ: Mapping[str, str] | None = None) -> list[Finding]:
    """Run every check, the most basic first."""
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
    if platform.system() != "Linux" or numbers < MIN_KERNEL:
        yield Finding("problem", f"{platform.system()} {release}: mlt needs Linux 5.0 or newer", "upgrade the kernel")
    else:
        yield Finding("ok", f"Linux {release}")


def _interface(env: Mapping[str, str]) -> Iterator[Finding]:
    host, wanted = env.get("MLT_HOST") or None, env.get("MLT_INTERFACE") or None
    master = env.get("MASTER_ADDR") or None
    config = JobConfig(
        rank=0,
        world_size=2,
        services=0,
        job="doctor",
        master_addr=master or interfaces.SOMEWHERE[0],
        rendezvous_port=1,
        host=host,
        interface=None if host else wanted,
    )
    try:
        address = own_address.local_host(config)
    except ConfigError as error:
        level: Level = "problem" if master or host or wanted else "optional"
        text = str(error).removeprefix("rank 0: ")
        if level == "optional":
            text = f"no route to other hosts; interfaces: {interfaces.candidates_text()}"
        yield Finding(level, text, "export MLT_INTERFACE=<name of the interface to use>, or set MASTER_ADDR")
        return
    chosen = interfaces.interface_of(address)
    shown = replace(chosen, addresses=(address,)) if chosen else address
    if host:
        why = f"MLT_HOST is {host}"
    elif wanted:
        why = f"MLT_INTERFACE is {wanted}"
    elif master:
        why = f"it routes to MASTER_ADDR {master}"
    else:
        why = "the default route leads there; MASTER_ADDR is not set"
    others = [one for one in interfaces.interfaces() if one.is_up and not one.is_loopback and one.usable()]
    if interfaces.is_loopback(address) and others and not (host or wanted):
        why += "; no other host can reach it"
    yield Finding("ok", f"interface {shown}: {why}")


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
            continue  # in a network namespace the limit is the host's and not visible
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
        extra = [name for name in ("red", "prio") if not kernel_has(name)]
        if extra:
            absent = f"sch_{', sch_'.join(extra)}"
            yield Finding("optional", f"mlt testbed: the kernel has no {absent}: no --queue red",
                          f"modprobe sch_{' sch_'.join(extra)}, or a distribution kernel")  # fmt: skip
