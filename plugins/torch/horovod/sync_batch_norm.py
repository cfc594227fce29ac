"""``SyncBatchNorm``: batch normalization with the mean and variance of all ranks' batches."""

from __future__ import annotations

from mlt.torch.horovod.reduce import allreduce

import torch
from mlt._named import basics
from mlt._named.reduce_ops import Sum
from torch.nn.modules.batchnorm import _BatchNorm


class SyncBatchNorm(_BatchNorm):
    """Takes the place of ``torch.nn.BatchNorm1d``, ``2d`` and ``3d``. On the CPU too, which Horovod's does not.

    Ranks may have batches of different sizes. All ranks call it in the same order.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        own_statistics = self.training or not self.track_running_stats
        if not own_statistics or basics.size() == 1:
            return self._alone(input)
        dims = [dim for dim in range(input.dim()) if dim != 1]
        wide = input if input.dtype == torch.float64 else input.float()
        # Not of the square: the difference of two large numbers would lose digits.
        count = wide.new_full((1,), input.numel() // input.size(1))
        sums = allreduce(torch.cat([wide.sum(dims), count]), op=Sum)
        total = sums[-1].detach()
        mean = sums[:-1] / total
        shape = [1, -1] + [1] * (input.dim() - 2)
        centered = wide - mean.view(shape)
        variance = allreduce((centered * centered).sum(dims), op=Sum) / total
        if self.training and self.track_running_stats:
            self._update(mean.detach(), variance.detach() * total / (total - 1).clamp(min=1))
        output = centered * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            output = output * self.weight.view(shape) + self.bias.view(shape)
        return output.to(input.dtype)

    def _alone(self, input: torch.Tensor) -> torch.Tensor:
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return torch.nn.functional.batch_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            self._factor(),
            self.eps,
        )

    def _update(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Let the running statistics follow."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self._factor())
            self.running_var.lerp_(variance.to(self.running_var.dtype), self._factor())

    def _factor(self) -> float:
        """Weight of the new statistics: the momentum, or without one that of a mean over all batches."""
        if self.momentum is not None:
            return self.momentum
        assert self.num_batches_tracked is not None
        return 1.0 / max(float(self.num_batches_tracked), 1.0)
