"""Starts the processes of a small job for the tests: workers and services of one program file, each a real process."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import warm_python
from checks import assert_names, strike

from mlt._shared.ports import free_port_pair

LIMIT_SECONDS = 90.0


@dataclass(frozen=True)
class Outcome:
    """The end of one process: exit status (negative: signal), what it printed, the JSON of its last line."""

    status: int
    output: str

    @property
    def answer(self) -> Any:
        return json.loads(self.output.splitlines()[-1])


def run_job(
    program: str,
    *,
    workers: int = 2,
    services: int = 0,
    kill: int | None = None,
    stop: int | None = None,
    programs: Path,
    modules: Sequence[str] = (),
    limit_seconds: float = LIMIT_SECONDS,
    again: dict[str, str] | None = None,
    **options: Any,
) -> list[Outcome]:
    """Run ``program`` of the file ``programs`` on every worker, the summation service on the ranks after them.

    ``modules``: imported before the processes are forked, so that no process takes that time. ``kill``: this rank gets
    SIGKILL as soon as it says so on a line of its own ("kill me"). ``stop``: this rank gets SIGSTOP ("stop me"), and is
    killed when the others have ended. ``again``: it is then started again with these
    variables too, and its outcome is that of the second process.
    """
    environment = {
        **os.environ,
        "WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port_pair()),
        "MLT_SERVICES": str(services),
        "OMP_NUM_THREADS": "1",
    }

    def start(rank: int, **more: str) -> warm_python.WarmProcess:
        return warm_python.start(
            modules,
            [str(programs), program if rank < workers else "service", json.dumps(options)],
            env={**environment, **more, "RANK": str(rank)},
        )

    processes = [start(rank) for rank in range(workers + services)]
    try:
        for rank, request, number in ((kill, "kill me", signal.SIGKILL), (stop, "stop me", signal.SIGSTOP)):
            if rank is not None:
                for line in processes[rank].stdout:
                    if line.strip() == request:
                        strike(processes[rank].pid, number)
                        break
        if kill is not None and again is not None:
            processes[kill].communicate()
            processes[kill] = start(kill, **again)
        deadline = time.monotonic() + limit_seconds
        outputs = {}
        for rank in sorted(range(workers + services), key=lambda one: one == stop):
            if rank == stop:
                processes[rank].kill()
            outputs[rank] = processes[rank].communicate(timeout=max(1.0, deadline - time.monotonic()))[0]
        return [Outcome(status=process.returncode, output=outputs[rank]) for rank, process in enumerate(processes)]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


def ends_of(processes: Sequence[Any], limit_seconds: float) -> list[tuple[int, str, str]]:
    """Exit status, output and errors of each process; fails if one does not end in time, and kills those left."""
    try:
        texts = [process.communicate(timeout=limit_seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(process.returncode, *both) for process, both in zip(processes, texts, strict=True)]


def outputs_of(processes: Sequence[Any], limit_seconds: float) -> list[str]:
    """The output of each process; fails if one does not end with status 0 in time, and kills those that are left."""
    ends = ends_of(processes, limit_seconds)
    outputs = [output for _, output, _ in ends]
    assert [status for status, _, _ in ends] == [0] * len(ends), "\n".join(outputs)
    return outputs


def answers(outcomes: list[Outcome], *, workers: int = 2) -> list[Any]:
    """The workers' answers; fails with the output of those that failed."""
    for rank, outcome in enumerate(outcomes):
        assert outcome.status == 0, f"rank {rank} ended with {outcome.status}:\n{outcome.output}"
    return [outcome.answer for outcome in outcomes[:workers]]


def checks_of(programs: Path) -> list[str]:
    """The rows of a program file's table, without an import of the file: it sets variables for its own process."""
    return [
        node.name
        for node in ast.parse(programs.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and [ast.unparse(one) for one in node.decorator_list] == ["check"]
    ]


def table_test(names: Iterable[str], run: Callable[..., list[Outcome]]) -> Any:
    """The test of a table of ``semantics.Checks``, a row at a time. ``run`` runs the program file's "semantics", which
    checks all rows in one job of two processes."""

    @cache
    def results() -> list[dict[str, str]]:
        return answers(run("semantics", checks=list(names)))

    @pytest.mark.parametrize("name", names)
    def test_semantics(name: str) -> None:
        failures = [result[name] for result in results() if result[name]]
        assert failures == [], "\n".join(failures)

    return test_semantics


def failing_tests(run: Callable[..., list[Outcome]]) -> tuple[Callable[[], None], Callable[[], None]]:
    """The tests of asynchronous training whose rank 1 fails (``semantics.step_until_rank_1_fails``): by an error, and
    killed. ``run`` runs the program file's "failing"."""

    def by_an_error() -> None:
        other, failed = run("failing", how="raise")
        assert failed.status == 1
        assert_names(other.answer, "asynchronous training cannot continue", "rank 1")

    def killed() -> None:
        other, _ = run("failing", how="wait", kill=1)
        assert_names(other.answer, "asynchronous training cannot continue", "rank 1")

    return by_an_error, killed


def losses_of(example: Path, arguments: Sequence[str], *, limit_seconds: float) -> tuple[list[float], str]:
    """Run an example on two ranks of ``mlt launch``: the mean loss of each epoch, and all that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "mlt", "launch", "-n", "2", sys.executable, str(example), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=limit_seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [float(one) for one in re.findall(r"epoch \d: loss ([\d.]+)", done.stdout)], done.stdout
