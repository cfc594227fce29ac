"""Rows of BytePS's API that are the same in the tables of all frameworks (``semantics.Checks``)."""

from __future__ import annotations

import os
import sys
from types import ModuleType

from semantics import fails


def check_ranks_and_sizes(bps: ModuleType, *, others: set[str]) -> None:
    """``others``: modules of other frameworks, which must not be imported."""
    assert (bps.rank(), bps.size()) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    assert (bps.local_rank(), bps.local_size()) == (bps.rank(), bps.size())
    bps.init(lazy=False)  # in a job already
    assert not others & sys.modules.keys()


def check_rejected_variables(bps: ModuleType) -> None:
    """Variables of BytePS's jobs that have no meaning here."""
    for variable, value, facts in (
        ("BYTEPS_ENABLE_ASYNC", "yes", ("'yes'",)),
        ("DMLC_ROLE", "server", ("'server'", "DMLC_ROLE=worker")),
    ):
        os.environ[variable] = value
        try:
            with fails(ValueError, variable, *facts):
                bps.init()
        finally:
            del os.environ[variable]
