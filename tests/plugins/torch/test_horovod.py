"""Horovod's and BytePS's API over mlt, between real processes: a table of semantics, failures, elastic training, and an
example."""

from __future__ import annotations

import json
import os
import time
from functools import cache
from pathlib import Path

import horovod_programs
import mlt.torch.horovod as hvd
import pytest
import warm_python
from checks import assert_names
from elastic_jobs import coordinator
from job import MODULES, answers, run_job
from loading import load
from rank_jobs import ends_of, outputs_of

from mlt._shared.ports import free_port_pair

PROGRAMS = Path(horovod_programs.__file__)
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TOOLS = EXAMPLES.parent / "tools"


def environment(rank: int, workers: int, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


# With three ranks, of which one may be left out: what communicates. The rest is the same, and takes its time.
OF_TWO = [
    name
    for name in horovod_programs.CHECKS
    if name.startswith(("optimizer", "elastic", "hosts", "timeline", "byteps", "init_"))
]
ROWS = [
    *((name, 2) for name in horovod_programs.CHECKS),
    *((name, 3) for name in horovod_programs.CHECKS if name not in OF_TWO),
]


@cache
def semantics(workers: int) -> list[dict[str, str]]:
    checks = [name for name, ranks in ROWS if ranks == workers]
    return answers(run_job("semantics", workers=workers, programs=PROGRAMS, checks=checks), workers=workers)


def test_names__are_those_of_horovod() -> None:
    _, _, names = load(TOOLS / "horovod_names.py").MODULES["horovod.torch"]
    assert set(names.split()) <= set(hvd.__all__)
    assert all(hasattr(hvd, name) for name in hvd.__all__)


@pytest.mark.parametrize(("name", "workers"), ROWS)
def test_semantics__of_horovod(name: str, workers: int) -> None:
    failures = [result[name] for result in semantics(workers) if result[name]]
    assert failures == [], "\n".join(failures)


def test_rank_that_ends_with_an_error__is_named_on_the_others() -> None:
    other, ended = run_job("ended_rank", workers=2, programs=PROGRAMS)
    assert ended.status == 1
    assert_names(other.answer, "rank 1", "ended by ArithmeticError without hvd.shutdown()")


def test_ranks_that_wait_apart__fail_and_name_both_operations() -> None:
    for outcome in answers(run_job("waits_apart", programs=PROGRAMS)):
        assert_names(outcome, "wait for each other", "rank 0 in 'of rank 0'", "rank 1 in 'of rank 1'")


def test_ranks_that_wait_apart__only_warn_while_a_thread_may_come() -> None:
    outcomes = run_job("threads_apart", programs=PROGRAMS, late_seconds=14.0)
    assert answers(outcomes) == [[True, True]] * 2
    assert_names(outcomes[0].output, "wait for each other", "rank 0 in 'first", "rank 1 in 'second", "rank 1: slow")


def test_elastic__a_killed_rank_comes_back_and_training_goes_on_from_the_last_commit() -> None:
    killed = 0  # the harder case: it leads the others, and its state is not the one that counts
    outcomes = run_job("elastic", programs=PROGRAMS, kill=killed, again={"AGAIN": "1"}, steps=6, killed=killed)
    # The survivor continued from its commits, which the new process got from it.
    assert answers(outcomes) == [[6.0, 6, 1], [6.0, 6, 1]]


@pytest.mark.parametrize("killed", [0, 1])
def test_elastic__optimizer_and_sampler_of_a_rank_that_comes_back_are_those_of_the_others(killed: int) -> None:
    outcomes = answers(run_job("elastic_training", programs=PROGRAMS, kill=killed, again={"AGAIN": "1"}, killed=killed))
    weight = momentum = 0.0
    samples = horovod_programs.ELASTIC_SAMPLES
    for seen in outcomes[0]["seen"]:
        assert sorted(seen) == list(range(samples))  # none is left out, and none used twice
        for start in range(0, samples, 4):
            momentum = 0.5 * momentum + sum(seen[start : start + 4]) / 4
            weight -= 0.5 * momentum
    for outcome in outcomes:
        assert outcome == {**outcomes[0], "rates": [0.5]}
        assert (outcome["weight"], outcome["momentum"]) == pytest.approx((weight, momentum), rel=1e-5)


@pytest.mark.parametrize("skip_sync", [False, True])
def test_elastic__hosts_updated_connects_again_and_goes_on_from_where_it_was(skip_sync: bool) -> None:
    synced = [0] if skip_sync else [0, 3]
    outcomes = answers(run_job("interrupted", programs=PROGRAMS, skip_sync=skip_sync))
    assert outcomes == [[5.0, 5, synced, [3], True]] * 2


def elastic_worker(place: str, killed: int, steps: int) -> warm_python.WarmProcess:
    own = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    options = json.dumps({"steps": steps, "killed": killed})
    env = {**own, "MLT_ELASTIC": place, "OMP_NUM_THREADS": "1"}
    return warm_python.start(MODULES, [str(PROGRAMS), "elastic_members", options], env=env)


@pytest.mark.parametrize("killed", [0, 2])
def test_elastic_job__grows_and_shrinks_in_the_same_processes_with_the_same_bits(killed: int) -> None:
    with coordinator(first_workers=2, wait_seconds=60.0) as running:
        workers = [elastic_worker(str(running.place), killed, steps=50) for _ in range(2)]
        assert workers[0].stdout.readline() == "size 2\n"
        workers.append(elastic_worker(str(running.place), killed, steps=50))
        ends = ends_of(workers, 60)
    assert sorted(status for status, *_ in ends) == [-9, 0, 0], ends
    left = [json.loads(output.splitlines()[-1]) for status, output, _ in ends if status == 0]
    assert left[0][:3] == left[1][:3]
    steps, sizes = left[0][1:3]
    assert [size for size, _ in sizes] == [2, 3, 2]
    assert sizes[2][1] - sizes[1][1] == 50
    assert steps == sizes[-1][1] + 50
    pids = [process.pid for process, (status, *_) in zip(workers, ends, strict=True) if status == 0]
    assert [pid for *_, pid in left] == pids


@pytest.mark.parametrize("seconds", [0.03, 0.08, 0.15, 0.3])
def test_elastic_job__a_worker_that_dies_while_it_joins_ends_no_other(seconds: float) -> None:
    with coordinator(first_workers=2, wait_seconds=60.0) as running:
        workers = [elastic_worker(str(running.place), killed=-1, steps=150) for _ in range(2)]
        assert workers[0].stdout.readline() == "size 2\n"
        dies = elastic_worker(str(running.place), killed=-1, steps=150)
        time.sleep(seconds)
        dies.kill()
        ends = ends_of(workers, 60)
        dies.communicate()
    assert [status for status, *_ in ends] == [0, 0], ends
    left = [json.loads(output.splitlines()[-1])[:2] for _, output, _ in ends]
    assert left[0] == left[1]


def test_variables_without_an_effect__are_named_by_rank_0_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "5")
    monkeypatch.setenv("BYTEPS_PARTITION_BYTES", "1000")
    outcomes = run_job("starts_twice", programs=PROGRAMS)
    assert answers(outcomes) == ["done", "done"]
    fact = "BYTEPS_PARTITION_BYTES, HOROVOD_CYCLE_TIME are set, without effect in mlt"
    assert [outcome.output.count(fact) for outcome in outcomes] == [1, 0]


@pytest.mark.parametrize("example", ["horovod_mnist.py", "byteps_mnist.py"])
def test_example__trains_and_all_ranks_agree(example: str) -> None:
    port = free_port_pair()
    processes = [
        warm_python.start(
            MODULES, [str(EXAMPLES / example), "--epochs", "2", "--samples", "512"], env=environment(rank, 2, port)
        )
        for rank in range(2)
    ]
    outputs = outputs_of(processes, 60)
    losses = [float(line.split()[-1]) for line in outputs[0].splitlines() if line.startswith("epoch")]
    assert len(losses) == 2
    assert losses[1] < losses[0] / 2
    assert "epoch" not in outputs[1]
