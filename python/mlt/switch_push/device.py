"""The interface of a device for ``mlt switch apply``, and its error."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any

from mlt._shared.extras import how_to_install
from mlt.errors import MltError
from mlt.switch_configs.counters import QueueCounters
from mlt.switch_configs.generator import Generated
from mlt.switch_configs.plan import Plan

NO_ADDRESS = "; the name does not resolve on this host: give SWITCH as an address, or ansible_host in --inventory"


class PushError(MltError):
    """A device was unreachable, rejected the configuration, or could not roll it back."""


class Device(ABC):
    """One device. ``apply`` activates the configuration; until ``confirm``, ``rollback`` restores the previous one.

    Owned by one thread. Every method raises PushError.
    """

    title: str
    # Whether the device rolls back by itself without ``confirm``, even after this process has ended.
    reverts_itself = False

    def target(self, target: str) -> str:
        """The target to generate for; the testbed's switch has its own form of the Linux target."""
        return target

    def running(self) -> str | None:
        """The running configuration, if the target's files depend on it."""
        return None

    @abstractmethod
    def preview(self, generated: Generated) -> str:
        """The changes that ``apply`` would make; makes none."""

    @abstractmethod
    def apply(self, generated: Generated, revert_in: float | None) -> None:
        """Activate it. ``revert_in``: seconds after which a device that can do so rolls back unless confirmed."""

    @abstractmethod
    def confirm(self) -> None:
        """Make the configuration of ``apply`` permanent."""

    @abstractmethod
    def rollback(self) -> None:
        """Restore the configuration from before ``apply``."""

    def undo(self, generated: Generated) -> None:
        """Remove the configuration of an earlier, confirmed ``apply`` of this policy."""
        raise PushError(f"{self.title}: stores no undo; 'mlt switch rollback' prints the commands for the device")

    def counters(self, plan: Plan) -> list[QueueCounters]:
        """Current counters of the plan's queues on its ports; may contain other queues."""
        raise PushError(
            f"{self.title}: mlt cannot read its counters; 'mlt switch verify' without --switch prints the command "
            "to run there, and --input FILE reads its output"
        )

    def close(self) -> None:  # noqa: B027 (most have nothing to end)
        """End the connection."""


def need(module: str, what: str) -> Any:
    """Import a library of the extra; raises PushError that names the extra if it is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        missing = error.name or package  # what the package itself needs, too
        but = "" if missing.split(".")[0] == package else f" whole: it lacks {missing}"
        raise PushError(
            f"{what} needs {package}, which is not installed{but}: {how_to_install('switch-push')}"
        ) from None
