"""torchft's process group over mlt: sets of replicas that change, and training that a killed replica does not end."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import warm_python
from checks import assert_names
from loading import load
from rank_jobs import outputs_of

if importlib.util.find_spec("torchft") is None:
    pytest.skip("torchft is not installed: the extra recipes has it", allow_module_level=True)

import torch
import torch.distributed as dist
import torchft_programs
from mlt.torch import recorder
from mlt.torch.torchft import ProcessGroupMlt
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo
from torchft_programs import INNER_STEPS, KILLED, KILLED_IN_STEP, LIMIT, REPLICAS, STEPS, linear, local_steps, loss_of

from mlt._shared.extras import how_to_install
from mlt._shared.flight_record import Record

RECIPE = Path(__file__).parents[3] / "examples" / "pytorch" / "torchft_ddp.py"
PROGRAMS = Path(torchft_programs.__file__)


@pytest.fixture
def store() -> Any:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def groups() -> Iterator[list[ProcessGroupMlt]]:
    """The groups of three replicas, which are threads here."""
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


def test_recorder__has_a_name_for_each_replica_and_each_set(
    store: Any, groups: list[ProcessGroupMlt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_of_this_process", lambda: flight)
    monkeypatch.setattr(recorder, "_replica", None)
    for quorum in (4, 5):
        flight = recorder.FlightRecorder(tmp_path)
        address = f"127.0.0.1:{store.port}/torchft/{quorum}/1"
        groups[0].configure(address, "train_0:ab", 0, 1, quorum, 1)
        groups[0].allreduce([torch.ones(2)], dist.AllreduceOptions()).wait()
        flight.write()
        record = Record.model_validate_json((tmp_path / "rank-train_0_ab_1.json").read_text())
        assert (record.replica, record.rank, record.world_size) == ("train_0:ab/1", 0, 1)
        assert [(call.group, call.number) for call in record.calls] == [(f"torchft {quorum}/1", 1)]


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


def mean_of_diloco(expected: torch.nn.Linear, step: int, replicas: int) -> None:
    """Replace parameters by the mean of what the replicas learn from them in a step."""
    models = [linear() for _ in range(replicas)]
    for replica, (model, inner) in enumerate(models):
        model.load_state_dict(expected.state_dict())
        local_steps(model, inner, replica, range(step * INNER_STEPS, (step + 1) * INNER_STEPS))
    with torch.no_grad():
        for name, one in expected.named_parameters():
            one.copy_(sum(model.get_parameter(name) for model, _ in models) / replicas)


def mean_of_ddp(expected: torch.nn.Linear, step: int, replicas: int) -> None:
    """Apply the mean gradient of the replicas."""
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    (sum(loss_of(expected, step, replica) for replica in range(replicas)) / replicas).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.slow
@pytest.mark.parametrize(("program", "mean"), [("ddp", mean_of_ddp), ("diloco", mean_of_diloco)])
def test_replica_killed_in_an_all_reduce__is_left_out_and_the_others_go_on(
    program: str, mean: Callable[..., None]
) -> None:
    # A quorum waits for every replica that is there: with one that is at work on an older quorum, none would end.
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=REPLICAS - 1, join_timeout_ms=30_000, heartbeat_timeout_ms=1_000
    )
    # It says the host's name, which need not lead to 127.0.0.1.
    options = {"lighthouse": f"http://127.0.0.1:{lighthouse.address().rpartition(':')[2]}"}
    modules = ["torch.nn.parallel", "torchft.ddp", "torchft.local_sgd", "torchft.optim"]
    replicas = [
        warm_python.start(
            modules,
            [str(PROGRAMS), program, json.dumps({**options, "replica": replica})],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for replica in range(REPLICAS)
    ]
    killed = replicas.pop(KILLED)
    try:
        said = []
        for line in killed.stdout:
            said.append(line.strip())
            if said[-1] == "kill me":
                break
        killed.send_signal(signal.SIGKILL)
        assert (killed.wait(30), said[-1:]) == (-signal.SIGKILL, ["kill me"]), said
        outputs = outputs_of(replicas, LIMIT.total_seconds())
    finally:
        for replica in (killed, *replicas):
            replica.kill()
        lighthouse.shutdown()
    expected, _ = linear()
    for step in range(STEPS):
        mean(expected, step, REPLICAS if step < KILLED_IN_STEP else REPLICAS - 1)
    answers = [json.loads(output.splitlines()[-1]) for output in outputs]
    before = [[step, REPLICAS, 1] for step in range(KILLED_IN_STEP)]
    after = [[step, REPLICAS - 1, 1] for step in range(KILLED_IN_STEP, STEPS)]
    for answer in answers:
        assert answer["steps"] == [*before, [KILLED_IN_STEP, REPLICAS, 0], *after]
        torch.testing.assert_close(torch.tensor(answer["weight"]), expected.weight.detach())
        torch.testing.assert_close(torch.tensor(answer["bias"]), expected.bias.detach())
    assert answers[0] == answers[1]


@pytest.mark.slow
def test_diloco__averages_what_the_replicas_learned_and_goes_on_without_one_that_left() -> None:
    every, rounds, left_after = INNER_STEPS, 4, 2
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1)
    port = lighthouse.address().rpartition(":")[2]

    def train(replica: int) -> torch.nn.Linear:
        group = ProcessGroupMlt(timeout=LIMIT)
        model, inner = linear()
        manager = torchft_programs.manager_of(group, replica, f"http://127.0.0.1:{port}", model, 2)
        outer = torch.optim.SGD(model.parameters(), lr=1.0)  # the mean of the replicas' parameters
        with DiLoCo(manager, [model], inner, outer, sync_every=every):
            for number in range(left_after if replica == 1 else rounds):
                local_steps(model, inner, replica, range(number * every, (number + 1) * every))
        manager.shutdown(wait=False)
        group.shutdown()
        return model

    with ThreadPoolExecutor(2) as threads:
        trained = list(threads.map(train, range(2)))
    lighthouse.shutdown()
    expected, _ = linear()
    for number in range(rounds):
        mean_of_diloco(expected, number, 1 if number >= left_after else 2)
        if number == left_after - 1:
            torch.testing.assert_close(trained[1].weight, expected.weight)
    torch.testing.assert_close(trained[0].weight, expected.weight)
    torch.testing.assert_close(trained[0].bias, expected.bias)


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
    expected = expected_losses(load(RECIPE), 3)
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
