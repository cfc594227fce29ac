"""Push-pull between hosts when a worker or a service is killed, stopped or started again, or every service is gone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from checks import assert_names, strike
from collective_calls import record_push_pull
from testbed_lab import needs_testbed, python

from mlt.testbed import Testbed

pytestmark = needs_testbed
pytest.importorskip("mlt._core")

PEER_TIMEOUT, SLACK = 2.0, 5.0
WORKERS = 3
SERVE = [sys.executable, "-m", "mlt.cli.main", "serve", "--connect-timeout", "20s"]
# Averages until it is told to end; its lines: the step, and the hash of all weights.
WORKER = """
import hashlib, sys, threading, numpy as np, mlt
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), over.set()), daemon=True).start()
weights = np.zeros(60_000, np.float32)
with mlt.Context(connect_timeout=20) as context:
    push = mlt.PushPull(context)
    step = 0
    while True:
        gradient = np.full(weights.size, 1.0 + context.rank, np.float32)
        gradient[0] = 0.0 if over.is_set() else 1.0  # below 1 in the mean: all end with this step
        push.push_pull(gradient, key=step % 2).wait(30)
        weights -= gradient
        step += 1
        print(step, hashlib.sha256(weights).hexdigest(), flush=True)
        if gradient[0] < 1.0:
            break
"""


@contextmanager
def job(services: int, **variables: str) -> Iterator[tuple[Testbed, list[subprocess.Popen[str]]]]:
    """Three workers and services, each on a host of its own; workers first."""
    size = WORKERS + services
    with Testbed(hosts=size, rate="200mbit") as bed:
        env = {
            "WORLD_SIZE": str(WORKERS),
            "MLT_SERVICES": str(services),
            "MLT_PEER_TIMEOUT": f"{PEER_TIMEOUT:g}s",
            "MLT_SUSPENDED_TIMEOUT": f"{PEER_TIMEOUT:g}s",
            **variables,
        }
        ranks = [
            bed.popen(
                f"host{rank}", python(WORKER) if rank < WORKERS else SERVE, env={**env, "RANK": str(rank)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(size)
        ]  # fmt: skip
        try:
            for one in ranks[:WORKERS]:
                assert one.stdout.readline().startswith("1 "), one.communicate()
            yield bed, ranks
        finally:
            for one in ranks:
                one.kill()
                one.communicate()


def steps_of(output: str) -> dict[int, str]:
    """The step of each line of a worker's output, and the hash of its weights then."""
    return {int(step): digest for step, digest in re.findall(r"^(\d+) (\w{64})$", output, re.MULTILINE)}


def end(rank: subprocess.Popen[str]) -> None:
    """Let all workers end after their next step."""
    rank.stdin.write("\n")
    rank.stdin.flush()


def ended_alike(workers: list[subprocess.Popen[str]]) -> list[str]:
    """All of these still run; they end after their next step, with the same weights in each. Returns their errors."""
    for one in workers:
        assert one.poll() is None, one.communicate()
    end(workers[0])
    outputs = [one.communicate(timeout=30) for one in workers]
    assert [one.returncode for one in workers] == [0] * len(workers), outputs
    first, *others = (steps_of(output) for output, _ in outputs)
    assert len(first) > 10
    assert all(other == first for other in others)
    return [errors for _, errors in outputs]


Record = Callable[[str, object], None]


def blow(rank: subprocess.Popen[str], number: signal.Signals) -> float:
    time.sleep(0.3)  # in the middle of the steps
    return strike(rank.pid, number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_worker__that_dies_or_hangs_ends_the_job_and_is_named(number: signal.Signals, record_property: Record) -> None:
    with job(1) as (_, ranks):
        began = blow(ranks[2], number)
        outputs = [ranks[rank].communicate(timeout=30) for rank in (0, 1, 3)]
        assert time.monotonic() - began < PEER_TIMEOUT + 2 * SLACK
        for rank, (_, errors) in zip((0, 1, 3), outputs, strict=True):
            assert ranks[rank].returncode == 1
            assert_names(errors.strip().splitlines()[-1], "rank 2", *(["PeerFailedError"] if rank < WORKERS else []))
    record_push_pull(record_property, f"{number.name} of a worker", "PeerFailedError at the other workers")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(("services", "dead"), [(1, 2), (2, 0)])
def test_worker__that_may_die_leaves_the_others_with_the_same_bits(
    number: signal.Signals, services: int, dead: int, record_property: Record
) -> None:
    """Rank 0 too, at which all have met."""
    with job(services, MLT_MAX_DEAD_WORKERS="1") as (_, ranks):
        blow(ranks[dead], number)
        time.sleep(PEER_TIMEOUT + 2)  # steps without it
        for errors in ended_alike([one for one in ranks[:WORKERS] if one is not ranks[dead]]):
            assert_names(errors, f"rank {dead}", "sum without it")
        for service in ranks[WORKERS:]:
            _, errors = service.communicate(timeout=30)
            assert service.returncode == 0, errors
            assert_names(errors, f"rank {dead}", "without")
    record_push_pull(
        record_property, f"{number.name} of a worker, of which one may die", "completes without it, same bits"
    )


def test_workers__beyond_the_bound_end_the_job_and_all_are_named() -> None:
    with job(1, MLT_MAX_DEAD_WORKERS="1") as (_, ranks):
        blow(ranks[2], signal.SIGKILL)
        began = blow(ranks[1], signal.SIGKILL)
        _, errors = ranks[0].communicate(timeout=30)
        assert time.monotonic() - began < PEER_TIMEOUT + 2 * SLACK
        assert_names(errors.strip().splitlines()[-1], "PeerFailedError", "rank 1", "rank 2")
        _, errors = ranks[3].communicate(timeout=30)
        assert ranks[3].returncode == 1
        assert_names(errors, "rank 1", "rank 2")


def test_worker__that_is_stopped_is_named_after_max_wait(record_property: Record) -> None:
    with job(1, MLT_MAX_WAIT="500ms", MLT_SUSPENDED_TIMEOUT="30s") as (_, ranks):
        began = blow(ranks[2], signal.SIGSTOP)
        for one in ranks[:2]:
            _, errors = one.communicate(timeout=30)
            assert time.monotonic() - began < 0.5 + 2 * SLACK
            assert_names(errors.strip().splitlines()[-1], "OperationTimeoutError", "rank 2", "500 ms")
    record_push_pull(record_property, "SIGSTOP of a worker, max_wait=0.5", "OperationTimeoutError at the other workers")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_service__that_dies_or_hangs_ends_the_job_and_is_named(number: signal.Signals, record_property: Record) -> None:
    with job(2) as (_, ranks):
        began = blow(ranks[4], number)
        outputs = [one.communicate(timeout=30) for one in ranks[:WORKERS]]
        assert time.monotonic() - began < PEER_TIMEOUT + 2 * SLACK
        for one in ranks[:WORKERS]:
            assert one.returncode == 1
        last = [errors.strip().splitlines()[-1] for _, errors in outputs]
        # A worker may end because of another, which ended because of the service.
        assert any("rank 4" in line for line in last), last
        assert all("PeerFailedError" in line for line in last), last
    record_push_pull(record_property, f"{number.name} of a service", "PeerFailedError at the workers")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("services", [2, 3])
def test_service__that_may_die_leaves_the_workers_with_the_same_bits(
    number: signal.Signals, services: int, record_property: Record
) -> None:
    with job(services, MLT_MAX_DEAD_SERVICES="1") as (_, ranks):
        blow(ranks[4], number)
        time.sleep(PEER_TIMEOUT + 2)  # steps without it
        for errors in ended_alike(ranks[:WORKERS]):
            assert_names(errors, "rank 4", "move to the other services")
        for service in ranks[WORKERS:]:
            if service is not ranks[4]:
                _, errors = service.communicate(timeout=30)
                assert service.returncode == 0, errors
    record_push_pull(
        record_property, f"{number.name} of a service, of which one may die", "completes by the others, same bits"
    )


@pytest.mark.parametrize("service", [3, 4])
@pytest.mark.parametrize("spare", ["MLT_MAX_DEAD_WORKERS", "MLT_MAX_DEAD_SERVICES"])
def test_connection__that_breaks_costs_the_end_that_may_die_and_nobody_else(
    service: int, spare: str, record_property: Record
) -> None:
    """The network between worker 2 and a service drops everything; both reach all others."""
    with job(2, **{spare: "1"}) as (bed, ranks):
        time.sleep(0.3)  # in the middle of the steps
        for host, other in ((f"host{service}", "host2"), ("host2", f"host{service}")):
            bed.exec(host, ["ip", "route", "add", "blackhole", f"{bed.address(other)}/32"])
        left = ranks[2 if spare == "MLT_MAX_DEAD_WORKERS" else service]
        workers = [one for one in ranks[:WORKERS] if one is not left]
        _, errors = left.communicate(timeout=30)
        assert left.returncode == 1
        assert_names(errors, f"rank {ranks.index(left)}")
        assert "Traceback" not in errors or left is ranks[2]
        time.sleep(2)  # steps without it
        ended_alike(workers)
    end = "worker" if spare == "MLT_MAX_DEAD_WORKERS" else "service"
    failure = f"a worker and a service cannot reach each other, a {end} may die"
    record_push_pull(record_property, failure, "ends there, completes at the others, same bits")


def test_service__that_continues_after_the_others_gave_it_up_ends_and_they_go_on() -> None:
    with job(2, MLT_MAX_DEAD_SERVICES="1") as (_, ranks):
        blow(ranks[3], signal.SIGSTOP)
        time.sleep(PEER_TIMEOUT - 0.2)  # some may have given it up, others not
        os.kill(ranks[3].pid, signal.SIGCONT)
        time.sleep(3)  # steps without it
        ended_alike(ranks[:WORKERS])


def test_services__all_gone_end_the_job_and_are_named(record_property: Record) -> None:
    with job(2) as (_, ranks):
        os.kill(ranks[3].pid, signal.SIGKILL)
        began = blow(ranks[4], signal.SIGKILL)
        for one in ranks[:WORKERS]:
            _, errors = one.communicate(timeout=30)
            assert one.returncode == 1
            assert re.search("PeerFailedError.*rank [34]", errors.strip().splitlines()[-1])
        assert time.monotonic() - began < PEER_TIMEOUT + 2 * SLACK
    record_push_pull(record_property, "SIGKILL of all services", "PeerFailedError at the workers")


def test_service__that_is_started_again_is_not_taken_back_and_says_so() -> None:
    with job(1) as (bed, ranks):
        os.kill(ranks[3].pid, signal.SIGKILL)
        again = bed.popen(
            "host3", [*SERVE[:-1], "3s"], env={"WORLD_SIZE": "3", "MLT_SERVICES": "1", "RANK": "3"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        for one in ranks[:WORKERS]:
            _, errors = one.communicate(timeout=30)
            assert one.returncode == 1
            assert "rank 3" in errors
        _, errors = again.communicate(timeout=30)
        assert again.returncode != 0
        assert_names(errors, "rank 0")
        assert "Traceback" not in errors
