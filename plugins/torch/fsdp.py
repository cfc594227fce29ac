"""FSDP2 whose gradients may be lost in part: ``LossyReduceScatter(loss_bound=0.1).set_on(model)``.

The paper's FSDP case (MLT, NSDI 2024, section 6.1): only gradients may be lost, on their way into the reduce-scatter.
The all-gather of the parameters remains exact, so that all ranks compute with the same ones. Each rank's optimiser sees
the gradients that arrived.

Nothing here imports ``torch.distributed.fsdp``, which takes a second: a program that uses it has imported it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from mlt.torch.compilation import untraced_class
from mlt.torch.reductions import factor_of, multiplied
from mlt.torch.registration import mlt_group

import torch
import torch.distributed as dist
from mlt._gradients.loss import Allowance, LossSchedule, allowing, bound_at, checked
from mlt._gradients.statistics import DEFAULT_HISTORY, OpenStep, StepRecorder
from torch.autograd import Variable

_NONE = -1  # torch's number outside of a backward pass

# Its name since torch 2.13, which warns of the old one.
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@untraced_class
class LossyReduceScatter(StepRecorder):
    """The reduce-scatter of an FSDP2 model's gradients, of which each rank may miss a bounded part.

    ``loss_bound`` in [0, 1), or text such as "10%": max fraction of the elements that a rank may miss of each other
    rank's part; 0 is as exact as without it, to the last bit. Or a function of step and layer (``warm_up``,
    ``phases``), the same on every rank: its step counts this object's backward passes, and layer 0 is the group of
    parameters whose gradients come last. ``history``: number of steps whose statistics are kept.

    An element is the mean of the terms that arrived, times what FSDP asks for: so losses do not make gradients smaller.
    Give each model one of its own. Used from the thread that runs the backward pass; ``steps`` and ``latest`` may be
    read from any thread.

    >>> reduce_scatter = LossyReduceScatter(loss_bound=0.1)
    >>> reduce_scatter.set_on(model)  # after the last fully_shard  # doctest: +SKIP
    >>> reduce_scatter.latest.loss_fraction  # doctest: +SKIP
    """

    def __init__(self, *, loss_bound: float | str | LossSchedule = 0.1, history: int = DEFAULT_HISTORY) -> None:
        bound = checked(loss_bound)
        super().__init__(history)
        self.loss_bound = bound
        self._backward = _NONE  # torch's number of the backward pass that began last
        self._count = 0  # of this step's calls
        self._layers = 0  # calls of the last step

    def set_on(self, model: torch.nn.Module) -> None:
        """Use this for every module of ``model`` that ``fully_shard`` has wrapped.

        Raises TypeError if there is none, if this torch has no way to set it, or if a parameter is sharded over another
        backend's group; then it sets nothing.
        """
        wrapped = [module for module in model.modules() if hasattr(module, "set_reshard_after_backward")]
        if not wrapped:
            raise TypeError(
                f"{type(model).__name__} has no module that fully_shard has wrapped: call fully_shard first"
            )
        if not hasattr(wrapped[0], "set_custom_reduce_scatter"):
            raise TypeError(f"torch {torch.__version__} cannot replace FSDP2's reduce-scatter: torch 2.9 or newer can")
        for name, parameter in model.named_parameters():
            # Of a DTensor, whose class takes a second to import. Where a mesh has several dimensions, the first call
            # learns which of them is FSDP's.
            mesh = getattr(parameter, "device_mesh", None)
            if mesh is not None and mesh.ndim == 1:
                mlt_group(mesh.get_group(), f"LossyReduceScatter on {name}")
        for module in wrapped:
            module.set_custom_reduce_scatter(self)  # type: ignore[operator]

    # -- called by torch ---------------------------------------------------------------------------------------------

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory of a call's input or output."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Reduce ``input_tensor`` over ``group``, whose rank i receives part i in ``output_tensor``.

        Raises TypeError for a group of another backend, tensors without fractions, and operations other than sums and
        means.
        """
        self._check(group, input_tensor, op)
        step, layer = self._begin(), self._layer()
        bound = bound_at(self.loss_bound, step.step, layer)

        def observe(done: Any) -> None:
            self._log.result(step, pushed_bytes=done.bytes, missing_bytes=done.missing_bytes, repairs=done.repairs)

        scale = 1.0
        if bound > 0 and op != dist.ReduceOp.AVG:
            # A sum over what arrived would be too small: it is the mean times the number of ranks.
            input_tensor = multiplied(input_tensor, factor_of(SimpleNamespace(reduceOp=op), "reduce_scatter"))
            scale, op = float(group.size()), dist.ReduceOp.AVG
        if async_op and scale != 1.0:
            input_tensor, scale = input_tensor * scale, 1.0
        with allowing(Allowance(bound, layer, max(self._layers, layer + 1), observe)):
            work: dist.Work | None = _reduce_scatter(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
        if scale != 1.0:
            output_tensor.mul_(scale)
        return work

    # -- inside ------------------------------------------------------------------------------------------------------

    def _check(self, group: dist.ProcessGroup, tensor: torch.Tensor, op: Any) -> None:
        mlt_group(group, "LossyReduceScatter")
        if not tensor.is_floating_point():
            raise TypeError(f"LossyReduceScatter: gradients of {tensor.dtype} cannot be lost in part; reduce floats")
        if not any(op == known for known in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM)):
            raise TypeError(f"LossyReduceScatter: {op} is neither a sum nor a mean")

    def _begin(self) -> OpenStep:
        """The step of this backward pass, which ends with it; outside of one, every call is a step.

        A pass that fails has no end: the next one, which has another number, begins a step of its own.
        """
        backward = torch._C._current_graph_task_id()
        is_alone = backward == _NONE
        is_first = is_alone or backward != self._backward
        self._backward = backward
        step = self._log.push(first=is_first, last=is_alone)
        if is_alone:
            self._count = self._layers  # as the front layer
            return step
        if is_first:
            self._count = 0
            Variable._execution_engine.queue_callback(partial(self._end, step))
        self._count += 1
        return step

    def _layer(self) -> int:
        """Layers are numbered from the front, where a backward pass ends: how many there are, the last pass showed."""
        return max(self._layers - self._count, 0)

    def _end(self, step: OpenStep) -> None:
        self._backward, self._layers = _NONE, self._count
        self._log.end(step)
