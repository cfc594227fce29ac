"""mlt: a bounded-loss network transport for distributed training.

Names that need the native library are loaded on first use, so that the pure-Python parts (``mlt.planners``,
``mlt.switch_configs``, the command line's help) import in milliseconds and work where nothing was compiled.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass

__version__ = "0.1.0"

_LAZY: dict[str, str] = {}

__all__ = ["__version__"]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'mlt' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
