"""``Compressor``: compression of tensors on their way. What of it needs no framework."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

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
