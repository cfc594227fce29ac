"""``mlt serve`` as a person types it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks import assert_names, in_threads
from transport_jobs import START_SECONDS, takes

import mlt
from mlt._shared.ports import free_port

POLICY = Path(__file__).resolve().parents[3] / "examples" / "switch" / "paper-testbed.yaml"
COMMAND = [sys.executable, "-m", "mlt.cli.main"]


def environment(port: int, **changes: str) -> dict[str, str]:
    """This process's environment as a member of a job; rich and typer are told not to wrap lines."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("MLT_") and name != "RANK"}
    return {
        **own,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port - 1000),
        "COLUMNS": "200",
        **changes,
    }


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def variables() -> dict[str, str]:
    """The other variables in the service's environment."""
    return {}


@pytest.fixture
def service(port: int, variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, "serve", "--job", "lecture", "--faults", "drop=0.02,seed=4"],
        env=environment(port, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def work(port: int, steps: int, **options: Any) -> list[np.ndarray]:
    """Two workers that push and pull; their last results."""
    results = [np.full(100_000, rank + 1, np.float32) for rank in range(2)]

    def one(rank: int) -> None:
        with mlt.Context(
            rank,
            2,
            1,
            job="lecture",
            master_addr="127.0.0.1",
            rendezvous_port=port,
            connect_timeout=START_SECONDS,
            **options,
        ) as context:
            for _ in range(steps):
                mlt.PushPull(context).push_pull(results[rank], key=0, loss_bound=0.05).wait(30)

    in_threads(one, [(0,), (1,)])
    return results


@pytest.mark.parametrize("variables", [{"MLT_QOS_POLICY": str(POLICY)}])
def test_serve__takes_the_policy_from_its_environment(service: subprocess.Popen[str], port: int) -> None:
    # Workers with other code points than the service's would be refused.
    first, second = work(port, steps=1, qos_policy=POLICY)
    np.testing.assert_array_equal(first, second)
    service.communicate(timeout=10)
    assert service.returncode == 0


def test_serve__serves_and_ends_when_the_workers_left(service: subprocess.Popen[str], port: int) -> None:
    first, second = work(port, steps=3)
    np.testing.assert_array_equal(first, second)
    with takes(at_most=5.0):
        output, errors = service.communicate(timeout=10)
    assert (service.returncode, output) == (0, "")
    assert_names(errors, "rank 2", "'lecture'", "2 workers")
    assert "every worker is gone" in errors


def test_serve__ends_on_sigterm(service: subprocess.Popen[str], port: int) -> None:
    contexts: list[mlt.Context] = []

    def join(rank: int) -> None:
        contexts.append(mlt.Context(rank, 2, 1, job="lecture", master_addr="127.0.0.1", rendezvous_port=port))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert service.stderr is not None
    assert any("serves 2 workers" in line for line in service.stderr)
    with takes(at_most=5.0):
        service.terminate()
        assert service.wait(timeout=10) == 128 + signal.SIGTERM
    for context in contexts:
        context.close()


def test_serve__alone_and_with_its_default_says_what_workers_need(service: subprocess.Popen[str]) -> None:
    assert service.stderr is not None
    assert any("MLT_SERVICES=1" in line for line in service.stderr)


def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "serve", *arguments],
        env=environment(free_port(), **changes),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_serve__reports_in_time_that_no_rank_connected() -> None:
    done = run("--connect-timeout", "1")
    assert done.returncode == 1
    assert_names(done.stderr, "rank 2: ", "rank 0 at 127.0.0.1:")
    assert "Traceback" not in done.stderr


def test_serve__an_index_goes_before_the_rank_of_the_environment() -> None:
    # A launcher such as torchrun sets RANK for whatever it starts, here a worker's.
    done = run("--index", "1", "--services", "2", "--connect-timeout", "0.5", RANK="0")
    assert done.returncode == 1
    assert_names(done.stderr, "rank 3: ", "rank 0 at 127.0.0.1:")


@pytest.mark.parametrize(
    ("arguments", "changes", "cause"),
    [
        (("--index", "1"), {}, "--index 1: the job has 1 service"),
        (("--index", "1"), {"RANK": "2"}, "--index 1: the job has 1 service"),  # RANK does not hide it
        (("--rank", "0"), {}, "error: rank 0 (RANK) is a worker's"),
        ((), {"RANK": "1"}, "RANK=2"),
        (("--faults", "drop=2"), {}, "drop=2"),
        ((), {"MASTER_PORT": "many"}, "MASTER_PORT is 'many'"),
    ],
)
def test_serve__rejects_bad_options(arguments: tuple[str, ...], changes: dict[str, str], cause: str) -> None:
    done = run("--connect-timeout", "0.5", *arguments, **changes)
    assert done.returncode == 2
    assert cause in done.stderr


def test_mlt__lists_its_commands_and_version() -> None:
    listed = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, timeout=30, check=True).stdout
    assert "serve" in listed
    version = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    assert mlt.__version__ in version
    wrong = subprocess.run([*COMMAND, "sevre"], capture_output=True, text=True, timeout=30, check=False)
    assert wrong.returncode == 2
    assert "sevre" in wrong.stderr


ELASTIC = {"MLT_ELASTIC": "127.0.0.1:1", "COLUMNS": "200"}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--world-size", "2"),
        ("--services", "2"),
        ("--index", "1"),
        ("--rank", "2"),
        ("--master-addr", "127.0.0.1"),
        ("--rendezvous-port", "4000"),
    ],
)
def test_serve__in_an_elastic_job_rejects_a_place_of_its_own(option: str, value: str) -> None:
    done = elastic_serve(option, value)
    assert done.returncode == 2
    assert_names(done.stderr, option, "MLT_ELASTIC", "leave this out")


def test_serve__in_an_elastic_job_names_wrong_faults() -> None:
    done = elastic_serve("--faults", "drops=1")
    assert done.returncode == 2
    assert_names(done.stderr, "error: --faults", "drops=1")
    assert "Traceback" not in done.stderr


def elastic_serve(*words: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("MLT_") and name != "RANK"}
    return subprocess.run(
        [*COMMAND, "serve", *words], env={**own, **ELASTIC}, capture_output=True, text=True, timeout=30, check=False
    )
