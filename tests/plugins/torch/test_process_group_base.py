"""The part that every call of a process group needs: the end of the group."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from checks import assert_names, names
from job import answers, run_job
from mlt.torch.process_group import MltProcessGroup
from mlt.torch.process_group_base import BACKEND

import mlt
from mlt._shared.ports import free_port


@pytest.mark.parametrize("owns_context", [False, True])
def test_abort__closes_the_context_of_the_group_and_later_calls_are_rejected(owns_context: bool) -> None:
    with mlt.Context(0, 1) as context:
        group = MltProcessGroup(
            context, rank=0, ranks=(0,), group_id="7", timeout=timedelta(seconds=30), owns_context=owns_context
        )
        assert group.getBackendName() == BACKEND
        group.abort()
        group.abort()
        assert context.closed == owns_context
        with pytest.raises(RuntimeError, match=names("allreduce", "'7'", "shut down")):
            group.allreduce([torch.ones(1)])


def test_pending_collective__does_not_hold_up_the_end_of_a_failed_process() -> None:
    failed, watching = run_job("unanswered")
    assert failed.status == 1
    assert "the program failed" in failed.output
    assert watching.answer["gone_after"] < 20


CHECKPOINTS = Path(__file__).with_name("checkpoint_programs.py")


def test_checkpoint__is_saved_while_the_program_trains_without_another_backend(tmp_path: Path) -> None:
    for answer in answers(run_job("saved", programs=CHECKPOINTS, folder=str(tmp_path))):
        assert answer == {"loaded": True, "trained": True}


def test_state__of_rank_0_becomes_that_of_a_sharded_model() -> None:
    assert answers(run_job("from_rank_0", programs=CHECKPOINTS)) == [True, True]


def test_devices__are_those_of_this_torch_that_the_group_takes() -> None:
    both = [["cpu"] + ["cuda"] * bool(torch.version.cuda), ["cpu"]]
    assert answers(run_job("devices", programs=CHECKPOINTS)) == [both, both]


ENDING = """
import os
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing

def program(rank, port):
    dist.init_process_group("mlt", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    dist.barrier()
    if rank == 1:
        END
    try:
        dist.all_reduce(torch.ones(1))
    except Exception as error:
        print(error, flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    START
"""
DIRECT = "program(int(sys.argv[1]), int(sys.argv[2]))"
SPAWNED = """torch.multiprocessing.start_processes(
        program, (int(sys.argv[2]),), nprocs=2, join=False, start_method="spawn"
    ).processes[0].join() if sys.argv[1] == "0" else None"""


@pytest.mark.parametrize(
    ("end", "start", "named"),
    [
        ("sys.exit(3)", DIRECT, "failed (ended with exit status 3)"),
        ("raise KeyError('secret')", DIRECT, "failed (ended by KeyError)"),
        # torch catches the exception, prints it and ends the process.
        ("raise KeyError('secret')", SPAWNED, "failed (ended with exit status 1)"),
        ("dist.destroy_process_group(); sys.exit(3)", DIRECT, "left the job: its process closed its context"),
    ],
    ids=["exit", "exception", "exception-in-spawned", "exit-after-destroy"],
)
def test_end__of_a_process_reaches_the_other_ranks_with_its_cause(
    end: str, start: str, named: str, tmp_path: Path
) -> None:
    program = tmp_path / "ending.py"
    program.write_text(ENDING.replace("END", end).replace("START", start), encoding="utf-8")
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), port], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    try:
        outputs = [one.communicate(timeout=180) for one in ranks]
    finally:
        for one in ranks:
            one.kill()
    assert named in outputs[0][0], outputs
    assert "secret" not in outputs[0][0]


def test_split_group__is_refused_and_new_subgroups_does_it() -> None:
    parts = [[0, 2], [1]]
    for rank, answer in enumerate(answers(run_job("split", workers=3, parts=parts), workers=3)):
        by_torch, by_group, merged = answer["errors"]
        assert_names(by_torch, "split")  # torch's own words
        assert_names(by_group, "mlt split_group", "new_group", "new_subgroups_by_enumeration")
        assert_names(merged, "mlt merge_remote_group", "start a new one")
        (own,) = (part for part in parts if rank in part)
        assert answer["ranks"] == own
        assert answer["sum"] == sum(1 << other for other in own)
