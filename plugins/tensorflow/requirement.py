"""Imported first by ``mlt.tensorflow``: without TensorFlow, its import fails with the command that installs it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from mlt._shared.extras import require

require("tensorflow", "mlt.tensorflow", "TensorFlow", "tensorflow")

_INSTEAD: Final = {
    "torch": "use mlt.torch or mlt.torch.horovod",
    "jax": "mlt has no plugin for JAX; average with mlt.Context.all_reduce",
}


def keras_backend() -> str:
    """The backend that Keras has, or will have when it is imported: importing it would load that framework."""
    keras: Any = sys.modules.get("keras")
    if keras is not None and hasattr(keras, "backend"):
        return str(keras.backend.backend())
    if named := os.environ.get("KERAS_BACKEND"):
        return named
    config = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "keras.json"
    try:
        return str(json.loads(config.read_text(encoding="utf-8")).get("backend", "tensorflow"))
    except (OSError, ValueError, AttributeError):
        return "tensorflow"  # as Keras takes it


def require_keras_of_tensorflow(what: str) -> None:
    """Raise RuntimeError that names the right plugin if Keras runs on another framework."""
    backend = keras_backend()
    if backend != "tensorflow":
        instead = _INSTEAD.get(backend, "mlt has no plugin for it")
        raise RuntimeError(
            f"{what} needs Keras on TensorFlow, and Keras has the backend {backend!r} here: {instead}, or set "
            "KERAS_BACKEND=tensorflow before the first import of keras"
        )
