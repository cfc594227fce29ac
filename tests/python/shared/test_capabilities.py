"""The capabilities of this process, beside the kernel's own answer."""

from __future__ import annotations

import os
import subprocess

from mlt._shared import capabilities


def test_has_capability__is_what_the_kernel_lets_a_process_do() -> None:
    # No process has one that does not exist; root of the first user namespace has those that its container left.
    assert not capabilities.has_capability(63)
    status = subprocess.run(["grep", "CapEff", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    held = int(status.split()[1], 16)
    for number in (capabilities.CAP_NET_ADMIN, capabilities.CAP_IPC_LOCK, capabilities.CAP_SYS_ADMIN):
        assert capabilities.has_capability(number) == bool(held >> number & 1)
    if os.geteuid() != 0:
        assert held == 0
