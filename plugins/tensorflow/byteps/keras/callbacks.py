"""BytePS's callbacks for ``model.fit``: those of ``mlt.tensorflow.keras``, with BytePS's order of arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mlt.tensorflow.keras import callbacks
from mlt.tensorflow.keras.callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class _FromTheOptimizer(callbacks.LearningRateScheduleCallback):
    """A schedule whose ``initial_lr`` may be the optimizer's learning rate when training begins."""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        if math.isnan(self._initial_lr):
            self._initial_lr = self._rate()


class LearningRateScheduleCallback(_FromTheOptimizer):
    """Sets the learning rate to ``initial_lr`` times ``multiplier``, from ``start_epoch`` until ``end_epoch``.

    ``multiplier``: a constant, or a function of the epoch, which with ``staircase`` False has a fraction.
    ``initial_lr`` None: the optimizer's rate when training begins. The others: as of the class of this name in
    ``mlt.tensorflow.keras.callbacks``.
    """

    def __init__(
        self,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        initial_lr: float | None = None,
    ) -> None:
        super().__init__(
            math.nan if initial_lr is None else initial_lr,
            multiplier if callable(multiplier) else lambda epoch: multiplier,
            start_epoch=start_epoch,
            end_epoch=end_epoch,
            staircase=staircase or not callable(multiplier),
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )


class LearningRateWarmupCallback(_FromTheOptimizer, callbacks.LearningRateWarmupCallback):
    """Raises the learning rate from ``initial_lr / size()`` to ``initial_lr`` in the first ``warmup_epochs``.

    ``initial_lr`` None: the optimizer's rate when training begins.
    """

    def __init__(
        self,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        initial_lr: float | None = None,
    ) -> None:
        super().__init__(
            math.nan if initial_lr is None else initial_lr,
            warmup_epochs,
            momentum_correction,
            steps_per_epoch,
            verbose,
        )
