"""Compression of arrays for the transfer: smaller element types."""

from __future__ import annotations

from typing import Any

import numpy as np

import mxnet as mx
from mlt._named import compression
from mlt._named.compression import NoneCompressor, SmallerFloats

Compressor = compression.Compressor[mx.nd.NDArray]


class _Floats(SmallerFloats[mx.nd.NDArray]):
    @staticmethod
    def is_floating(tensor: mx.nd.NDArray) -> bool:
        return np.dtype(tensor.dtype) in (np.float32, np.float64)

    @staticmethod
    def cast(tensor: mx.nd.NDArray, dtype: Any) -> mx.nd.NDArray:
        return tensor.astype(dtype, copy=False)


class FP16Compressor(_Floats):
    """float32 and float64 are sent, and summed, as float16."""

    dtype = "float16"


class Compression:
    """``Compression.none`` and ``.fp16``, for the argument ``compression``."""

    none = NoneCompressor
    fp16 = FP16Compressor
