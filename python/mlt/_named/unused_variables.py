"""Variables of Horovod and BytePS that a job sets and mlt does not read: rank 0 names them once."""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Mapping
from typing import Final

logger = logging.getLogger("mlt")

# All that mlt reads, which a test compares with the code.
NAMES: Final = frozenset(
    """
    BYTEPS_ENABLE_ASYNC BYTEPS_GLOBAL_RANK BYTEPS_LOCAL_RANK BYTEPS_LOCAL_SIZE BYTEPS_TRACE_DIR BYTEPS_TRACE_END_STEP
    BYTEPS_TRACE_ON BYTEPS_TRACE_START_STEP HOROVOD_CACHE_CAPACITY HOROVOD_FUSION_THRESHOLD HOROVOD_LOCAL_RANK
    HOROVOD_LOCAL_SIZE HOROVOD_RANK HOROVOD_SIZE HOROVOD_STALL_CHECK_DISABLE HOROVOD_STALL_CHECK_TIME_SECONDS
    HOROVOD_STALL_SHUTDOWN_TIME_SECONDS HOROVOD_TIMELINE HOROVOD_TIMELINE_MARK_CYCLES
    """.split()  # noqa: SIM905 (a string of its own is a variable that the code reads, for the tests)
)
# Set by Horovod's launchers; asking for what always holds; or read only where Horovod and BytePS are built.
_NOT_OF_THE_PROGRAM: Final = re.compile(
    r"HOROVOD_(CONTROLLER|CPU_OPERATIONS|CROSS_(RANK|SIZE)|ELASTIC|GLOO_\w+|HOSTNAME|SECRET_KEY|SPARK_\w+)"
    r"|HOROVOD_DYNAMIC_PROCESS_SETS"
    r"|HOROVOD_(ALLOW_MIXED_GPU_IMPL|BUILD_\w+|CMAKE|DEBUG|GPU|GPU_(OPERATIONS|ALL\w+|BROADCAST|REDUCESCATTER))"
    r"|(HOROVOD|BYTEPS)_(WITH(OUT)?_\w+|(CUDA|NCCL|ROCM)_(HOME|INCLUDE|LIB|LINK))"
)


def unused(environ: Mapping[str, str]) -> list[str]:
    """The variables that are set and have no effect.

    >>> unused({"HOROVOD_CYCLE_TIME": "5", "HOROVOD_TIMELINE": "a.json", "HOROVOD_WITH_GLOO": "1"})
    ['HOROVOD_CYCLE_TIME']
    """
    return sorted(
        name
        for name, value in environ.items()
        if name.startswith(("HOROVOD_", "BYTEPS_"))
        and value.strip()
        and name not in NAMES
        and not _NOT_OF_THE_PROGRAM.fullmatch(name)
    )


@functools.cache
def warn_once() -> None:
    """Log one warning with all of them, only the first time."""
    if found := unused(os.environ):
        logger.warning("%s set, without effect in mlt: see docs/horovod.md", _listed(found))


def _listed(names: list[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
