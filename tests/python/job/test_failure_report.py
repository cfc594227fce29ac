"""A process that cannot join its job tells rank 0, and every rank that waits ends with its error."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from checks import assert_names
from rendezvous_caller import Caller
from test_rendezvous import Ranks, config
from transport_jobs import takes

import mlt
from mlt._shared.ports import free_port
from mlt.job import failure_report
from mlt.job.configuration import JobConfig
from mlt.job.secret import JobSecret

PROGRAM = "import mlt; mlt.Context(connect_timeout=50)"


def job(port: int, rank: object, size: object = 3, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MLT_")}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "MLT_RENDEZVOUS_PORT": str(port)}
    return {**clean, **place, "RANK": str(rank), "WORLD_SIZE": str(size), **more}


def process(environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("wrong", "facts"),
    [
        ({"rank": 7}, ("rank 7 failed", "RANK", "is 7", "workers are 0 to 2")),
        ({"rank": 1, "size": 1}, ("rank 1 failed", "RANK", "workers are 0 to 0")),
        ({"rank": "x"}, ("RANK is not known", "'x'")),
        ({"rank": 1, "MLT_DATAPATH": "nosuch"}, ("rank 1 failed", "MLT_DATAPATH", "nosuch")),
        ({"rank": 1, "MLT_SERVICES": "many"}, ("rank 1 failed", "MLT_SERVICES", "many")),
        ({"rank": 0}, ("rank 0 failed", "in use by another process")),
    ],
    ids=str,
)
def test_context__an_error_before_the_rendezvous_ends_the_start_at_every_rank(
    wrong: dict[str, Any], facts: tuple[str, ...]
) -> None:
    port = free_port()
    others = Ranks(config(0, 3, port, job="default"), config(2, 3, port, job="default"), timeout=50)
    with Caller(port):  # rank 0 listens
        pass
    with takes(at_most=30.0):  # of 50
        failed = process(job(port, **wrong))
        _, errors = failed.communicate(timeout=40)
        outcomes = others.join()
    assert failed.returncode == 1
    assert_names(errors, *facts[1:])
    for outcome in outcomes:
        assert isinstance(outcome, mlt.RendezvousError)
        assert_names(str(outcome), "job 'default' cannot start", "before it joined", *facts)


def test_report__without_the_secret_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("MLT_JOB_SECRET", "the secret of another job")
    others = Ranks(config(0, 2, port, secret=JobSecret("the secret of this job")), timeout=4)
    with Caller(port):
        pass
    place = {"master_addr": "127.0.0.1", "rendezvous_port": port, "job": "test"}
    failure_report.report(mlt.ConfigError("no good"), place, rank=1)
    (outcome,) = others.join()
    assert "rank 1 did not connect" in str(outcome)
    assert "no good" not in str(outcome)


@pytest.mark.parametrize(("rank", "name"), [(1, "other"), (2, "test")])
def test_report__of_another_job_or_a_rank_that_is_here_ends_nothing(rank: int, name: str) -> None:
    port = free_port()
    others = Ranks(config(0, 3, port), config(2, 3, port), timeout=4)
    with Caller(port) as caller:
        assert caller.open()
        caller.announce(f'{{"job": "{name}", "rank": {rank}, "failed": "no good"}}')
        assert_names(caller.content()["text"], f"rank {rank} failed", "no good")
    zero, _ = others.join()
    assert "rank 1 did not connect" in str(zero)


@pytest.mark.parametrize(
    "said",
    [
        '"rank": 1, "failed": 7',
        '"rank": 1, "failed": ""',
        '"rank": "x", "failed": "no"',
        f'"rank": 1, "failed": "{"x" * (failure_report.MAX_TEXT + 1)}"',
    ],
    ids=["number", "empty", "rank", "too long"],
)
def test_report__that_is_none_is_rejected(said: str) -> None:
    port = free_port()
    others = Ranks(config(0, 2, port))
    with Caller(port) as caller:
        assert caller.open()
        caller.announce(f'{{"job": "test", {said}}}')
        assert "no valid announcement" in caller.content()["text"]
    others.join()


def test_report__shows_no_control_characters() -> None:
    port = free_port()
    others = Ranks(config(0, 2, port), timeout=20)
    with Caller(port) as caller:
        assert caller.open()
        caller.announce('{"job": "test", "rank": 1, "failed": "a\\u001b[2J\\nb"}')
        assert "a?[2J?b" in caller.content()["text"]
    (outcome,) = others.join()
    assert "a?[2J?b" in str(outcome)


def test_report__where_nothing_listens_returns_soon() -> None:
    place = {"master_addr": "127.0.0.1", "rendezvous_port": free_port()}
    with takes(at_most=20.0):
        failure_report.report(mlt.ConfigError("no good"), place, rank=1)


def test_report__of_rank_0_and_of_a_place_that_is_unknown_connects_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_report, "_send", lambda *_: pytest.fail("connects"))
    monkeypatch.delenv("MASTER_PORT", raising=False)
    monkeypatch.delenv("MLT_RENDEZVOUS_PORT", raising=False)
    failure_report.report(mlt.ConfigError("no good"), {"master_addr": "127.0.0.1", "rendezvous_port": 1}, rank=0)
    failure_report.report(mlt.ConfigError("no good"), {"master_addr": "127.0.0.1"}, rank=1)


def test_meet__two_processes_with_one_rank_end_the_start() -> None:
    port = free_port()
    with takes(at_most=30.0):
        outcomes = Ranks(config(0, 3, port), config(1, 3, port), config(1, 3, port), timeout=50).join()
    for outcome in outcomes:
        assert isinstance(outcome, mlt.PeerMismatchError)
        assert_names(str(outcome), "rank 1 was already announced by another process", "RANK")


def test_meet__a_rank_that_comes_after_its_failure_is_served() -> None:
    port = free_port()
    zero = Ranks(config(0, 2, port), timeout=20)
    with Caller(port) as caller:
        assert caller.open()
        caller.announce('{"job": "test", "rank": 1, "failed": "started too early"}')
        caller.content()
    outcomes = Ranks(config(1, 2, port), timeout=20).join() + zero.join()
    assert [len(one) for one in outcomes] == [2, 2]


def test_meet__a_process_without_the_secret_is_reported_at_once(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    zero = Ranks(config(0, 2, port, secret=JobSecret("the secret of this job")), timeout=3)  # less than 5 s
    Ranks(config(1, 2, port, secret=JobSecret("the secret of another")), timeout=1.0).join()
    zero.join()
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("rank 0")]
    assert_names(said[0], "still waiting", "rank 1", "1 connection", "secret")


def test_job_config__of_the_report_needs_no_numbers_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLT_SERVICES", "many")
    monkeypatch.setenv("WORLD_SIZE", "x")
    found = JobConfig.resolve(rank=1, world_size=2, services=0, master_addr="127.0.0.1", rendezvous_port=7)
    assert (found.master_addr, found.rendezvous_port) == ("127.0.0.1", 7)
