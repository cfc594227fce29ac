"""``MirroredStrategy``, which mlt does not have."""

from __future__ import annotations

from typing import Any


class MirroredStrategy:
    """Rejected: strategies of ``tf.distribute`` communicate inside TensorFlow."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "mlt has no MirroredStrategy: start one process for each device, and use DistributedOptimizer or "
            "DistributedGradientTape without a strategy"
        )
