"""Compression of tensors on their way: smaller element types."""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf
from mlt._named import compression
from mlt._named.compression import NoneCompressor

Compressor = compression.Compressor[tf.Tensor]


class _SmallerFloats:
    """Floating point travels, and is summed, as ``dtype``."""

    dtype: ClassVar[tf.DType]

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return (tf.cast(tensor, cls.dtype) if tensor.dtype.is_floating else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tf.cast(tensor, ctx)


class FP16Compressor(_SmallerFloats):
    """Floating point travels, and is summed, as float16."""

    dtype = tf.float16


class BF16Compressor(_SmallerFloats):
    """Floating point travels, and is summed, as bfloat16: the range of float32. Horovod has no such class."""

    dtype = tf.bfloat16


class Compression:
    """``Compression.none``, ``.fp16`` and ``.bf16``, for the argument ``compression``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
