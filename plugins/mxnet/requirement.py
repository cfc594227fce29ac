"""Imported first by ``mlt.mxnet``: without MXNet, or with a numpy that MXNet cannot use, its import fails with the
command that mends it."""

from __future__ import annotations

from typing import Final

import numpy as np

from mlt._shared.extras import pip, require

NUMPY: Final = "numpy<1.24"
"""The numpy that MXNet 1.9.1 works with: it uses aliases of Python's types that 1.24 removed."""


def require_mxnet() -> None:
    """Raise ModuleNotFoundError without MXNet, ImportError with a numpy that MXNet cannot use."""
    try:
        require("mxnet", "mlt.mxnet", "MXNet", "mxnet")
    except (AttributeError, ImportError) as error:
        if isinstance(error, ModuleNotFoundError) or tuple(map(int, np.__version__.split(".")[:2])) < (1, 24):
            raise
        raise ImportError(
            f"mlt.mxnet: MXNet cannot be imported with numpy {np.__version__} ({error}): {pip()} install '{NUMPY}'"
        ) from error


require_mxnet()
