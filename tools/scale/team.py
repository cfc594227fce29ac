"""Processes forked from this one that each obey commands: hundreds of ranks on a small host.

A spawned Python takes a quarter of a second of CPU and 30 MB; a forked one shares what its parent has loaded. So the
memory that a rank reports is what it added since the fork.
"""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

# A command: the name of a method of the object that a process serves with, and its arguments.
Serve = Callable[[int], object]


@dataclass(frozen=True)
class Answer:
    """The result of a command in one process."""

    value: Any
    ended: float  # time.monotonic, which the processes of a host share
    cpu_seconds: float
    error: str = ""


@dataclass(frozen=True)
class Phase:
    """One command to all processes. ``seconds``: until the last of them was done."""

    values: list[Any]
    seconds: float
    cpu_seconds: float


class Team:
    """``serve(index)`` in each of ``size`` forked processes; all are killed at the end of the ``with``."""

    def __init__(self, size: int, serve: Serve, name: str) -> None:
        self._name, self._size, self._serve = name, size, serve
        self._pipes: list[Connection] = []
        self._pids: list[int] = []

    def __enter__(self) -> Team:
        gc.collect()
        gc.freeze()  # else every collection in a child copies its parent's pages
        for index in range(self._size):
            ours, theirs = mp.Pipe()
            pid = os.fork()
            if pid == 0:
                for pipe in (ours, *self._pipes):
                    pipe.close()
                _obey(self._serve, index, theirs)
            theirs.close()
            self._pipes.append(ours)
            self._pids.append(pid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in self._pids:
            os.kill(pid, 9)
        for pid in self._pids:
            os.waitpid(pid, 0)
        for pipe in self._pipes:
            pipe.close()
        gc.unfreeze()

    def order(self, command: str, *arguments: Any, limit: float, members: Sequence[int] | None = None) -> Phase:
        """Let the ``members`` (None: all) do it. Raises RuntimeError if one fails or needs more than ``limit`` s."""
        chosen = range(self._size) if members is None else members
        began = time.monotonic()
        for index in chosen:
            self._pipes[index].send((command, arguments))
        answers: list[Answer] = []
        for index in chosen:
            if not self._pipes[index].poll(max(0.0, began + limit - time.monotonic())):
                raise RuntimeError(f"{self._name}: rank {index} did not end {command} within {limit:g} s")
            try:
                answers.append(self._pipes[index].recv())
            except EOFError:
                raise RuntimeError(f"{self._name}: rank {index} died during {command}") from None
            if answers[-1].error:
                raise RuntimeError(f"{self._name}: rank {index}, {command}: {answers[-1].error}")
        seconds = max(one.ended for one in answers) - began
        return Phase([one.value for one in answers], seconds, sum(one.cpu_seconds for one in answers))


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _obey(serve: Serve, index: int, pipe: Connection) -> None:
    """Never returns: nothing of the parent's shall run at the exit of a child."""
    try:
        served = serve(index)
        while True:
            command, arguments = pipe.recv()
            before = cpu_seconds()
            try:
                value, error = getattr(served, command)(*arguments), ""
            except Exception as problem:
                value, error = None, f"{type(problem).__name__}: {problem}"
            pipe.send(Answer(value, time.monotonic(), cpu_seconds() - before, error))
    except (EOFError, BrokenPipeError):
        os._exit(0)
    except BaseException as problem:
        print(f"rank {index}: {type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
        os._exit(1)
