"""What ``mlt switch apply`` asks of a device, and how it fails."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any

from mlt.errors import MltError
from mlt.switch_configs.counters import QueueCounters
from mlt.switch_configs.generator import Generated
from mlt.switch_configs.plan import Plan

NO_ADDRESS = "; the name does not resolve on this host: give HOST as an address, or ansible_host in --inventory"


class PushError(MltError):
    """A device could not be reached, refused the configuration, or could not take it back."""


class Device(ABC):
    """One device. ``apply`` makes the configuration active; until ``confirm`` it can be taken back by ``rollback``.

    Owned by one thread. Every method raises PushError.
    """

    title: str
    # Whether the device takes the configuration back by itself if nobody confirms, even when this process is gone.
    reverts_itself = False

    def target(self, asked: str) -> str:
        """The target to generate for; the testbed's switch reads Linux in its own way."""
        return asked

    def running(self) -> str | None:
        """The running configuration, where the target's files depend on it."""
        return None

    @abstractmethod
    def preview(self, generated: Generated) -> str:
        """What ``apply`` would change, without changing it."""

    @abstractmethod
    def apply(self, generated: Generated, revert_in: float | None) -> None:
        """Make it active. ``revert_in``: seconds after which a device that can takes it back unless confirmed."""

    @abstractmethod
    def confirm(self) -> None:
        """Keep what ``apply`` made active."""

    @abstractmethod
    def rollback(self) -> None:
        """Restore what was there before ``apply``."""

    def undo(self, generated: Generated) -> None:
        """Take back what an earlier, confirmed ``apply`` of this policy made active."""
        raise PushError(f"{self.title}: keeps no undo; 'mlt switch rollback' prints what to enter there")

    def counters(self, plan: Plan) -> list[QueueCounters]:
        """The counters of the plan's queues on its ports, read now; others may be among them."""
        raise PushError(
            f"{self.title}: counters are not read this way; 'mlt switch verify' without --host prints what to type "
            "there, and --input FILE reads what it said"
        )

    def close(self) -> None:  # noqa: B027 (most have nothing to end)
        """End the connection."""


def need(module: str, what: str) -> Any:
    """Import a library of the extra, or raise PushError naming it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise PushError(
            f"{what} needs {module.split('.')[0]}, which is not installed: pip install 'mlt[switch-push]' ({error})"
        ) from None
