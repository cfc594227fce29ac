"""``ResynchronisationSchedule``: when the replicas of a model are made equal again, and how far they had drifted."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mlt.torch.compilation import untraced_class

import torch

if TYPE_CHECKING:
    from mlt.torch.resynchronisation import Drift, Resynchronisation

    from mlt._gradients.statistics import StepLog

logger = logging.getLogger("mlt")


@untraced_class
class ResynchronisationSchedule:
    """Runs a re-synchronisation every so many steps of ``log``. ``is_required``: the averages may lose data.

    The last ``history`` drifts are kept. Used from the thread that runs forward and backward passes.
    """

    def __init__(self, log: StepLog, *, is_required: bool, history: int) -> None:
        self._log = log
        self._is_required = is_required
        self._resynchronisation: Resynchronisation | None = None
        self._steps = 0
        self._rank = 0
        self._synchronised_at = 0  # steps
        self._drifts: deque[Drift] = deque(maxlen=history)

    @property
    def drifts(self) -> tuple[Drift, ...]:
        """Distance of the replicas before each re-synchronisation, oldest first."""
        return tuple(self._drifts)

    @property
    def is_set(self) -> bool:
        return self._resynchronisation is not None

    def set(self, resynchronisation: Resynchronisation, steps: int, replica: torch.nn.Module, rank: int) -> None:
        """Run ``resynchronisation`` every ``steps`` backward passes, before a forward pass of ``replica``."""
        self._resynchronisation, self._steps, self._rank = resynchronisation, steps, rank
        replica.register_forward_pre_hook(self._before_forward)
        if self._is_required:
            resynchronisation.mark_drifting()

    def check(self, *, first: bool) -> None:
        """Before a bucket, the ``first`` of a step or another. Raises RuntimeError if replicas drift without end."""
        if not self._is_required:
            return
        if self._resynchronisation is None:
            raise RuntimeError(
                "lossy_results lets the replicas drift apart: before the first backward pass call "
                "state.resynchronise_every(steps, replica, optimizer)"
            )
        if first and self._log.started - self._synchronised_at > 2 * self._steps:
            raise RuntimeError(
                f"the replicas were to be re-synchronised every {self._steps} steps, and were not in twice as "
                "many: give resynchronise_every the model whose forward pass the program calls, in training mode"
            )

    def check_covers(self, parameters: Iterable[torch.Tensor]) -> None:
        """Raise RuntimeError for parameters that drift and that the re-synchronisation leaves as they are."""
        if self._is_required and self._resynchronisation and not self._resynchronisation.covers(parameters):
            raise RuntimeError(
                "the hook averages parameters that resynchronise_every does not make equal again: give each model "
                "a state of its own, and resynchronise_every the DDP model that the hook is registered on"
            )

    def run(self) -> Drift:
        """Make the replicas equal now. A collective. Raises RuntimeError without ``set``."""
        if self._resynchronisation is None:
            raise RuntimeError("call resynchronise_every(steps, replica, optimizer) first")
        self._synchronised_at = self._log.started
        drift = self._resynchronisation.run(self._synchronised_at)
        self._drifts.append(drift)
        self._log.drifted(drift.greatest)
        logger.info("rank %d: %s", self._rank, drift)
        return drift

    def _before_forward(self, replica: torch.nn.Module, _inputs: Any) -> None:
        is_due = self._log.started - self._synchronised_at >= self._steps
        if not is_due or not replica.training or not torch.is_grad_enabled():
            return
        if getattr(getattr(replica, "_join_config", None), "enable", False):
            raise RuntimeError(
                "resynchronise_every and DDP's join() do not go together: a rank without input would wait"
            )
        self.run()
