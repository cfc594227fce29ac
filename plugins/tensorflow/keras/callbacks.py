"""Callbacks for ``model.fit``: the start from one rank's weights, metrics of all ranks, learning rates, the loss of
gradients, elastic training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
from mlt.tensorflow.placement import check_devices
from mlt.tensorflow.variables import broadcast_variables

import tensorflow as tf
from mlt._gradients.statistics import StepStatistics
from mlt._named import basics
from mlt._named.elastic import State
from mlt._named.gradients import BoundedLossState
from mlt._named.objects import allgather_object
from mlt._named.process_sets import ProcessSet, global_process_set


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the weights and the optimizer's state of ``root_rank`` when training begins.

    If the model is not built yet, that is after its first batch. ``local_variables``: weights that stay as they are on
    each rank. Raises ValueError for a ``device`` other than the CPU.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        check_devices(device=device)
        self._local = set(map(id, local_variables or ()))
        self._root_rank = root_rank
        self._is_done = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._is_done = False
        if not self.model.built:
            return
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)  # the first step would do so
        self._broadcast()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._is_done:
            self._broadcast()

    def _broadcast(self) -> None:
        optimizer = self.model.optimizer
        weights = [one for one in self.model.weights if id(one) not in self._local]
        variables = [*weights, *([] if optimizer is None else optimizer.variables)]
        broadcast_variables(variables, self._root_rank)
        self._is_done = True


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Saves the model, or its weights, when ``monitor`` is better than before; on rank 0 only.

    As in Horovod, ``filepath`` is an attribute, which the program sets before training: of a file that ends with
    ".keras", or ".weights.h5" for weights. It stands after ``MetricAverageCallback``. Raises ValueError when training
    begins without it.

    >>> best = hvd.callbacks.BestModelCheckpoint(monitor="val_accuracy")
    >>> best.filepath = "best.keras"
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        super().__init__(
            "best.weights.h5" if save_weights_only else "best.keras", monitor, verbose,
            save_best_only=True, save_weights_only=save_weights_only, mode=mode, save_freq=save_freq,
        )  # fmt: skip
        self.filepath: Any = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.filepath is None:
            raise ValueError('BestModelCheckpoint has no file: set its attribute filepath first, such as "best.keras"')
        self.filepath = str(self.filepath)
        super().on_train_begin(logs)

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        if basics.rank() == 0:
            super()._save_model(*args, **kwargs)


class MetricAverageCallback(keras.callbacks.Callback):
    """Replaces the metrics in ``logs`` at the end of an epoch by their averages over all ranks.

    It stands before callbacks that use them (``ReduceLROnPlateau``, ``EarlyStopping``, ``TensorBoard``). Raises
    ValueError on all ranks if they have different metrics, and for a ``device`` other than the CPU.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        check_devices(device=device)
        self._process_set = process_set

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is None:
            return
        own = {name: float(value) for name, value in logs.items() if _is_number(value)}
        everywhere: list[dict[str, float]] = allgather_object(own, "metrics of an epoch", self._process_set)
        known = set().union(*everywhere)
        for rank, metrics in enumerate(everywhere):
            if lacking := sorted(known - metrics.keys()):
                raise ValueError(
                    f"metrics of epoch {epoch}: rank {rank} lacks {', '.join(lacking)}, which other ranks have; give "
                    "all ranks the same metrics and validation data, or none"
                )
        for name in own:
            logs[name] = sum(metrics[name] for metrics in everywhere) / len(everywhere)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to ``initial_lr`` times ``multiplier``, from ``start_epoch`` until ``end_epoch``.

    ``multiplier``: a number, or a function of the epoch, which with ``staircase`` False has a fraction: the part of the
    epoch's ``steps_per_epoch`` that is done (None: as ``fit`` knows them). ``momentum_correction``: in the step after a
    change of the rate, the momentum counts times new rate / old rate, as if the steps that it remembers had been made
    with the new rate (Goyal et al., 2017). Keras 3 compiles the momentum into the training step; so the remembered
    steps of ``SGD`` and ``RMSprop`` are scaled, once. ``Adam``, ``Muon`` and others remember gradients without the
    rate, and need no correction. Raises ValueError for ``staircase`` False without ``steps_per_epoch`` where ``fit``
    does not know it, and with ``momentum_correction`` for an unknown optimizer that has a momentum.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self._initial_lr = initial_lr
        # A number stands for a decay by this factor in each epoch.
        self._multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)
        self._is_staircase = staircase if callable(multiplier) else True
        self._start, self._end = start_epoch, end_epoch
        self._corrects = momentum_correction
        self._steps = steps_per_epoch
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch
        if self._is_staircase:
            self._set(epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._is_staircase:
            return
        steps = self._steps or (self.params or {}).get("steps")
        if not steps:
            raise ValueError(
                "the number of steps in an epoch is not known: give steps_per_epoch to "
                f"{type(self).__name__} or to fit()"
            )
        self._set(self._epoch + batch / steps)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = self._rate()

    def _set(self, epoch: float) -> None:
        if epoch >= self._start and (self._end is None or epoch < self._end):
            before = self._rate()
            self.model.optimizer.learning_rate = self._initial_lr * self._multiplier(epoch)
            after = self._rate()
            if self._corrects and after != before and before != 0:
                for one in _remembered_steps(self.model.optimizer):
                    one.assign(one * (after / before))

    def _rate(self) -> float:
        return float(tf.convert_to_tensor(self.model.optimizer.learning_rate))


def _remembered_steps(optimizer: Any) -> list[Any]:
    """The variables of an optimizer that are sums of past steps, in which the learning rates are."""
    own = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    if isinstance(own, keras.optimizers.SGD):
        found = getattr(own, "momentums", ())  # not before it is built
    elif isinstance(own, keras.optimizers.RMSprop):
        found = getattr(own, "_momentums", ())
    elif getattr(own, "momentum", 0) and not isinstance(own, keras.optimizers.Muon):
        raise ValueError(
            f"momentum_correction is known for SGD and RMSprop, and not for {type(own).__name__}: give "
            "momentum_correction=False, or scale its momentum in a callback of your own"
        )
    else:
        found = ()
    return [one for one in found if one is not None]


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from ``initial_lr / size()`` to ``initial_lr`` in the first ``warmup_epochs``.

    ``initial_lr``: the rate for all ranks, usually that of one process times ``size()`` (Goyal et al., 2017).
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # The end of a batch counts, so that the last of the warm-up has the whole rate.
            steps = self._steps or (self.params or {}).get("steps") or 1
            done = min(epoch + 1.0 / steps, warmup_epochs)
            size = basics.size()
            return (done * (size - 1) / warmup_epochs + 1) / size

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self._verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self._verbose and basics.rank() == 0 and self._end is not None and epoch + 1 == self._end:
            print(f"Epoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}.", flush=True)


class GradientLossCallback(keras.callbacks.Callback):
    """Reports the loss and the cost of the gradients' exchange: in ``logs`` per epoch, and per step for TensorBoard.

    ``log_dir``: folder of TensorBoard's files; None: none is written. ``state``: whose steps; None: those of the
    model's ``DistributedOptimizer``. In an epoch's ``logs``: ``gradient_loss``, the fraction of the gradients' bytes
    that are missing on this rank, and ``gradient_exchange_ms`` per step. Per step, by the number of the exchange:
    ``mlt/gradient_loss``, ``mlt/exchange_ms``, ``mlt/exposed_ms``, ``mlt/bytes`` and ``mlt/repairs``
    (``StepStatistics.scalars``).
    """

    def __init__(self, log_dir: str | None = None, state: BoundedLossState | None = None) -> None:
        super().__init__()
        self._log_dir = log_dir
        self._state = state
        self._writer: Any = None
        self._next = 0  # step to be written
        self._first = 0  # step of the epoch

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._state is None:
            self._state = getattr(self.model.optimizer, "loss_state", None)
        if self._state is None:
            raise ValueError(
                "GradientLossCallback: the model has no DistributedOptimizer; compile it with one, or give state="
            )
        self._next = self._end()
        if self._log_dir is not None:
            self._writer = tf.summary.create_file_writer(self._log_dir)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._first = self._end()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._writer is None:
            return
        for one in self._since(self._next):  # several with steps_per_execution
            with self._writer.as_default(step=one.step):
                for tag, value in one.scalars().items():
                    _write(tag, value)
        self._next = self._end()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        steps = self._since(self._first)
        if logs is None or not steps:
            return
        total = sum(one.bytes for one in steps)
        logs["gradient_loss"] = sum(one.missing_bytes for one in steps) / total if total else 0.0
        logs["gradient_exchange_ms"] = sum(one.sync_seconds for one in steps) / len(steps) * 1e3

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _end(self) -> int:
        """The step after the latest."""
        latest = None if self._state is None else self._state.latest
        return 0 if latest is None else latest.step + 1

    def _since(self, step: int) -> Sequence[StepStatistics]:
        """The steps from this one on."""
        if self._state is None or self._end() <= step:
            return ()
        return self._state.steps[step - self._end() :]


def _write(tag: str, value: float) -> None:
    """A scalar, in the form that TensorBoard reads; ``tf.summary.scalar`` needs TensorBoard to be installed."""
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = "scalars"
    metadata.data_class = 1  # DATA_CLASS_SCALAR
    tf.summary.write(tag, tf.constant(value, tf.float32), metadata=metadata)


class CommitStateCallback(keras.callbacks.Callback):
    """Commits an elastic state every ``batches_per_commit`` batches, and at the end of an epoch."""

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit is {batches_per_commit}; give 1 or more")
        self._elastic = state
        self._every = batches_per_commit
        self._left = batches_per_commit

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._left -= 1
        if self._left == 0:
            self._left = self._every
            self._elastic.commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._left = self._every
        self._elastic.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keeps ``state.batch`` at the number of the batch that comes next, 0 at the end of an epoch.

    It stands before ``CommitStateCallback``. A program that resumes gives ``fit`` the rest of its data.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._elastic = state
        self._first = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._first = self._elastic.batch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._elastic.batch = self._first + batch + 1

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._elastic.batch = self._first = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps ``state.epoch`` at the number of the epoch that comes next. It stands before ``CommitStateCallback``."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._elastic = state
        self._first = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._first = self._elastic.epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._elastic.epoch = self._first + epoch + 1
