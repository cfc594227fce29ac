"""Entry point ``torch.backends``: ``import torch`` calls ``register``, so that scripts need no ``import mlt.torch``.

Apart from ``mlt.torch``, because a failure here would make ``import torch`` fail in every program of the environment:
this package imports nothing before ``register`` runs, and ``register`` catches everything.
"""

from __future__ import annotations

import warnings


def register() -> None:
    """Register the backend "mlt" with ``torch.distributed``; warns where that fails, and never raises.

    TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns torch's entry points off; scripts then need ``import mlt.torch``.
    """
    _load_nccl_plugin()
    try:
        import torch.distributed as dist

        if not dist.is_available():
            return
        # Registers by itself. A program that imports mlt.torch before torch gets here in the middle of that import.
        import mlt.torch  # noqa: F401
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        warnings.warn(f'mlt: torch.distributed has no backend "mlt": {error}', RuntimeWarning, stacklevel=2)


def _load_nccl_plugin() -> None:
    """If NCCL_NET_PLUGIN names mlt's plugin, load it from the wheel: NCCL then finds it without LD_LIBRARY_PATH."""
    try:
        from mlt import nccl

        if nccl.is_wanted():
            nccl.load()
    except Exception as error:
        warnings.warn(f"mlt: NCCL's plugin cannot be loaded: {error}", RuntimeWarning, stacklevel=3)
