"""Compression of tensors on their way: smaller element types."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Compressor(Protocol):
    """Has two functions; ``compress`` returns the tensor and what ``decompress`` needs."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]: ...

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor: ...


class NoneCompressor:
    """Changes nothing."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


class FP16Compressor:
    """Floating point travels, and is summed, as float16."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


class BF16Compressor:
    """Floating point travels, and is summed, as bfloat16: the range of float32. Horovod has no such class."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return (tensor.bfloat16() if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


class Compression:
    """``Compression.none``, ``.fp16`` and ``.bf16``, for the argument ``compression``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
