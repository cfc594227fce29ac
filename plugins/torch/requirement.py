"""Imported first by ``mlt.torch``: without torch, its import fails with the command that installs it."""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    from mlt._shared.extras import how_to_install

    raise ModuleNotFoundError(
        f"mlt.torch needs PyTorch, which is not installed: {how_to_install('torch')}", name="torch"
    ) from None
