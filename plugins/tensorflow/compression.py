"""Compression of tensors on their way: smaller element types."""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf


class Compressor(Protocol):
    """Has two functions; ``compress`` returns the tensor and what ``decompress`` needs."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]: ...

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor: ...


class NoneCompressor:
    """Changes nothing."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tensor


class FP16Compressor:
    """Floating point travels, and is summed, as float16."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return (tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tf.cast(tensor, ctx)


class BF16Compressor:
    """Floating point travels, and is summed, as bfloat16: the range of float32. Horovod has no such class."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return (tf.cast(tensor, tf.bfloat16) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tf.cast(tensor, ctx)


class Compression:
    """``Compression.none``, ``.fp16`` and ``.bf16``, for the argument ``compression``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
