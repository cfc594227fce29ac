"""Compression of arrays on their way: smaller element types."""

from __future__ import annotations

from typing import Any

import numpy as np

import mxnet as mx
from mlt._named import compression
from mlt._named.compression import NoneCompressor

Compressor = compression.Compressor[mx.nd.NDArray]


class FP16Compressor:
    """float32 and float64 travel, and are summed, as float16."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        dtype = np.dtype(tensor.dtype)
        return (tensor.astype("float16") if dtype in (np.float32, np.float64) else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, ctx: Any) -> mx.nd.NDArray:
        return tensor.astype(ctx, copy=False)


class Compression:
    """``Compression.none`` and ``.fp16``, for the argument ``compression``."""

    none = NoneCompressor
    fp16 = FP16Compressor
