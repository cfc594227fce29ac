"""Compression of tensors on their way: smaller element types."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from mlt._named import compression
from mlt._named.compression import NoneCompressor

Compressor = compression.Compressor[torch.Tensor]


class _SmallerFloats:
    """Floating point travels, and is summed, as ``dtype``."""

    dtype: ClassVar[torch.dtype]

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return (tensor.to(cls.dtype) if tensor.is_floating_point() else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


class FP16Compressor(_SmallerFloats):
    """Floating point travels, and is summed, as float16."""

    dtype = torch.float16


class BF16Compressor(_SmallerFloats):
    """Floating point travels, and is summed, as bfloat16: the range of float32. Horovod has no such class."""

    dtype = torch.bfloat16


class Compression:
    """``Compression.none``, ``.fp16`` and ``.bf16``, for the argument ``compression``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
