"""Checks this host for what mlt needs: one finding per check, with the command that fixes it.

Read-only; the sockets it opens send nothing. Plain Python: it must run where the native library does not load.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module, metadata
from pathlib import Path
from typing import Literal

from mlt._shared import known_variables, variables
from mlt._shared.addresses import without_brackets
from mlt._shared.capabilities import CAP_IPC_LOCK, CAP_NET_ADMIN, has_capability
from mlt._shared.extras import checkout, how_to_install, package_of, pip, requirements
from mlt._shared.units import format_size
from mlt.errors import ConfigError
from mlt.job import address as own_address
from mlt.job import interfaces, secret
from mlt.job.configuration import JobConfig
from mlt.options import arguments, paths, qos

# Time for the name of rank 0's host: the whole examination takes two seconds.
LOOKUP_SECONDS = 1.0
# First words of the fixes that are commands.
_RUNNABLE = ("sudo", "pip", sys.executable, "export", "modprobe", "ulimit", "apt-get", "sysctl", "mlt")
Level = Literal["ok", "problem", "optional"]
# Buffer size that the engine requests from the kernel (src/engine/datapath_opening.cc).
SOCKET_BUFFER_BYTES = 8 << 20
# Kernel versions that introduced UDP GSO (4.18) and GRO (5.0).
MIN_KERNEL = (5, 0)
_UDP_SEGMENT, _UDP_GRO = 103, 104
_AF_XDP = 44
# Open files for a job of hundreds of ranks (docs/security.md); packet memory of an AF_XDP socket (src/io/xdp).
MIN_FILES = 4_096
XDP_MEMORY_BYTES = (4_096 + 2_048) * 2_048
_USES = {
    "torch": "PyTorch's backend",
    "demo": "mlt demo",
    "plan": "mlt plan",
    "testbed": "mlt testbed",
    "perf": "mlt perf: plots, Open MPI",
    "metrics": "Prometheus and OpenTelemetry",
    "switch": "mlt switch check --validators",
    "switch-push": "mlt switch apply to devices",
    "recipes": "examples with Accelerate, DeepSpeed, Lightning, torchft, Transformers",
    "recipes-ray": "example with Ray Train",
}
# Extras of those who change mlt itself.
_FOR_DEVELOPERS = ("dev", "docs")


@dataclass(frozen=True)
class Finding:
    """``problem`` makes the exit code 1; ``optional`` affects only some commands. ``fix``: a command, or advice."""

    level: Level
    what: str
    fix: str = ""

    @property
    def fix_is_command(self) -> bool:
        """Whether a shell can run ``fix`` as it is."""
        return self.fix.split(" ")[0] in _RUNNABLE and not re.search(r"<[a-z]|, |\.\.\.", self.fix)


def examine(environ: Mapping[str, str] | None = None) -> list[Finding]:
    """Run every check, the most basic first."""
    env = os.environ if environ is None else environ
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        check_library, lambda: _variables(env), _kernel, lambda: _interface(env), _other_interfaces, _buffers, _limits,
        _offloads, _kernel_features, _processors, _extras, _testbed,
    )  # fmt: skip
    return [finding for check in checks for finding in check()]


def _variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Those of the transport, as a job reads them; ``_interface`` has MLT_INTERFACE."""
    for name, meant in known_variables.misspelt(sorted(environ)).items():
        yield Finding("problem", known_variables.misspelt_text(name, meant), f"unset {name}, and set {meant}")
    readers: tuple[Callable[[], object], ...] = (
        lambda: arguments.resolve({}, environ),
        lambda: paths.resolve(None, environ=environ),
        lambda: qos.resolve(None, environ),
        lambda: secret.resolve(None, environ),
    )
    for read in readers:
        try:
            read()
        except ConfigError as error:
            yield Finding("problem", str(error), "set it right, or unset it: a job would end with this error")


def check_library() -> Iterator[Finding]:
    """Whether the native library loads."""
    try:
        import_module("mlt._core")
    except ImportError as error:
        yield Finding(
            "problem", f"the native library does not load: {error}", "install mlt again, from its wheel or its checkout"
        )
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
    host, wanted = variables.text(env, "MLT_HOST"), variables.text(env, "MLT_INTERFACE")
    master = variables.text(env, "MASTER_ADDR")
    config = JobConfig(
        rank=0,
        world_size=2,
        services=0,
        job="doctor",
        master_addr=master or interfaces.SOMEWHERE[0],
        rendezvous_port=1,
        host=host and without_brackets(host),
        interface=None if host else wanted,
    )
    try:
        address = own_address.local_host(config, lookup_seconds=LOOKUP_SECONDS)
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


def _other_interfaces() -> Iterator[Finding]:
    """The candidates of MLT_INTERFACE; those without a link are named too."""
    found = [one for one in interfaces.interfaces() if not one.is_loopback]
    up = ", ".join(str(one) for one in found if one.is_up and one.usable())
    down = ", ".join(one.name for one in found if not (one.is_up and one.usable()))
    text = f"interfaces that MLT_INTERFACE can select: {up or 'none but loopback'}"
    yield Finding("ok", f"{text}; down or without an address: {down}" if down else text)


def _limits() -> Iterator[Finding]:
    """Limits of this process: a rank has a TCP connection per peer, and AF_XDP locks its packet memory."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < MIN_FILES:
        yield Finding("optional", f"{files:,} open files per process: too few for jobs of hundreds of ranks",
                      "ulimit -n 65536")  # fmt: skip
    else:
        yield Finding("ok", "open files per process: " + _limit_text(files, f"{files:,}"))
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if locked != resource.RLIM_INFINITY and locked < XDP_MEMORY_BYTES and not has_capability(CAP_IPC_LOCK):
        wanted = f"MLT_DATAPATH=xdp locks {format_size(XDP_MEMORY_BYTES)} per socket"
        yield Finding("optional", f"locked memory is limited to {format_size(locked)}; {wanted}", "ulimit -l unlimited")
    else:
        yield Finding("ok", "locked memory: " + _limit_text(locked, format_size(locked)))


def _limit_text(limit: int, text: str) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else text


def _kernel_features() -> Iterator[Finding]:
    try:
        socket.socket(_AF_XDP, socket.SOCK_RAW, 0).close()
    except PermissionError:
        yield Finding("optional", "AF_XDP sockets (MLT_DATAPATH=xdp) need CAP_NET_RAW here", "run as root")
    except OSError as error:
        yield Finding("optional", f"AF_XDP sockets (MLT_DATAPATH=xdp) cannot be made: {error.strerror}",
                      "use a kernel with CONFIG_XDP_SOCKETS")  # fmt: skip
    else:
        yield Finding("ok", "AF_XDP sockets")
    try:
        enabled = Path("/proc/sys/net/ipv6/conf/all/seg6_enabled").read_text(encoding="ascii").strip()
    except OSError:
        yield Finding(
            "optional", "the kernel has no SRv6: no paths by segment lists", "use a kernel with IPv6 and SRv6"
        )
    else:
        yield Finding("ok", f"SRv6 (seg6_enabled is {enabled}; only hosts that a segment list passes through need 1)")


def _extras() -> Iterator[Finding]:
    """The extras of the distribution, and which packages each lacks."""
    try:
        extras = requirements()
    except metadata.PackageNotFoundError:
        yield Finding("problem", "mlt is not installed but imported from a folder", f"{pip()} install {checkout()}")
        return
    lacking = {
        extra: [package for package in map(package_of, wanted) if not _is_installed(package)]
        for extra, wanted in extras.items()
        if extra not in _FOR_DEVELOPERS
    }
    complete = [extra for extra, packages in lacking.items() if not packages]
    if complete:
        yield Finding("ok", f"extras installed: {', '.join(complete)}")
    for extra, packages in lacking.items():
        if packages:
            uses = _USES.get(extra, extra)
            what = f"extra {extra} ({uses}) lacks {', '.join(packages)}"
            yield Finding("optional", what, how_to_install(extra))  # all: an extra may also bound what is installed


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _has_net_admin() -> bool:
    return has_capability(CAP_NET_ADMIN)


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
    from mlt.testbed import requirements
    from mlt.testbed.requirements import in_user_namespace, is_privileged, kernel_has, problems
    from mlt.testbed.topology import make

    if not is_privileged():
        what, _, fix = (requirements.user_namespace_problem() or "").partition("): ")
        if what:
            yield Finding("optional", f"mlt testbed: {what})", fix)
            return
        lacks = [] if requirements.kernel_has_red() else ["--policy"]
        lacks += [] if shutil.which("tc") and kernel_has("netem") else ["--loss"]
        without = f", without {' and '.join(lacks)}" if lacks else ""
        yield Finding("optional", f"mlt testbed: only 'run'{without}: the rest needs root", "sudo mlt testbed ...")
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
                          f"modprobe -a sch_{' sch_'.join(extra)}, or a distribution kernel")  # fmt: skip
