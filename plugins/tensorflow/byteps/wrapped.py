"""``WrappedOptimizer``: an optimizer of TensorFlow 1 around another one."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class WrappedOptimizer(tf.compat.v1.train.Optimizer):
    """Passes everything on to the optimizer that it was given."""

    def __init__(self, optimizer: tf.compat.v1.train.Optimizer, name: str, use_locking: bool) -> None:
        super().__init__(use_locking, name)
        self._optimizer = optimizer

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Pairs of gradient and variable."""
        pairs: list[tuple[Any, Any]] = self._optimizer.compute_gradients(*args, **kwargs)
        return pairs

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.apply_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.variables(*args, **kwargs)
