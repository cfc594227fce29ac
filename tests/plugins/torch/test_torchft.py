"""torchft's process group over mlt: sets of replicas that change, and training that a killed replica does not end."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from checks import assert_names

if importlib.util.find_spec("torchft") is None:
    pytest.skip("torchft is not installed: the extra recipes has it", allow_module_level=True)

import torch
import torch.distributed as dist
from mlt.torch.torchft import ProcessGroupMlt

from mlt._shared.extras import how_to_install

RECIPE = Path(__file__).parents[3] / "examples" / "pytorch" / "torchft_ddp.py"
LIMIT = timedelta(seconds=60)


@pytest.fixture
def store() -> Any:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def groups() -> Iterator[list[ProcessGroupMlt]]:
    """Of three replicas, which are threads here."""
    made = [ProcessGroupMlt(timeout=LIMIT) for _ in range(3)]
    yield made
    for group in made:
        group.shutdown()


def of_each(call: Callable[[ProcessGroupMlt], Any], groups: list[ProcessGroupMlt]) -> list[Any]:
    with ThreadPoolExecutor(len(groups)) as threads:
        return list(threads.map(call, groups))


def configure(store: Any, quorum: int, groups: list[ProcessGroupMlt]) -> None:
    address = f"127.0.0.1:{store.port}/torchft/{quorum}/0"
    of_each(lambda one: one.configure(address, "replica", groups.index(one), len(groups), quorum), groups)


def sums(groups: list[ProcessGroupMlt]) -> list[list[float]]:
    def all_reduce(group: ProcessGroupMlt) -> list[float]:
        tensor = torch.tensor([1.0, 2.0])
        assert group.allreduce([tensor], dist.AllreduceOptions()).wait()
        return tensor.tolist()

    return of_each(all_reduce, groups)


def test_configure__makes_a_job_of_each_set_of_replicas(store: Any, groups: list[ProcessGroupMlt]) -> None:
    for quorum, members in enumerate([groups, groups[1:], groups[:1], groups[::-1]]):
        configure(store, quorum, members)
        assert [group.size() for group in members] == [len(members)] * len(members)
        assert sums(members) == [[1.0 * len(members), 2.0 * len(members)]] * len(members)
        assert [group.errored() for group in members] == [None] * len(members)


def test_replica_that_leaves__is_an_error_of_the_group_and_not_of_the_wait(
    store: Any, groups: list[ProcessGroupMlt]
) -> None:
    configure(store, 0, groups)
    work = groups[0].allreduce([torch.ones(2)], dist.AllreduceOptions())
    groups[2].shutdown()
    assert not work.wait()
    assert_names(str(groups[0].errored()), "rank 2")
    # The others start again without it.
    configure(store, 1, groups[:2])
    assert groups[0].errored() is None
    assert sums(groups[:2]) == [[2.0, 4.0]] * 2


def test_failed_future__is_an_error_of_the_group(store: Any, groups: list[ProcessGroupMlt]) -> None:
    configure(store, 0, groups)
    future = groups[0].allreduce([torch.ones(2)], dist.AllreduceOptions()).get_future()
    groups[2].shutdown()
    with pytest.raises(RuntimeError, match="rank 2"):
        future.wait()
    assert_names(str(groups[0].errored()), "rank 2")


def test_wait__ends_when_the_future_has_completed(store: Any, groups: list[ProcessGroupMlt]) -> None:
    configure(store, 0, groups[:1])
    for _ in range(200):
        work = groups[0].allreduce([torch.ones(2)], dist.AllreduceOptions())
        work.wait()
        assert work.get_future().done()


def test_abort__ends_a_wait_of_another_thread(store: Any, groups: list[ProcessGroupMlt]) -> None:
    configure(store, 0, groups)
    work = groups[0].allreduce([torch.ones(2)], dist.AllreduceOptions())
    ended: list[bool] = []
    waiter = threading.Thread(target=lambda: ended.append(work.wait()))
    waiter.start()
    groups[0].abort()
    waiter.join(LIMIT.total_seconds())
    assert ended == [False]
    assert groups[0].errored() is not None
    with pytest.raises(AssertionError):
        groups[0].size()


def test_configure__without_the_others_raises_within_the_timeout(store: Any, groups: list[ProcessGroupMlt]) -> None:
    groups[1].set_timeout(timedelta(seconds=1))
    with pytest.raises(Exception, match="rank 0"):
        groups[1].configure(f"127.0.0.1:{store.port}/torchft/0/0", "replica", 1, 2, 0)


WITHOUT_TORCHFT = """
import sys

class Missing:
    def find_spec(name, path=None, target=None):
        if name == "torchft":
            raise ModuleNotFoundError("No module named 'torchft'", name="torchft")

sys.meta_path.insert(0, Missing)
import mlt.torch.torchft
"""


def test_import__without_torchft_names_the_command() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCHFT], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert_names(last, "ModuleNotFoundError", "mlt.torch.torchft", how_to_install("recipes", "torchft"))
    assert done.stderr.count("Traceback") == 1


def expected_losses(recipe: Any, replicas: int) -> dict[int, list[float]]:
    """Step -> loss of each replica, computed in this process: the mean gradient of those that are alive."""
    model, optimizer = recipe.model_and_optimizer()
    found = {}
    for step in range(1, recipe.BACK_AFTER_STEP + 1):
        alive = replicas if step < recipe.KILLED_IN_STEP else replicas - 1
        losses = [recipe.loss_of(model, step, replica) for replica in range(alive)]
        optimizer.zero_grad()
        (sum(losses) / alive).backward()
        optimizer.step()
        found[step] = [loss.item() for loss in losses]
    return found


@pytest.mark.slow
@pytest.mark.timeout(260)
def test_recipe__survives_a_killed_replica_and_takes_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(
        [sys.executable, str(RECIPE)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split(", ", maxsplit=1) for line in done.stdout.splitlines()]
    said = {f"replica {number}": [text for who, text in lines if who == f"replica {number}"] for number in range(3)}
    spec = importlib.util.spec_from_file_location("torchft_ddp", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    expected = expected_losses(recipe, 3)
    for number in (0, 1):
        texts = said[f"replica {number}"]
        assert "step 11: discarded" in texts
        losses = {int(text.split(":")[0][5:]): text.split("loss ")[1] for text in texts if "loss" in text}
        assert sorted(losses) == [5, 10, 15, 20]
        for step, text in losses.items():
            loss, alive = text.split(", ")
            assert float(loss) == pytest.approx(expected[step][number], rel=1e-3)
            assert alive == ("3 replicas" if step < 11 else "2 replicas")
    # The replica that came back has the others' parameters, to the last bit.
    parameters = {texts[-1] for texts in said.values()}
    assert len(parameters) == 1, said
    assert parameters.pop().startswith("parameters: ")
