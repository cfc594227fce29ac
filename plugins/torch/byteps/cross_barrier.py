"""``CrossBarrier``: the next forward pass begins while the gradients of the last step still travel.

``step`` waits for nothing. A hook before the forward pass of each module waits for the gradients of that module's
parameters and updates these alone, by the ``step`` of the optimizer's own class. The front layers' gradients go first.

The module also has the other names of BytePS's module, which scripts import in place of ``byteps.torch``.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from mlt.torch.byteps.push_pull import poll, synchronize
from mlt.torch.byteps.push_pull import push_pull_async_inplace as byteps_push_pull
from mlt.torch.byteps.training import DistributedOptimizer, broadcast_optimizer_state, broadcast_parameters
from mlt.torch.horovod.compression import Compression, Compressor
from mlt.torch.horovod.optimizer import Distributed, DistributedAdasum

import torch
import torch.optim.optimizer as optim
from mlt._named import job
from mlt._named.byteps import init, local_rank, local_size, rank, refuse_asynchronous, shutdown, size
from mlt._named.controller import HorovodInternalError
from mlt._named.execution import FUSED_TENSOR_BYTES
from mlt._named.gradients import small_layers_of

__all__ = [
    "Compression",
    "CrossBarrier",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "init",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]

logger = logging.getLogger("mlt")

Parameter = torch.Tensor
Options = dict[str, Any]
"""A parameter group without its parameters."""

# The optimizers whose step computes each parameter from its own gradient and state alone.
_ALONE: Final = (
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "RAdam", "RMSprop", "Rprop",
    "SGD", "SparseAdam",
)  # fmt: skip

_in_use: weakref.WeakSet[_CrossBarrier] = weakref.WeakSet()


def CrossBarrier(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Parameter]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    num_steps: int = 10**6,
) -> Any:
    """The optimizer with gradients averaged over all workers, whose ``step`` returns before they have arrived.

    ``optimizer``: a plain one, for which the other arguments are those of ``DistributedOptimizer``, or the result of
    that. ``num_steps``: from that step on, each step waits for its gradients. ``synchronize`` waits for the step in
    progress; so do the model's and the optimizer's ``state_dict`` and forward passes without gradients. Parameters have
    the same bits as those that ``DistributedOptimizer`` computes. Raises TypeError for an optimizer that is not known
    to compute each parameter alone, ValueError for wrong numbers.

        optimizer = CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    """
    if num_steps < 1:
        raise ValueError(f"num_steps is {num_steps}: give the number of training steps, at least 1")
    refuse_asynchronous("CrossBarrier")
    if isinstance(optimizer, DistributedAdasum):
        raise TypeError("CrossBarrier needs gradients that are reduced by Average or Sum, not Adasum")
    if not isinstance(optimizer, Distributed):
        return _made(
            model, DistributedOptimizer(optimizer, named_parameters, compression, backward_passes_per_step), num_steps
        )
    if (named_parameters, compression, backward_passes_per_step) != (None, Compression.none, 1):
        raise ValueError(
            "CrossBarrier was given a DistributedOptimizer: give named_parameters, compression and "
            "backward_passes_per_step to that"
        )
    return _made(model, optimizer, num_steps)


@dataclass
class _Sent:
    """Gradients of a unit in progress: by parameter, and how often they had been changed when they were sent."""

    gradients: list[tuple[Parameter, torch.Tensor, int]]

    def put_back(self) -> None:
        for parameter, gradient, _ in self.gradients:
            parameter.grad = gradient


@dataclass
class _Update:
    """The update of a unit's parameters after a step. ``finish`` waits for the gradients. ``options``: those of the
    parameters' groups at the step. ``clears``: whether ``zero_grad(set_to_none=False)`` was called since."""

    sent: _Sent
    finish: Callable[[], None]
    options: list[Options]
    clears: bool = False

    def drop(self) -> None:
        """Wait, as the memory of the gradients is in use, and forget the update."""
        self.sent.put_back()
        with suppress(Exception):
            self.finish()


class _Hook:
    """Calls a method of the optimizer before a module is used. Copies of the model, also pickled, have hooks that do
    nothing: their parameters are not the optimizer's."""

    def __init__(self, call: Callable[[torch.nn.Module], None] | None = None) -> None:
        self._call = call

    def __call__(self, module: torch.nn.Module, *_: Any) -> None:
        if self._call is not None:
            self._call(module)

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return _Hook, ()


class _CrossBarrier(Distributed):
    _base: type[torch.optim.Optimizer]  # the user's class
    _sent: dict[int, _Sent]  # by unit: of the backward pass before the next step
    _updates: dict[int, _Update]  # by unit: of the last step, not applied yet
    _layers: dict[int, int]  # by unit; those outside the model have none
    _layer_count: int
    _units_of: dict[torch.nn.Module, list[int]]  # by module: those of its own parameters
    _called: set[torch.nn.Module]  # modules that a forward pass has called
    _waits_of: dict[torch.nn.Module, list[int]]  # by module: what it waits for, until _called grows
    _steps_left: int
    _is_after_step: bool

    def step(self, closure: Any = None) -> Any:
        """Send the gradients that no backward pass has made; parameters are updated before they are used.

        Raises ValueError for a ``closure``, whose gradients would come too late, and TypeError for hooks of ``step``.
        """
        if closure is not None:
            raise ValueError("step(closure) is not possible with CrossBarrier: call backward() before step()")
        self.complete()  # of modules that the last forward pass did not use
        self._steps_left -= 1
        if not self._units or self._skips or self._is_synchronized:
            super().step()
            self._sent.clear()
            self._is_after_step = True
            return None
        _check_hooks(self)
        for number in range(len(self._units)):
            if number not in self._started:
                self._start(number)
        options = [
            {key: one.clone() if torch.is_tensor(one) else one for key, one in group.items() if key != "params"}
            for group in self.param_groups  # a scheduler changes them after the step
        ]
        options_of = {one: options[i] for i, group in enumerate(self.param_groups) for one in group["params"]}
        for number, finish in self._started.items():
            own = [options_of[parameter] for parameter in self._units[number]]
            self._updates[number] = _Update(self._sent[number], finish, own)
        self._started, self._sent = {}, {}
        self.set_backward_passes_per_step(self.backward_passes_per_step)
        self._step_number += 1
        self._is_after_step = True
        for parameter, of in options_of.items():
            if parameter not in self._unit_of:  # this worker's alone
                self._update(parameter, of)
        if self._steps_left <= 0:
            self.complete()
        else:
            self._finish([number for number in self._updates if number not in self._layers])
        return None

    def complete(self) -> None:
        """Wait for the gradients of the last step, and update all parameters. Raises HorovodInternalError."""
        self._finish(sorted(self._updates, key=lambda number: self._layers.get(number, 0)))

    def synchronize(self) -> None:
        """After ``step`` wait until all parameters are updated; before it wait for the gradients, without an update.

        Raises HorovodInternalError.
        """
        self.complete()
        if not self._is_after_step:
            super().synchronize()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; those that still travel, once they have been used."""
        in_progress = [] if set_to_none or self._started else list(self._updates.values())
        kept = [
            (parameter, gradient)
            for update in in_progress
            for parameter, gradient, _ in update.sent.gradients
            if parameter.grad is gradient
        ]
        for parameter, _ in kept:
            parameter.grad = None
        super().zero_grad(set_to_none)
        for parameter, gradient in kept:
            parameter.grad = gradient
        for update in in_progress:
            update.clears = True

    def state_dict(self) -> Any:
        self.complete()
        return super().state_dict()

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.settle()
        super().load_state_dict(*args, **kwargs)
        self._sent = {}
        self._is_after_step = False

    def settle(self) -> None:
        """``complete`` for a caller that has no use for an error: it loads a state, or ends the job."""
        try:
            self.complete()
        except HorovodInternalError as error:
            logger.warning("CrossBarrier: the last step is lost: %s", error)

    def _order(self, number: int) -> dict[str, int]:
        layer = self._layers.get(number, 0)
        return {"priority": -layer, "layer": layer, "layers": self._layer_count}

    def _gradient_is_there(self, parameter: Parameter) -> None:
        if self._unit_of[parameter] in self._updates:
            raise RuntimeError(
                f"{self._named.names[parameter]!r}: a forward pass used this parameter before its update of the last "
                "step; call the module that has it, or optimizer.synchronize() before the forward pass"
            )
        self._is_after_step = False
        super()._gradient_is_there(parameter)

    def _start(self, number: int) -> None:
        super()._start(number)
        gradients = []
        for parameter in self._units[number]:
            assert parameter.grad is not None
            gradients.append((parameter, parameter.grad, parameter.grad._version))
        self._sent[number] = _Sent(gradients)

    def _before_forward(self, module: torch.nn.Module) -> None:
        """A module is about to use its parameters."""
        if module not in self._called:
            self._called.add(module)
            self._waits_of.clear()
        if not self._updates:
            return
        if not torch.is_grad_enabled():
            # Such a pass may use parameters without a call of their module.
            self.complete()
            return
        waits = self._waits_of.get(module)
        if waits is None:
            waits = self._waits_of[module] = self._to_wait_for(module)
        self._finish([number for number in waits if number in self._updates])

    def _to_wait_for(self, module: torch.nn.Module) -> list[int]:
        """The units of a module's own parameters, and of modules below it that no pass calls: it uses these itself."""
        below = [self._to_wait_for(one) for one in module.children() if one not in self._called]
        numbers = {*self._units_of.get(module, ()), *(number for part in below for number in part)}
        return sorted(numbers, key=lambda number: self._layers.get(number, 0))

    def _finish(self, numbers: list[int]) -> None:
        """Wait for the gradients of these units, and update their parameters. After an error no update is left."""
        for number in numbers:
            try:
                self._finish_one(self._updates.pop(number))
            except BaseException:
                others, self._updates = self._updates, {}
                for other in others.values():
                    other.drop()
                raise

    def _finish_one(self, update: _Update) -> None:
        current = [parameter.grad for parameter, _, _ in update.sent.gradients]
        for (parameter, gradient, version), now in zip(update.sent.gradients, current, strict=True):
            if (now is not None and now is not gradient) or gradient._version != version:
                update.drop()
                raise RuntimeError(
                    f"{self._named.names[parameter]!r}: the gradient was changed between backward() and the update, "
                    "while it travelled; clear gradients by optimizer.zero_grad(); for other changes call "
                    "optimizer.synchronize() first and step() inside `with optimizer.skip_synchronize():`"
                )
        update.sent.put_back()
        update.finish()
        for (parameter, _, _), now, options in zip(update.sent.gradients, current, update.options, strict=True):
            self._update(parameter, options)
            if now is None:
                parameter.grad = None
            elif update.clears and parameter.grad is not None:
                parameter.grad.requires_grad_(False)
                parameter.grad.zero_()

    def _update(self, parameter: Parameter, options: Options) -> None:
        """The step of the optimizer's class for one parameter."""
        alone: Any = object.__new__(self._base)
        alone.__dict__.update(vars(self))  # the state is shared
        alone.__dict__.pop("step", None)  # of a scheduler
        alone.param_groups = [{**options, "params": [parameter]}]
        alone.step()


def _check_alone(base: type[torch.optim.Optimizer]) -> None:
    """Raise TypeError unless the step of this class is one of torch's that update each parameter alone."""
    known = [getattr(torch.optim, name) for name in _ALONE if hasattr(torch.optim, name)]
    if inspect.unwrap(base.step) not in [inspect.unwrap(one.step) for one in known]:
        raise TypeError(
            f"CrossBarrier cannot update parameters one at a time by {base.__name__}, as it does by torch's "
            f"{', '.join(one.__name__ for one in known)}: use DistributedOptimizer"
        )


def _check_hooks(made: _CrossBarrier) -> None:
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    everywhere = (optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks)
    if any(vars(made).get(name) for name in names) or any(everywhere):
        raise TypeError(
            "step() of the optimizer has hooks, which CrossBarrier does not call: remove them, or use "
            "DistributedOptimizer"
        )


def _made(model: torch.nn.Module, optimizer: Distributed, num_steps: int) -> Any:
    base = type(optimizer).__bases__[1]
    _check_alone(base)
    made: Any = object.__new__(type(base.__name__, (_CrossBarrier, base), {"_base": base}))
    made.__dict__.update({name: one for name, one in vars(optimizer).items() if name not in ("step", "zero_grad")})
    made._sent = {}
    made._updates = {}
    made._called = set()
    made._waits_of = {}
    made._steps_left = num_steps
    made._is_after_step = False
    places = {parameter: place for place, parameter in enumerate(model.parameters())}
    inside = [number for number, unit in enumerate(made._units) if all(one in places for one in unit)]
    inside.sort(key=lambda number: min(places[one] for one in made._units[number]))
    sizes = [sum(one.numel() * one.element_size() for one in made._units[number]) for number in inside]
    layers = small_layers_of(sizes, FUSED_TENSOR_BYTES)  # those of a layer are sent together
    made._layers = {inside[position]: layer for layer, positions in enumerate(layers) for position in positions}
    made._layer_count = max(len(layers), 1)
    made._units_of = {
        module: [made._unit_of[one] for one in module.parameters(recurse=False) if one in made._unit_of]
        for module in model.modules()
    }
    hooks, made._hooks = made._hooks, []
    for hook in hooks:
        hook.remove()
    if made._units:
        for parameter in made._unit_of:
            made._hooks.append(parameter.register_post_accumulate_grad_hook(made._gradient_is_there))
        for module in model.modules():
            of: Any = module
            made._hooks += [
                # Before the program's own hooks, which may compute with the parameters.
                of.register_forward_pre_hook(_Hook(made._before_forward), prepend=True),
                of.register_state_dict_pre_hook(_Hook(lambda _: made.complete())),
                of.register_load_state_dict_pre_hook(_Hook(lambda _: made.settle())),
            ]
        _in_use.add(made)
    return made


def _settle_all() -> None:
    for one in list(_in_use):
        one.settle()


job.before_stop(_settle_all)
