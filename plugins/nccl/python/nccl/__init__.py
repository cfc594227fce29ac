"""NCCL's network plugin, ``libnccl-net-mlt.so``, which this package contains: docs/nccl.md.

``python -m mlt.nccl`` prints the folder of the library, for LD_LIBRARY_PATH. With torch that is not needed: ``import
torch`` loads the library if NCCL_NET_PLUGIN names it, so that NCCL finds it under its name.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

LIBRARY = "libnccl-net-mlt.so"
VARIABLE = "NCCL_NET_PLUGIN"


def library() -> Path:
    """The plugin's file."""
    return Path(__file__).resolve().parent / LIBRARY


def is_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether NCCL_NET_PLUGIN, a list with commas, names this plugin as NCCL would look it up."""
    return bool({"mlt", LIBRARY} & set(environ.get(VARIABLE, "").split(",")))


def load() -> None:
    """Load the library into this process: NCCL then finds it by its name, whatever LD_LIBRARY_PATH says. Raises
    OSError."""
    ctypes.CDLL(os.fspath(library()), mode=ctypes.RTLD_LOCAL)
