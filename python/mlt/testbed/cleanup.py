"""Removal of testbeds, by ``down`` or after their process ended, whichever process created them."""

from __future__ import annotations

import contextlib

from mlt.testbed import namespaces, state

GRACE_SECONDS = 2.0


def dismantle(made: state.State) -> None:
    """End every process inside and remove everything; the caller holds the lock."""
    namespaces.end_processes(made.paths, grace=GRACE_SECONDS)
    for path in made.paths:
        namespaces.remove(path)
    state.forget(made.name)


def sweep() -> list[str]:
    """Remove testbeds whose process has ended; returns their names. The caller holds the lock."""
    swept = []
    for found in state.all_states():
        if found.is_abandoned():
            with contextlib.suppress(OSError):
                dismantle(found)
                swept.append(found.name)
    return swept


def remove(name: str) -> None:
    """Remove a testbed, whichever process created it; raises TestbedError if none has that name."""
    with state.locked():
        dismantle(state.read(name))
