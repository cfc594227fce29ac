"""A rank that the test stops for good, and the others, which wait until it is."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist


def pid_of(rank: int) -> int:
    """The process of ``rank``; every rank of the default group calls it."""
    found = torch.tensor([os.getpid()])
    dist.broadcast(found, rank)
    return int(found)


def stop() -> None:
    """Let the test stop this process."""
    print("stop me", flush=True)
    time.sleep(60)


def wait_until_stopped(pid: int) -> None:
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
