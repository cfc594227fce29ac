"""Ways to start ``init_process_group("mlt")``, without an import of mlt in the program, and groups beside gloo's."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import warm_python
from checks import assert_names, names, until
from job import MODULES

pytest.importorskip("torch")
import mlt.torch_autoload
import torch
from mlt.torch import contexts

import mlt
from mlt._shared import patience
from mlt._shared.ports import free_port

ROOT = Path(__file__).resolve().parents[3]

# The program's own lines are in INIT. It imports nothing of mlt: ``import torch`` registers the backend.
PROGRAM = """
import datetime, json, os, sys
import torch, torch.distributed as dist
assert "mlt._core" not in sys.modules
rank, size, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
{init}
tensor = torch.ones(10) * (rank + 1)
dist.all_reduce(tensor)
dist.destroy_process_group()
print(json.dumps(tensor[0].item()))
"""

WAYS = {
    "env": 'dist.init_process_group("mlt")',
    "tcp": 'dist.init_process_group("mlt", init_method=f"tcp://127.0.0.1:{place}", rank=rank, world_size=size)',
    "file": 'dist.init_process_group("mlt", init_method=f"file://{place}", rank=rank, world_size=size)',
    "store": """
store = dist.TCPStore("127.0.0.1", int(place), size, rank == 0, timeout=datetime.timedelta(seconds=30))
dist.init_process_group("mlt", store=store, rank=rank, world_size=size)""",
    "two devices": 'dist.init_process_group("cpu:mlt,cuda:nccl")',
}

BESIDE_GLOO = """
import json, sys
import torch, torch.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("gloo")
groups = [dist.new_group([1, 2], backend="mlt"), dist.new_group([0, 2], backend="mlt")]
sums = []
for group, ranks in zip(groups, ([1, 2], [0, 2])):
    if rank in ranks:
        tensor = torch.full((3,), float(rank + 1))
        dist.all_reduce(tensor, group=group)
        dist.broadcast(tensor, src=2, group=group)
        sums.append(tensor[0].item())
dist.barrier()
dist.destroy_process_group()
print(json.dumps(sums))
"""

LONELY = """
import datetime, sys
import torch.distributed as dist
dist.init_process_group("mlt", init_method=f"file://{sys.argv[3]}", rank=1, world_size=2,
                        timeout=datetime.timedelta(seconds=2))
"""


def run(
    program: str, *, size: int, place: str = "", warm: bool = True, **environment: str
) -> list[tuple[int, Any, str]]:
    """Exit status, answer and errors of each rank; not ``warm``: it imports torch by itself."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MLT_")}
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port("127.0.0.1"))}
    processes = [
        warm_python.start(
            MODULES if warm else (),
            ["-c", program, str(rank), str(size), place],
            env={**inherited, **shared, "RANK": str(rank), "OMP_NUM_THREADS": "1", **environment},
            errors_apart=True,
        )
        for rank in range(size)
    ]
    ended = []
    for process in processes:
        try:
            output, errors = process.communicate(timeout=90)
        finally:
            process.kill()
        ended.append((process.returncode, json.loads(output.splitlines()[-1]) if output else None, errors))
    return ended


@pytest.mark.parametrize("way", WAYS)
def test_join__by_every_way_to_start(way: str, tmp_path: Path) -> None:
    place = str(tmp_path / "store") if way == "file" else str(free_port("127.0.0.1"))
    ended = run(PROGRAM.format(init=WAYS[way]), size=2, place=place)
    assert [(status, answer) for status, answer, _ in ended] == [(0, 3.0)] * 2, ended


def test_join__groups_beside_gloo_have_their_own_ranks() -> None:
    ended = run(BESIDE_GLOO, size=3)
    assert [(status, answer) for status, answer, _ in ended] == [(0, [4.0]), (0, [5.0]), (0, [5.0, 4.0])], ended


def test_join__names_rank_0_that_never_comes(tmp_path: Path) -> None:
    ((status, _, errors),) = run(LONELY, size=1, place=str(tmp_path / "store"))
    assert status != 0
    assert_names(errors, "rank 1", "rank 0", "2 s", "did not come")


def test_meeting_point__says_which_ranks_have_not_come(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "QUIET_SECONDS", 0.05)
    store, found = torch.distributed.HashStore(), []
    waits = threading.Thread(target=lambda: found.append(contexts._meeting_point(store, 1, 4, 60.0, "")))
    with caplog.at_level(logging.WARNING, "mlt"):
        contexts._meeting_point(store, 0, 4, 60.0, "127.0.0.1")  # an earlier group, to which all came
        for rank in (1, 2, 3):
            contexts._meeting_point(store, rank, 4, 60.0, "")
        assert caplog.messages == []
        store.add("mlt/groups/3", 1)  # rank 3 is there too
        waits.start()
        until(lambda: bool(caplog.messages))
        expected = contexts._meeting_point(store, 0, 4, 60.0, "127.0.0.1")
        waits.join()
    assert found == [expected]
    (line,) = caplog.messages
    assert_names(line, "rank 1: still waiting in torch's store", "rank 2 and rank 0", "of 4")
    assert "rank 3" not in line


def test_meeting_point__a_store_that_fails_is_named() -> None:
    class Broken:
        def add(self, _key: str, _amount: int) -> int:
            return 1

        def check(self, _keys: list[str]) -> bool:
            raise RuntimeError("Connection reset by peer")

    with pytest.raises(mlt.RendezvousError, match=names("rank 1", "torch's store failed", "Connection reset")):
        contexts._meeting_point(Broken(), 1, 2, 60.0, "")


@pytest.mark.parametrize(
    ("name", "value"), [("MLT_SERVICES", "1_0"), ("MLT_SPIN_US", "long"), ("MLT_INSECURE", "yes"), ("MLT_HOST", "")]
)
def test_join__a_wrong_variable_is_an_error_before_rank_0_comes(name: str, value: str, tmp_path: Path) -> None:
    ((status, _, errors),) = run(LONELY, size=1, place=str(tmp_path / "store"), **{name: value})
    assert status != 0
    if value:
        assert_names(errors, f"{name} is {value!r}")
        assert "rank 0" not in errors
    else:  # unset: it waits for rank 0
        assert_names(errors, "rank 0 did not write its address")


def test_register__never_fails_the_import_of_torch() -> None:
    broken = "import sys; sys.modules['mlt.torch'] = None; import torch; print(1)"
    ended = subprocess.run(
        [sys.executable, "-c", broken], capture_output=True, text=True, check=True, timeout=90, cwd=ROOT.parent
    )
    assert ended.stdout == "1\n"
    assert_names(ended.stderr, "RuntimeWarning", "mlt")


def test_register__may_be_repeated() -> None:
    mlt.torch_autoload.register()
    assert "mlt" in torch.distributed.Backend.backend_list


def test_join__a_group_larger_than_the_chosen_context() -> None:
    options = SimpleNamespace(global_ranks_in_group=[1, 5], group_rank=0, group_size=2, store=None)
    with mlt.Context(0, 1) as context:
        contexts.use_context(context)
        try:
            assert contexts.current_context() is context
            with pytest.raises(ValueError, match=names("1 workers", "rank 5", "WORLD_SIZE")):
                contexts.join(options)
        finally:
            contexts.forget_context(context)
    with pytest.raises(RuntimeError, match="init_process_group"):
        contexts.current_context()


def test_register__torch_may_turn_it_off() -> None:
    (_, _, errors), _ = run(PROGRAM.format(init=WAYS["env"]), size=2, warm=False, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert_names(errors, "Unknown backend type mlt")
    first, second = run(
        "import mlt.torch" + PROGRAM.format(init=WAYS["env"]).replace("assert", "0 and"), size=2, warm=False
    )
    assert (first[:2], second[:2]) == ((0, 3.0), (0, 3.0)), (first, second)
