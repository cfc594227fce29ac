"""``torch.compile`` and the backend: compiled DistributedDataParallel, collectives in compiled functions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from checks import assert_names
from job import answers, run_job
from mlt.torch import compilation
from mlt.torch.compilation import untraced, untraced_class

PROGRAMS = Path(__file__).with_name("compilation_programs.py")
# optimize_ddp, whether with the hook.
CASES = {
    "eager": [None, False],
    "eager, hook": [None, True],
    "by buckets": [True, False],
    "by buckets, hook": [True, True],
    "whole": [False, False],
    "whole, hook": [False, True],
    "in Python": ["python_reducer", False],
    "aot": [True, True, "aot_eager"],
}


def test_ddp__compiled_trains_as_without_compilation() -> None:
    first, second = answers(run_job("ddp", programs=PROGRAMS, **CASES))
    assert first == second
    assert set(first) == set(CASES)
    assert len(set(first.values())) == 1, first


def test_ddp__the_hook_rejects_a_reducer_without_buckets() -> None:
    for answer in answers(run_job("ddp_without_buckets", programs=PROGRAMS)):
        assert_names(answer, "bounded_loss_hook", "tuple", 'optimize_ddp="python_reducer"', "True")


def test_functions__compiled_collectives_have_their_results() -> None:
    assert answers(run_job("functions", programs=PROGRAMS)) == [{}, {}]


def test_lossy__holds_in_compiled_code() -> None:
    for bounds in answers(run_job("allowed", programs=PROGRAMS)):
        assert bounds == [0.0, 0.25, 0.0, 0.5] * 2 + [0.125]


def test_untraced__dynamo_runs_it_as_it_is() -> None:
    traced = []

    def inner(x: torch.Tensor) -> torch.Tensor:
        traced.append(torch.compiler.is_compiling())
        return x + 1

    @untraced
    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    @untraced_class
    class Group:
        @property
        def one(self) -> int:
            return int(torch.compiler.is_compiling())

        @staticmethod
        def two(x: torch.Tensor) -> torch.Tensor:
            return inner(x)

        def three(self, x: torch.Tensor) -> torch.Tensor:
            return inner(x)

    group = Group()

    def program(x: torch.Tensor) -> torch.Tensor:
        return outer(x) + group.two(x) + group.three(x)

    assert torch.compile(program, backend="eager")(torch.ones(1)).item() == 6.0
    assert traced == [False] * 3
    assert (group.one, Group.two(torch.ones(1)).item()) == (0, 2.0)


@pytest.mark.parametrize("found", [None, SimpleNamespace(), SimpleNamespace(_FrameAction=SimpleNamespace(SKIP=1))])
def test_untraced__without_torchs_interface_changes_nothing(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "eval_frame", found)
    assert untraced(lambda x: x + 1)(1) == 2


def test_import__does_not_import_dynamo() -> None:
    program = "import sys, torch; import mlt.torch; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
