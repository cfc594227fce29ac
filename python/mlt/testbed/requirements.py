"""Checks whether this host can run a testbed, before anything is created. Each problem names its fix."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from mlt._shared.capabilities import CAP_NET_ADMIN, CAP_SYS_ADMIN, has_capability
from mlt._shared.extras import how_to_install
from mlt.testbed import delay_line, programs
from mlt.testbed.errors import MissingError
from mlt.testbed.topology import Topology

# Set by the command line once it has entered its own user namespace.
USER_NAMESPACE = "MLT_TESTBED_USER_NAMESPACE"
_PACKAGES = {"tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux", "setpriv": "util-linux"}
# Sysctl, the value with which it forbids user namespaces, and one that allows them.
_USER_NAMESPACE_SYSCTLS = (
    ("kernel.unprivileged_userns_clone", "0", 1),  # Debian
    ("kernel.apparmor_restrict_unprivileged_userns", "1", 0),  # Ubuntu
    ("user.max_user_namespaces", "0", 10_000),
    ("user.max_net_namespaces", "0", 10_000),
    ("user.max_mnt_namespaces", "0", 10_000),
)
# A discipline, and arguments that tc accepts for it on a fresh loopback interface.
_PROBES = {
    "htb": "root handle 1: htb",
    "tbf": "root tbf rate 1mbit burst 16384 limit 65536",
    "clsact": "clsact",
    "prio": "root handle 1: prio",
    "red": "root red limit 60000 min 10000 max 30000 avpkt 1000 burst 20 bandwidth 1mbit probability 0.1",
    "netem": "root netem delay 1ms",
}


def in_user_namespace() -> bool:
    """Whether root here is root only of a user namespace: then the kernel loads no programs for this process."""
    try:
        first = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
    except OSError:
        return False
    return first[:3] != ["0", "0", "4294967295"]


def is_privileged() -> bool:
    """Whether this process may create namespaces and links without a user namespace."""
    return has_capability(CAP_NET_ADMIN) and has_capability(CAP_SYS_ADMIN)


def user_namespace_problem() -> str | None:
    """Why an unprivileged user namespace cannot be used, or None if it can."""
    if shutil.which("unshare") is None:
        return "unshare is not installed: apt-get install util-linux"
    done = subprocess.run(["unshare", "-Urnm", "true"], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    return (
        "no CAP_NET_ADMIN and CAP_SYS_ADMIN, and the kernel refuses a user namespace "
        f"({done.stderr.strip()}): {_root()}, or {_user_namespace_remedy()}"
    )


def _root() -> str:
    return "run with sudo" if os.geteuid() else "give this container both capabilities (docker run --privileged)"


def _user_namespace_remedy(sysctls: Path = Path("/proc/sys")) -> str:
    """The sysctls that forbid user namespaces here; without one it is a filter of system calls."""
    off = []
    for name, forbids, wanted in _USER_NAMESPACE_SYSCTLS:
        with contextlib.suppress(OSError):
            if (sysctls / name.replace(".", "/")).read_text(encoding="ascii").strip() == forbids:
                off.append(f"{name}={wanted}")
    if off:
        return f"allow user namespaces (sudo sysctl -w {' '.join(off)})"
    return "run outside the sandbox or container whose security policy forbids them (no sysctl does)"


def private_run() -> None:
    """Mount a private /run, in a user namespace: the host's belongs to the real root."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"mlt", b"/run", b"tmpfs", 0, None) != 0:
        cause = os.strerror(ctypes.get_errno())
        raise MissingError([f"no private /run in the user namespace ({cause}): run with sudo"])


@cache
def kernel_has(discipline: str) -> bool:
    """Whether the kernel has (or can load) a queueing discipline; tried in a temporary namespace."""
    root = [] if is_privileged() else ["-Ur"]
    command = ["unshare", *root, "--net", "tc", "qdisc", "add", "dev", "lo", *_PROBES[discipline].split()]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def kernel_has_red() -> bool:
    """Whether ``queue: red`` works here; false if the programs that would say it are not installed."""
    return all(map(shutil.which, _PACKAGES)) and kernel_has("prio") and kernel_has("red")


def with_usable_queue(topology: Topology) -> tuple[Topology, str | None]:
    """If ``topology`` names no queue and the default needs what this host lacks: a copy with a queue that works here,
    and one line about it. Else ``topology`` and None."""
    if "queue" in topology.model_fields_set or not is_privileged():
        return topology, None
    missing = _program_problems()
    if not missing or (topology.policy is not None and not kernel_has_red()):
        return topology, None
    queue = "fifo" if topology.policy is None else "red"
    return topology.changed(queue=queue), f"using --queue {queue}, not the default ebpf: {'; '.join(missing)}"


def can_load_programs() -> bool:
    """Whether loss can use the seeded program: real root, libbpf, and an object or the tools to compile it."""
    return not _program_problems()


def _program_problems() -> list[str]:
    found = []
    if in_user_namespace():
        found.append("eBPF programs need real root, not a user namespace: run with sudo")
    try:
        ctypes.CDLL("libbpf.so.1")
    except OSError:
        found.append("libbpf.so.1 is not installed: apt-get install libbpf1")
    if any(programs.ready(source) is None for source in programs.sources()):
        found += programs.missing_tools()
    return found


def _lossy(topology: Topology) -> list[str]:
    """Directions with loss, except the one that netem can do."""
    found = []
    for link in topology.link_names():
        settings = topology.settings(link)
        if settings.loss_down or (settings.loss_up and not link.startswith("host")):
            found.append(link)
    return found


def problems(topology: Topology) -> list[str]:
    """Everything that this host lacks for the topology, one line each; empty if nothing."""
    if not is_privileged():
        return [
            "making network namespaces needs root (or CAP_NET_ADMIN and CAP_SYS_ADMIN): sudo, or 'mlt testbed run', "
            "which enters a user namespace by itself"
        ]
    found = [
        f"{program} is not installed: apt-get install {package}"
        for program, package in _PACKAGES.items()
        if shutil.which(program) is None
    ]
    if importlib.util.find_spec("pyroute2") is None:
        found.append(f"pyroute2 is not installed: {how_to_install('testbed')}")
    if found:
        return found
    needed = ["htb", "tbf", "clsact"]
    if topology.queue == "red":
        needed += ["prio", "red"]
    if (
        any(topology.settings(link).has_delay_line for link in topology.link_names())
        and not delay_line.PROGRAM.is_file()
    ):
        found.append(f"{delay_line.PROGRAM} is missing: a delay needs it; install mlt from a wheel (make wheel)")
    for name in needed:
        if not kernel_has(name):
            found.append(f"the kernel has no sch_{'ingress' if name == 'clsact' else name}: {_kernel_remedy(name)}")
    programs_missing = _program_problems()
    if topology.queue == "ebpf":
        if programs_missing and (other := _other_queue(topology)):
            programs_missing = [*programs_missing[:-1], f"{programs_missing[-1]} (or {other})"]
        found += programs_missing
    elif programs_missing:
        if _lossy(topology):
            where = ", ".join(_lossy(topology))
            found.append(f"loss on {where} needs mlt's eBPF program; {'; '.join(programs_missing)}")
        elif topology.loss and not kernel_has("netem"):
            needs = "loss needs mlt's eBPF program or sch_netem; the kernel has no sch_netem"
            found.append("; ".join([needs, *programs_missing]))
    return found


def _other_queue(topology: Topology) -> str:
    """The change to a topology that requests the program, if one would help."""
    if topology.policy is None:
        return "leave --queue out, for plain queues" if "queue" in topology.model_fields_set else ""
    return "choose --queue red" if kernel_has_red() else "leave --policy out, for plain queues"


def _kernel_remedy(name: str) -> str:
    if name in ("red", "prio"):
        return "leave --queue out, or use a distribution kernel (modprobe -a sch_red sch_prio)"
    return "use a distribution kernel"


def require(topology: Topology) -> None:
    """Raise MissingError with all of ``problems``."""
    found = problems(topology)
    if found:
        raise MissingError(found)
