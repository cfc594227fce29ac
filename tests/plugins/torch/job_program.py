"""Parts that programs of jobs share: each rank runs one, named on its command line, and prints an answer as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist


def run_program(programs: Mapping[str, Any]) -> None:
    """``NAME OPTIONS``: call the program of this name with these options."""
    program, options = sys.argv[1], json.loads(sys.argv[2])
    print(json.dumps(programs[program](**options)), flush=True)


def run_in_group(programs: Mapping[str, Any]) -> None:
    """The same with a process group "mlt", which the program may end itself."""
    program, options = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("mlt")
    answer = programs[program](**options)
    if dist.is_initialized():
        dist.destroy_process_group()
    print(json.dumps(answer), flush=True)


def error_of(call: Callable[[], Any]) -> str:
    """Type and text of what ``call`` raises; empty if it does not."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def runtime_error_of(call: Callable[[], Any]) -> str:
    """The text of the RuntimeError that ``call`` raises; empty if it raises nothing."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""
