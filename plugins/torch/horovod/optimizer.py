"""``DistributedOptimizer``: averages the gradients of all ranks before it applies them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from mlt.torch.horovod.compression import Compression, Compressor
from mlt.torch.horovod.handles import synchronize
from mlt.torch.horovod.reduce import grouped_allreduce_async_, sparse_allreduce_async, start_allreduce

import torch
from mlt._gradients.loss import LossSchedule, bound_at, checked
from mlt._named import job
from mlt._named.controller import EndedError, HorovodInternalError
from mlt._named.groups import chosen_groups, positions
from mlt._named.objects import broadcast_object
from mlt._named.process_sets import ProcessSet, global_process_set
from mlt._named.reduce_ops import Adasum, Average, ReduceOp, check_lossy

Parameter = torch.Tensor
Unit = tuple[Parameter, ...]
"""Parameters whose gradients are reduced together."""


class Named:
    """The parameters of an optimizer and their names. Raises ValueError unless each has one of its own."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Parameter]] | None
    ) -> None:
        groups = [list(group["params"]) for group in optimizer.param_groups]
        self.parameters = [parameter for group in groups for parameter in group]
        if named_parameters is None:
            named = [
                (f"allreduce.noname.{i}.{j}", parameter)
                for i, group in enumerate(groups)
                for j, parameter in enumerate(group)
            ]
        else:
            named = list(named_parameters)
        if any(not isinstance(one, tuple) for one in named):
            raise ValueError(
                "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
                "model.named_parameters()."
            )
        names = [name for name, _ in named]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(
                f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(doubled)}"
            )
        self.names = {parameter: name for name, parameter in named}
        unnamed = [
            f"number {i} of shape {tuple(parameter.shape)}"
            for i, parameter in enumerate(self.parameters)
            if parameter not in self.names
        ]
        if unnamed:
            raise ValueError(
                "named_parameters was specified, but one or more model parameters were not named: "
                f"{', '.join(unnamed)} of the optimizer"
            )


class Distributed(torch.optim.Optimizer):
    """The part of a distributed optimizer that stands before the class of the user's optimizer."""

    _compression: type[Compressor]
    _named: Named
    _op: ReduceOp
    _scales: tuple[float, float]
    _sparse_as_dense: bool
    _process_set: ProcessSet
    _bound: float | LossSchedule | None
    _step_number: int
    backward_passes_per_step: int
    _passes_left: dict[Parameter, int]
    _units: list[Unit]
    _unit_of: dict[Parameter, int]
    _started: dict[int, Callable[[], None]]  # by number of the unit: how to wait for it
    _is_synchronized: bool
    _skips: bool
    _hooks: list[Any]  # handles of the hooks of the parameters

    @property
    def _parameter_names(self) -> dict[Parameter, str]:
        """Name by parameter; scripts for Horovod read it."""
        return self._named.names

    def set_backward_passes_per_step(self, passes: int) -> None:
        """The number of backward passes whose gradients are added up before a step."""
        self.backward_passes_per_step = passes
        self._passes_left = dict.fromkeys(self._passes_left, passes)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._started = {}
        self._is_synchronized = False
        self._skips = False
        self.set_backward_passes_per_step(self.backward_passes_per_step)
        super().load_state_dict(*args, **kwargs)

    def synchronize(self) -> None:
        """Wait until the gradients are those of all ranks; those that no backward pass made are zeros."""
        if self._process_set.included():
            for number in range(len(self._units)):
                if number not in self._started:
                    self._start(number)
            started, self._started = self._started, {}
            failed: HorovodInternalError | None = None
            for finish in started.values():  # all, so that the program may go on after an error
                try:
                    finish()
                except HorovodInternalError as error:
                    failed = failed or error
            self.set_backward_passes_per_step(self.backward_passes_per_step)
            self._step_number += 1
            if failed is not None:
                raise failed
        self._is_synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let ``step`` not call ``synchronize``, because the program did: to clip gradients, for example."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def step(self, closure: Any = None) -> Any:
        if not self._skips:
            if self._is_synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(): the gradients are reduced twice. Call step() inside "
                    "`with optimizer.skip_synchronize():`.",
                    stacklevel=2,
                )
            self.synchronize()
        self._is_synchronized = False
        return super().step(closure)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        if self._started:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        super().zero_grad(*args, **kwargs)

    def _gradient_is_there(self, parameter: Parameter) -> None:
        """A backward pass has added to the gradient: of the last pass, it is reduced while the others are computed."""
        number = self._unit_of[parameter]
        if self._passes_left[parameter] <= 0:
            raise AssertionError(
                f"Gradients of {self._named.names[parameter]!r} were computed more than backward_passes_per_step times "
                "before call to step(). Increase backward_passes_per_step to accumulate gradients locally."
            )
        self._passes_left[parameter] -= 1
        if number not in self._started and all(self._passes_left[one] <= 0 for one in self._units[number]):
            self._start(number)

    def _order(self, number: int) -> dict[str, int]:
        """Priority and layer of a unit among those of a step: all are alike."""
        return {}

    def _start(self, number: int) -> None:
        """Start reducing the gradients of a unit."""
        unit = self._units[number]
        for parameter in unit:
            if parameter.grad is None:
                # Another rank may have a gradient for it.
                parameter.grad = torch.zeros_like(parameter)
        first = unit[0]
        gradient = first.grad
        assert gradient is not None
        if gradient.is_sparse and not self._sparse_as_dense and len(unit) == 1:
            result = sparse_allreduce_async(gradient, self._named.names[first], self._op, self._process_set)
            self._started[number] = lambda: _replace(first, result())
            return
        pairs = [self._compression.compress(_dense(parameter)) for parameter in unit]
        tensors, contexts = [tensor for tensor, _ in pairs], [ctx for _, ctx in pairs]
        name = self._named.names[first]
        bound = None if self._bound is None else bound_at(self._bound, self._step_number, number)
        prescale, postscale = self._scales
        handle = start_allreduce(
            tensors,
            tensors,
            name,
            self._op,
            prescale,
            postscale,
            self._process_set,
            grouped=len(unit) > 1,
            loss_bound=bound,
            **self._order(number),
        )

        def finish() -> None:
            if synchronize(handle) is None:  # else in place
                raise EndedError(f"tensor {name!r}: the job has ended before it was reduced")
            for parameter, tensor, ctx in zip(unit, tensors, contexts, strict=True):
                _replace(parameter, self._compression.decompress(tensor, ctx))

        self._started[number] = finish


class StepCommunicates(torch.optim.Optimizer):
    """An optimizer of which only ``step`` communicates: what the API has beside it does nothing, or is not possible."""

    _named: Named
    _skip_error: ClassVar[str]
    backward_passes_per_step: int

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Kept for the API: the program calls ``step`` when it has accumulated enough."""
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Nothing: only ``step`` communicates."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raise AssertionError, as Horovod and BytePS do: ``step`` communicates."""
        raise AssertionError(self._skip_error)
        yield


class DistributedAdasum(StepCommunicates):
    """Applies the optimizer on each rank's own gradients, and adds the changes, which are dense, by Adasum."""

    _compression: type[Compressor]
    _units: list[Unit]
    _skip_error = "Skipping synchronization is not supported when using Adasum optimizer."

    def step(self, closure: Any = None) -> Any:
        starts = [[one.detach().clone() for one in unit] for unit in self._units]
        loss = super().step(closure)
        started = []
        for number, (unit, before) in enumerate(zip(self._units, starts, strict=True)):
            pairs = [self._compression.compress(one.detach() - start) for one, start in zip(unit, before, strict=True)]
            name = f"adasum.changes.{number}"
            started.append((grouped_allreduce_async_([tensor for tensor, _ in pairs], name=name, op=Adasum), pairs))
        for unit, before, (handle, pairs) in zip(self._units, starts, started, strict=True):
            changes = synchronize(handle)
            with torch.no_grad():
                for one, start, change, (_, ctx) in zip(unit, before, changes, pairs, strict=True):
                    one.copy_(start + self._compression.decompress(change, ctx))
        return loss


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Parameter]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    loss_bound: float | str | LossSchedule | None = None,
) -> Any:
    """The optimizer with gradients of all ranks; an instance of its class too.

    A gradient is reduced as soon as the backward pass has made it. ``named_parameters``: names by which the ranks'
    gradients are matched; without them, the order. ``backward_passes_per_step``: passes whose gradients are added up
    first. ``gradient_predivide_factor`` f: the average divides by f before the sum, and by size / f after it.
    ``groups``: a number of groups, or lists of parameters, that are reduced together; by default each gradient alone,
    and all changes of Adasum together. ``sparse_as_dense``: sparse gradients travel dense, as those of a group and what
    Adasum adds always do. ``loss_bound``: fraction of the gradients that may be missing
    on each hop of a sum, or a schedule of it by step and unit (``mlt.torch.warm_up``), with Average and Sum only; by
    default that of ``mlt.torch.lossy``, else none. The last is mlt's own, the others are Horovod's. Raises ValueError.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    bound = None if loss_bound is None else checked(loss_bound)
    if bound:
        check_lossy(op)
    chosen = chosen_groups(groups, num_groups, torch.is_tensor, "torch.Tensor")
    base: Any = type(optimizer)
    is_adasum = op == Adasum and job.controller().size > 1
    part = DistributedAdasum if is_adasum else Distributed
    made: Any = object.__new__(type(base.__name__, (part, base), {}))
    # Its state, groups and hooks are shared. A scheduler may have wrapped its step.
    made.__dict__.update({name: value for name, value in vars(optimizer).items() if name not in ("step", "zero_grad")})
    made._named = Named(optimizer, named_parameters)
    made._compression = compression
    made.backward_passes_per_step = backward_passes_per_step
    trained = [one for one in made._named.parameters if one.requires_grad]
    if is_adasum:
        if process_set is not global_process_set:
            raise NotImplementedError("Adasum does not support non-global process sets yet.")
        made._units = [tuple(trained)] if chosen is None else _units(made._named, trained, chosen, process_set)
        return made
    made._op = op
    made._scales = (1.0 / gradient_predivide_factor, gradient_predivide_factor)
    made._sparse_as_dense = sparse_as_dense
    made._process_set = process_set
    made._bound = bound
    made._step_number = 0
    made._started = {}
    made._is_synchronized = False
    made._skips = False
    made._hooks = []
    made._passes_left = dict.fromkeys(trained, backward_passes_per_step)
    made._units = _units(made._named, trained, chosen, process_set)
    made._unit_of = {parameter: number for number, unit in enumerate(made._units) for parameter in unit}
    if process_set.included() and len(job.ranks_of(process_set.process_set_id)) > 1:
        for parameter in trained:
            made._hooks.append(parameter.register_post_accumulate_grad_hook(made._gradient_is_there))
    else:
        made._units = []
    return made


def _units(
    named: Named,
    trained: list[Parameter],
    groups: int | Sequence[Sequence[Parameter]] | None,
    process_set: ProcessSet,
) -> list[Unit]:
    """The parameters in units; rank 0's order decides where ``groups`` is a number."""
    if groups is None or not process_set.included():
        return [(one,) for one in trained]
    if isinstance(groups, int):
        ranks = job.ranks_of(process_set.process_set_id)
        names = broadcast_object([named.names[one] for one in trained], ranks[0], "groups", process_set)
        ordered = sorted(trained, key=lambda one: names.index(named.names[one]))
        return [tuple(ordered[position] for position in group) for group in positions(groups, ordered)]
    units = [tuple(trained[position] for position in group) for group in positions(groups, trained)]
    listed = {one for unit in units for one in unit}
    return units + [(one,) for one in trained if one not in listed]


def _dense(parameter: Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad


def _replace(parameter: Parameter, gradient: torch.Tensor) -> None:
    """Set the gradient: of the same layout, and in place where it is dense."""
    own = parameter.grad
    assert own is not None
    if own.is_sparse:
        parameter.grad = gradient if gradient.is_sparse else gradient.to_sparse()
    elif own is not gradient:
        with torch.no_grad():
            own.copy_(gradient)
