"""The capabilities of this process, which root has outside a container."""

from __future__ import annotations

from pathlib import Path

# Of linux/capability.h.
CAP_NET_ADMIN, CAP_IPC_LOCK, CAP_SYS_ADMIN = 12, 14, 21


def has_capability(number: int) -> bool:
    """Whether this process holds a capability now."""
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False
