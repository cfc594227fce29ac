"""Elastic training with TensorFlow: the state of a Keras model, beside those of every framework."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from mlt.tensorflow.placement import check_session
from mlt.tensorflow.stateful import cause_of
from mlt.tensorflow.variables import broadcast_variables

import tensorflow as tf
from mlt._named import elastic
from mlt._named.controller import HorovodInternalError
from mlt._named.elastic import HostsUpdatedInterrupt, ObjectState, State

__all__ = ["HostsUpdatedInterrupt", "ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]

Result = TypeVar("Result")


class TensorFlowState(ObjectState):
    """State of variables, of TensorFlow or Keras, and of other Python objects, each of which is an attribute.

    ``session``: None only, as in TensorFlow 2.
    """

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        check_session("TensorFlowState", session)
        self._variables = list(variables or ())
        self._values: list[Any] = []
        super().__init__(**kwargs)
        self.save()

    def _own(self) -> list[Any]:
        return self._variables

    def save(self) -> None:
        super().save()
        self._values = [np.array(tf.convert_to_tensor(one)) for one in self._own()]

    def restore(self) -> None:
        super().restore()
        for variable, value in zip(self._own(), self._values, strict=True):
            variable.assign(value)

    def sync(self) -> None:
        root = self.most_committed()
        broadcast_variables(self._own(), root)
        self._sync_from(root)


class TensorFlowKerasState(TensorFlowState):
    """State of a built Keras model and its optimizer, and of other Python objects, each of which is an attribute.

    ``optimizer`` None: that of the compiled model. ``backend`` is not needed: there
    is one backend of Keras in a process.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        super().__init__(**kwargs)

    def _own(self) -> list[Any]:
        own = [] if self.optimizer is None else list(self.optimizer.variables)
        return [*self.model.weights, *own]


def run(func: Callable[..., Result]) -> Callable[..., Result]:
    """Call ``func(state, ...)`` with a state that all ranks share; again from the last commit if a rank fails.

    With MLT_ELASTIC the others continue with the members that are there, whose number may differ. Without it the failed
    process must come back under its rank within MLT_CONNECT_TIMEOUT: its supervisor starts it again.
    """

    @functools.wraps(func)
    def with_cause(*args: Any, **kwargs: Any) -> Result:
        try:
            return func(*args, **kwargs)
        except tf.errors.OpError as error:
            cause = cause_of(error)
            if isinstance(cause, HorovodInternalError):
                raise cause from error
            raise

    return elastic.run(with_cause)
