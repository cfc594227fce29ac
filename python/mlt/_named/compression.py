"""``Compressor``: compression of tensors for the transfer; the part that needs no framework."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Protocol, TypeVar

Tensor = TypeVar("Tensor")


class Compressor(Protocol[Tensor]):
    """Has two functions; ``compress`` returns the tensor and what ``decompress`` needs."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]: ...

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor: ...


class NoneCompressor:
    """Changes nothing."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        return tensor


class SmallerFloats(Generic[Tensor]):
    """Floating point is sent, and summed, as ``dtype``. A plugin's class adds how its tensors are cast."""

    dtype: ClassVar[Any]

    @staticmethod
    def is_floating(tensor: Tensor) -> bool:
        raise NotImplementedError

    @staticmethod
    def cast(tensor: Tensor, dtype: Any) -> Tensor:
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, Any]:
        return cls.cast(tensor, cls.dtype) if cls.is_floating(tensor) else tensor, tensor.dtype  # type: ignore[attr-defined]

    @classmethod
    def decompress(cls, tensor: Tensor, ctx: Any) -> Tensor:
        return cls.cast(tensor, ctx)
