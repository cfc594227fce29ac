"""The variables of mlt's own, and a warning about one that is set and misspelt, which would otherwise have no effect.

A variable of another tool may begin with MLT_ too: only a name that is similar to one of ours counts as misspelt.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Iterable
from typing import Final

logger = logging.getLogger("mlt")

# All of docs/variables.md, which a test compares with this list and with the code.
NAMES: Final = frozenset(
    """
    MLT_BPF MLT_CHECKSUMS MLT_CONNECTS_ON_USE MLT_CONNECT_TIMEOUT MLT_DATAPATH MLT_EARLY_SEGMENTS
    MLT_EARLY_TRANSFERS MLT_ELASTIC MLT_ERASURE_CORRECTION MLT_FLIGHT_RECORDER MLT_HOST MLT_INSECURE MLT_INTERFACE
    MLT_IO_CPUS MLT_IO_THREADS MLT_JOB MLT_JOB_SECRET MLT_JOB_SECRET_FILE MLT_LAUNCH_FAILURES MLT_MAX_DEAD_SERVICES
    MLT_MAX_DEAD_WORKERS MLT_MAX_OPERATIONS MLT_MAX_TAGS MLT_MAX_WAIT MLT_MAX_WINDOW_MIB MLT_NCCL_FAULTS
    MLT_NCCL_LINE_RATE_GBPS MLT_OPERATION_TIMEOUT MLT_PATHS MLT_PEER_TIMEOUT MLT_PERF_PORT MLT_PLAN MLT_QOS_POLICY
    MLT_RENDEZVOUS_PORT MLT_SERVICES MLT_SHARES_BY_RATE MLT_SPIN_US MLT_SUSPENDED_TIMEOUT MLT_SWITCH_KEY
    MLT_SWITCH_PASSWORD MLT_SWITCH_USER MLT_SWITCH_VALIDATORS MLT_TESTBED MLT_TESTBED_HOST
    MLT_TESTBED_USER_NAMESPACE MLT_VAN_FAULTS MLT_VAN_LOSS_BOUND MLT_VAN_RECOVERY_TIMEOUT
    """.split()  # noqa: SIM905 (a string of its own is a variable that the code reads, for the tests)
)
_SIMILARITY: Final = 0.8  # of 1: one letter of five may differ
# Of the MLT multimedia framework; and those that Kubernetes sets for services whose names begin with "mlt".
_OF_OTHERS: Final = re.compile(
    r"MLT_(DATA|PROFILE|PROFILES_PATH|PRESETS_PATH|REPOSITORY(_DENY)?|TEST_CARD|CONSUMER|PRODUCER)"
    r"|MLT_(\w+_)?SERVICE_(HOST|PORT)(_\w+)?|MLT_(\w+_)?PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?"
)


def misspelt(names: Iterable[str]) -> dict[str, str]:
    """Those of these names that are similar to one of mlt's variables, and which.

    >>> misspelt(["MLT_DATAPAHT", "MLT_DATAPATH", "MLT_SERVICE_HOST", "MLT_COLOUR", "PATH"])
    {'MLT_DATAPAHT': 'MLT_DATAPATH'}
    """
    found = {}
    for name in names:
        if not name.startswith("MLT_") or name in NAMES or _OF_OTHERS.fullmatch(name):
            continue
        from difflib import get_close_matches

        if near := get_close_matches(name.upper(), NAMES, n=1, cutoff=_SIMILARITY):
            found[name] = near[0]
    return found


def misspelt_text(name: str, meant: str) -> str:
    """
    >>> misspelt_text("MLT_PATH", "MLT_PATHS")
    'MLT_PATH has no effect: mlt has no variable of this name; did you mean MLT_PATHS?'
    """
    return f"{name} has no effect: mlt has no variable of this name; did you mean {meant}?"


@functools.cache
def warn_once() -> None:
    """Log a warning about each misspelt variable of this process, only the first time."""
    for name, meant in misspelt(sorted(os.environ)).items():
        logger.warning("%s", misspelt_text(name, meant))
