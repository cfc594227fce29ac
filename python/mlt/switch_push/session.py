"""Order of a push: preview, apply, wait for a decision, confirm or roll back; any failure rolls the device back."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Callable

from mlt._shared.units import format_time
from mlt.switch_configs.generator import Generated
from mlt.switch_push.device import Device, PushError

# The device's timer ends after ours: ours rolls back in order, the device's serves if this process has ended.
GRACE_SECONDS = 15.0


def push(
    device: Device,
    generated: Generated,
    *,
    confirm: float | None,
    keep: Callable[[float], bool],
    say: Callable[[str], object],
) -> bool:
    """Apply; with ``confirm`` (seconds) call ``keep`` (with the remaining seconds) and roll back unless it returns
    True.

    Returns whether the configuration stays. Raises PushError if the apply or the rollback failed; an interrupt rolls
    back first.
    """
    try:
        device.apply(generated, None if confirm is None else confirm + GRACE_SECONDS)
    except PushError as error:
        _take_back(device, f"could not be applied: {error}")
        raise PushError(f"{device.title}: not applied, and restored: {error}") from None
    except BaseException:
        _take_back(device, "interrupted")
        raise
    if confirm is None:
        device.confirm()
        return True
    say(f"{device.title}: applied; unless confirmed within {format_time(confirm)}, {_undone_by(device)}")
    try:
        kept = keep(confirm)
        if kept:
            device.confirm()
            return True
    except BaseException:
        _take_back(device, "not confirmed")
        raise
    _take_back(device, "not confirmed")
    return False


def _undone_by(device: Device) -> str:
    """Text on who reverts the change, and what a killed command leaves."""
    if device.reverts_itself:
        return "this command takes it back, or the device itself if it is killed"
    return "this command takes it back; if it is killed, the configuration stays in force"


def _take_back(device: Device, why: str) -> None:
    try:
        device.rollback()
    except PushError as error:
        raise PushError(f"{device.title}: {why}, and could NOT be undone: {error}") from None


def asked_at_terminal(limit: float) -> bool:
    """Wait for the line "yes" on standard input; other input, end of file or the time limit means no."""
    print("keep it? type yes: ", end="", file=sys.stderr, flush=True)
    readable, _, _ = select.select([sys.stdin], [], [], limit)
    return bool(readable) and sys.stdin.readline().strip().lower() in ("y", "yes")


def command_says(command: str) -> Callable[[float], bool]:
    """Keep if a shell command exits with 0 within the time; retries it once a second."""

    def decide(limit: float) -> bool:
        end = time.monotonic() + limit
        while (left := end - time.monotonic()) > 0:
            try:
                if subprocess.run(command, shell=True, timeout=left, check=False).returncode == 0:
                    return True
            except subprocess.TimeoutExpired:
                return False
            time.sleep(min(1.0, max(0.0, end - time.monotonic())))
        return False

    return decide
