"""Imported first by ``mlt.torch``: without torch, its import fails with the command that installs it."""

from __future__ import annotations

from mlt._shared.extras import require

require("torch", "mlt.torch", "PyTorch", "torch")
