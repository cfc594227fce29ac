"""Compression of tensors for the transfer: smaller element types."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from mlt._named import compression
from mlt._named.compression import NoneCompressor, SmallerFloats

Compressor = compression.Compressor[tf.Tensor]


class _Floats(SmallerFloats[tf.Tensor]):
    @staticmethod
    def is_floating(tensor: tf.Tensor) -> bool:
        return bool(tensor.dtype.is_floating)

    @staticmethod
    def cast(tensor: tf.Tensor, dtype: Any) -> tf.Tensor:
        return tf.cast(tensor, dtype)


class FP16Compressor(_Floats):
    """Floating point is sent, and summed, as float16."""

    dtype = tf.float16


class BF16Compressor(_Floats):
    """Floating point is sent, and summed, as bfloat16: the range of float32. Horovod has no such class."""

    dtype = tf.bfloat16


class Compression:
    """``Compression.none``, ``.fp16`` and ``.bf16``, for the argument ``compression``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
