"""``python -m mlt.nccl``: the folder of NCCL's plugin, for LD_LIBRARY_PATH."""

from __future__ import annotations

from mlt import nccl

print(nccl.library().parent)
