"""Compression of tensors for the transfer: smaller element types."""

from __future__ import annotations

from typing import Any

import torch
from mlt._named import compression
from mlt._named.compression import NoneCompressor, SmallerFloats

Compressor = compression.Compressor[torch.Tensor]


class _Floats(SmallerFloats[torch.Tensor]):
    @staticmethod
    def is_floating(tensor: torch.Tensor) -> bool:
        return tensor.is_floating_point()

    @staticmethod
    def cast(tensor: torch.Tensor, dtype: Any) -> torch.Tensor:
        return tensor.to(dtype)


class FP16Compressor(_Floats):
    """Floating point is sent, and summed, as float16."""

    dtype = torch.float16


class BF16Compressor(_Floats):
    """Floating point is sent, and summed, as bfloat16: the range of float32. Horovod has no such class."""

    dtype = torch.bfloat16


class Compression:
    """``Compression.none``, ``.fp16`` and ``.bf16``, for the argument ``compression``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
