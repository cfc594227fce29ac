"""Jobs of ``programs.py`` for the tests; of another program file with ``programs=``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rank_jobs
from rank_jobs import Outcome, answers

__all__ = ["MODULES", "PROGRAMS", "Outcome", "answers", "run_job"]

PROGRAMS = Path(__file__).with_name("programs.py")
# What every program imports, or torch does for it.
MODULES = ("torch.distributed.fsdp", "torch.nn.parallel")


def run_job(program: str, *, programs: Path = PROGRAMS, **options: Any) -> list[Outcome]:
    """``rank_jobs.run_job``."""
    return rank_jobs.run_job(program, programs=programs, modules=MODULES, **options)
