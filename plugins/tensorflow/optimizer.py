"""``DistributedOptimizer``: one of Keras 3's optimizers that averages the gradients of all ranks before it applies
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mlt.tensorflow.compression import Compression, Compressor
from mlt.tensorflow.exchange import GradientExchange, is_variable
from mlt.tensorflow.placement import check_devices
from mlt.tensorflow.requirement import require_keras_of_tensorflow
from mlt.tensorflow.stateful import is_called_by

import tensorflow as tf
from mlt._gradients.loss import LossSchedule
from mlt._named.gradients import BoundedLossState, loss_state
from mlt._named.groups import chosen_groups
from mlt._named.process_sets import ProcessSet, global_process_set
from mlt._named.reduce_ops import Average, ReduceOp


class _Distributed:
    """The part of a distributed optimizer that stands before the class of the user's optimizer."""

    _exchange: GradientExchange
    _passes: int  # backward passes whose sum is applied: Keras averages them
    gradient_accumulation_steps: int | None
    _trainable_variables: list[Any]
    _average_accumulated: Callable[[list[Any]], list[Any]]  # a function, because Keras tracks lists of variables
    _overwrite_variable_with_gradient: Any

    @property
    def loss_state(self) -> BoundedLossState:
        """The allowed loss, and the statistics of the last steps."""
        return self._exchange.state

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Average the gradients over all ranks and apply them; called by Keras."""
        _refuse_loss_scale_around(self)
        gradients = list(grads)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if self.gradient_accumulation_steps:
            accumulated = [  # Keras leaves the others out
                variable
                for one, variable in zip(gradients, variables, strict=False)
                if one is not None and not self._overwrite_variable_with_gradient(variable)
            ]
            self._average_accumulated = lambda sums: self._exchange(sums, accumulated)
        elif gradients:
            gradients = self._exchange(gradients, variables)
        apply: Any = super().apply  # type: ignore[misc]
        return apply(gradients, None if trainable_variables is None else variables)

    def _clip_gradients(self, grads: Any) -> Any:
        """Called by Keras before an update: with gradient accumulation the accumulated gradients are averaged here."""
        gradients = list(grads)
        if self.gradient_accumulation_steps:
            gradients = self._average_accumulated(gradients)
            if self._passes > 1:
                gradients = [one if one is None else one * self._passes for one in gradients]
        clip: Any = super()._clip_gradients  # type: ignore[misc]
        return clip(gradients)


def _refuse_loss_scale_around(optimizer: Any) -> None:
    """Each rank would decide alone whether its gradients are finite, and a rank that skips a step would hang the
    others."""
    from keras.optimizers import LossScaleOptimizer

    if is_called_by(LossScaleOptimizer, lambda owner: getattr(owner, "inner_optimizer", None) is optimizer):
        raise ValueError(
            "a LossScaleOptimizer around a DistributedOptimizer would skip steps on single ranks: write "
            "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)); model.compile() adds no other"
        )


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    loss_bound: float | str | LossSchedule | BoundedLossState | None = None,
    local_variables: Iterable[Any] = (),
) -> Any:
    """A new optimizer of the same class and configuration, whose gradients are averaged over all ranks.

    State that ``optimizer`` has built is taken over. ``loss_bound``: max fraction of the gradients that may be lost in
    each hop of the sum, in [0, 1); a schedule (``warm_up``, ``phases``); or a ``BoundedLossState``; None: exact.
    ``backward_passes_per_step``: steps whose gradients are added up before they are averaged over the ranks and
    applied; ``average_aggregated_gradients`` divides their sum by this number. ``local_variables``: whose gradients
    stay this rank's, divided by the number of ranks if ``scale_local_gradients``. ``groups``: a number of groups of
    consecutive variables, or lists of variables, whose dense gradients are reduced together, each group as one
    operation, and the rest as without groups: all in one, or with a loss bound by size. A group is a layer of the
    bound. ``num_groups``: the older name. All sparse gradients are one operation.

    In ``model.compile()`` do not give jit_compile=True: XLA compiles no communication, and tracing raises ValueError.
    With mixed_float16 give a ``LossScaleOptimizer`` inside. Raises TypeError for what is no optimizer of Keras 3,
    RuntimeError if Keras does not run on TensorFlow, ValueError for groups that are none, and for a ``device_dense`` or
    ``device_sparse`` other than the CPU.

    >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), loss_bound=hvd.warm_up(0.1, steps=100))
    >>> isinstance(optimizer, keras.optimizers.SGD)
    True
    """
    require_keras_of_tensorflow("DistributedOptimizer")
    check_devices(device_dense=device_dense, device_sparse=device_sparse)
    check_plain(optimizer)
    made = made_with(_Distributed, optimizer, name, backward_passes_per_step)
    made._exchange = GradientExchange(
        f"gradients of {made.name}",
        op=op,
        compression=compression,
        gradient_predivide_factor=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense,
        groups=chosen_groups(groups, num_groups, is_variable, "tf.Variable"),
        process_set=process_set,
        state=loss_state(loss_bound),
        local_variables=local_variables,
        scale_local_gradients=scale_local_gradients,
    )
    made._passes = 1 if average_aggregated_gradients else backward_passes_per_step
    return made


def check_plain(optimizer: Any) -> None:
    """Raise TypeError for what is no optimizer of Keras 3, ValueError for a distributed one."""
    import keras

    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"DistributedOptimizer takes an optimizer of Keras 3 (keras.optimizers), not {type(optimizer).__name__}: "
            "with others use DistributedGradientTape"
        )
    if isinstance(optimizer, _Distributed):
        raise ValueError("the optimizer is a DistributedOptimizer already: its gradients would be averaged twice")


def made_with(part: type, optimizer: Any, name: str | None, passes: int) -> Any:
    """A new optimizer of the same class, configuration and state, before whose class ``part`` stands.

    ``passes``: steps whose gradients Keras averages before it applies them. Raises ValueError.
    """
    import keras

    kind = type(optimizer)
    config = optimizer.get_config()
    if name is not None:
        config["name"] = name
    if passes > 1:
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise ValueError("backward_passes_per_step is not possible with a LossScaleOptimizer: leave it at 1")
        config["gradient_accumulation_steps"] = passes
    # Of the same name and module, so that a saved model needs no mlt to be loaded.
    made = type(kind.__name__, (part, kind), {"__module__": kind.__module__}).from_config(config)  # type: ignore[attr-defined]
    if optimizer.built:
        made.build(optimizer._trainable_variables)
        for own, other in zip(made.variables, optimizer.variables, strict=True):
            own.assign(tf.convert_to_tensor(other))
    return made
