"""``DistributedDataParallel``: a module whose gradients are those of all workers when the backward pass ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlt.torch.byteps.push_pull import push_pull_async_inplace
from mlt.torch.byteps.training import broadcast_parameters
from mlt.torch.horovod.compression import Compression, Compressor
from mlt.torch.horovod.handles import synchronize

import torch
from mlt._named import basics
from mlt._named.byteps import refuse_asynchronous


class DistributedDataParallel(torch.nn.Module):
    """Parameters and buffers are those of rank 0 at the start; with ``broadcast_buffers`` buffers also at each forward.

    ``device_ids`` has one device at most, and is not used.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: list[Any] | None = None,
        broadcast_buffers: bool = True,
        compression: type[Compressor] = Compression.none,
    ) -> None:
        super().__init__()
        if device_ids is not None and len(device_ids) > 1:
            raise ValueError(f"device_ids is {device_ids}: one process has one device; start a process for each")
        refuse_asynchronous("DistributedDataParallel")
        self.module = module
        self.broadcast_buffers = broadcast_buffers
        self.require_backward_grad_sync = True
        self._compression = compression
        self._handles: dict[torch.Tensor, tuple[int, torch.Tensor, Any]] = {}
        self._names: dict[torch.Tensor, str] = {
            one: f"Gradient.{name}" for name, one in module.named_parameters() if one.requires_grad
        }
        broadcast_parameters(module.state_dict(), root_rank=0)
        if basics.size() > 1:
            for parameter in self._names:
                register: Any = parameter.register_post_accumulate_grad_hook
                register(self._gradient_is_there)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self.broadcast_buffers and self.require_backward_grad_sync and basics.size() > 1:
            broadcast_parameters(dict(self.module.named_buffers()), root_rank=0, prefix="Buffer.")
        return self.module(*inputs, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients add up on this worker alone."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def synchronize(self) -> None:
        """Wait until the gradients are those of all workers. The end of a backward pass calls it.

        Those that this pass did not make take part too: other workers may have made them.
        """
        for parameter in self._names:
            if parameter not in self._handles:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self._start(parameter)
        handles, self._handles = self._handles, {}
        for parameter, (handle, tensor, ctx) in handles.items():
            synchronize(handle)
            gradient = self._compression.decompress(tensor, ctx)
            assert parameter.grad is not None
            if gradient is not parameter.grad:
                with torch.no_grad():
                    parameter.grad.copy_(gradient)

    def _gradient_is_there(self, parameter: torch.Tensor) -> None:
        if not self.require_backward_grad_sync:
            return
        if not self._handles:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self.synchronize)
        if parameter not in self._handles:
            self._start(parameter)

    def _start(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        tensor, ctx = self._compression.compress(parameter.grad)
        self._handles[parameter] = push_pull_async_inplace(tensor, name=self._names[parameter]), tensor, ctx
