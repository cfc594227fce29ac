"""Code shared by the plugins' modules for BytePS: rejected variables, send order, reductions, speed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlt._named import byteps, job
from mlt._named.reduce_ops import Adasum, Average, Max, Sum
from mlt._named.requests import Request
from mlt.errors import ConfigError


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Outside of a job at first, and of one worker if it is joined; without declared tensors."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(byteps, "_declared", {})
    yield
    byteps.shutdown()


@pytest.mark.parametrize(
    ("environ", "facts"),
    [
        ({"DMLC_ROLE": "scheduler"}, "DMLC_ROLE is 'scheduler'.*DMLC_ROLE=worker"),
        ({"DMLC_ROLE": "server"}, "DMLC_ROLE is 'server'.*start the workers only"),
        ({"BYTEPS_ENABLE_ASYNC": "yes"}, "BYTEPS_ENABLE_ASYNC is 'yes'"),
    ],
)
def test_environment__of_what_mlt_does_not_do_is_refused(environ: dict[str, str], facts: str) -> None:
    with pytest.raises(ConfigError, match=facts):
        byteps.check_environment(environ)


@pytest.mark.parametrize("role", ["", "worker", "joint"])
def test_environment__of_a_synchronous_worker_is_accepted(role: str) -> None:
    environ = {"DMLC_ROLE": role, "BYTEPS_ENABLE_ASYNC": "0"}
    byteps.check_environment(environ)  # raises nothing
    assert not byteps.is_asynchronous(environ)


def test_asynchronous_training__is_refused_by_what_does_not_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    byteps.check_environment({"BYTEPS_ENABLE_ASYNC": "1"})
    assert byteps.is_asynchronous({"BYTEPS_ENABLE_ASYNC": "1"})
    assert not byteps.is_asynchronous({})
    byteps.refuse_asynchronous("CrossBarrier")
    monkeypatch.setenv("BYTEPS_ENABLE_ASYNC", "1")
    with pytest.raises(ConfigError, match=r"BYTEPS_ENABLE_ASYNC is 1: CrossBarrier .* unset the variable"):
        byteps.refuse_asynchronous("CrossBarrier")


def test_trace__of_the_steps_that_the_variables_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert byteps.traced_steps({"BYTEPS_TRACE_START_STEP": "2"}) is None
    assert byteps.traced_steps({"BYTEPS_TRACE_ON": "1"}) == (10, 20)
    with pytest.raises(ConfigError, match="BYTEPS_TRACE_END_STEP is 3, before BYTEPS_TRACE_START_STEP, 10"):
        byteps.check_environment({"BYTEPS_TRACE_ON": "1", "BYTEPS_TRACE_END_STEP": "3"})
    given = {"ON": "1", "START_STEP": "2", "END_STEP": "2", "DIR": str(tmp_path / "traces")}
    for name, value in given.items():
        monkeypatch.setenv(f"BYTEPS_TRACE_{name}", value)
    byteps.init()
    for _ in range(3):
        job.controller().submit(Request("barrier", "all")).wait()
    byteps.init()  # in the job already
    byteps.shutdown()
    byteps.init()  # the next job leaves the trace of this one
    byteps.shutdown()
    assert (tmp_path / "traces" / "0" / "comm-2.json").exists()
    events = json.loads((tmp_path / "traces" / "0" / "comm.json").read_text())
    assert [one["name"] for one in events] == ["process_name", "NEGOTIATE_BARRIER", "BARRIER"]


def test_init__refuses_before_it_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMLC_ROLE", "server")
    with pytest.raises(ConfigError, match="DMLC_ROLE"):
        byteps.init()
    with pytest.raises(ValueError, match="not been initialized"):
        byteps.rank()


def test_init__takes_the_variables_of_a_worker_of_byteps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0"}.items():
        monkeypatch.setenv(name, value)
    byteps.init(lazy=False)
    assert (byteps.rank(), byteps.size(), byteps.local_rank(), byteps.local_size()) == (0, 1, 0, 1)


def test_resume__keeps_the_place_where_the_workers_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "DMLC_NUM_WORKER": "2",
        "DMLC_WORKER_ID": "1",
        "DMLC_PS_ROOT_URI": "192.0.2.7",
        "DMLC_PS_ROOT_PORT": "9000",
        "BYTEPS_LOCAL_RANK": "0",
        "BYTEPS_LOCAL_SIZE": "1",
    }
    empty = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MLT_RENDEZVOUS_PORT", "DMLC_NUM_SERVER", "BYTEPS_GLOBAL_RANK")
    for name, value in {**given, **dict.fromkeys(empty, "")}.items():
        monkeypatch.setenv(name, value)
    byteps.resume(num_workers=1, num_servers=0, global_rank=0)
    assert (byteps.rank(), byteps.size()) == (0, 1)
    position = byteps.launchers.position(byteps.os.environ)
    assert (position.rank, position.world_size) == (0, 1)
    found = {name: byteps.os.environ[name] for name in ("MASTER_ADDR", "MLT_RENDEZVOUS_PORT")}
    assert found == {"MASTER_ADDR": "192.0.2.7", "MLT_RENDEZVOUS_PORT": "10000"}
    written = ("DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "BYTEPS_GLOBAL_RANK")  # BytePS's own resume writes these
    assert {name: byteps.os.environ[name] for name in written} == {
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "0",
        "BYTEPS_GLOBAL_RANK": "0",
    }


def test_resume__counts_hosts_and_their_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_RANK": "1", "BYTEPS_LOCAL_SIZE": "2"}
    for name, value in {**given, "DMLC_NUM_SERVER": "", "BYTEPS_GLOBAL_RANK": "", "RANK": "", "WORLD_SIZE": ""}.items():
        monkeypatch.setenv(name, value)
    found = []
    monkeypatch.setattr(byteps, "init", lambda: found.append(byteps.launchers.position(byteps.os.environ)))
    byteps.resume(3, 2, 4)
    assert [(one.rank, one.world_size) for one in found] == [(4, 6)]
    # A process that reads BytePS's variables only finds the same place.
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "")
    position = byteps.launchers.position(byteps.os.environ)
    assert (position.rank, position.world_size, position.local_rank, position.local_size) == (4, 6, 1, 2)


def test_send_order__is_by_priority_then_by_declaration() -> None:
    front, back = byteps.declare("front"), byteps.declare("back")
    assert (front, back, byteps.declare("front"), byteps.declared()) == (0, 1, 0, 2)
    wanted = [("back", 1), ("front", 0), ("back", 0), ("new", 0), (None, 0), ("front", -1)]
    orders = [byteps.send_order(name, priority) for name, priority in wanted]
    assert orders == sorted(orders, reverse=True)
    assert len(set(orders)) == len(orders)
    assert byteps.declare("new") == 2


def test_send_order__needs_a_text_as_name() -> None:
    with pytest.raises(TypeError, match="name is 3, of int: give a text"):
        byteps.send_order(3, 0)  # type: ignore[arg-type]


def test_reduction__has_texts_and_the_old_argument() -> None:
    assert [byteps.reduction(op) for op in (None, "Average", Average)] == [Average] * 3
    assert [byteps.reduction(op) for op in ("Sum", Sum)] == [Sum] * 2
    with pytest.warns(DeprecationWarning, match="`average`"):
        assert [byteps.reduction(None, average) for average in (True, False)] == [Average, Sum]


@pytest.mark.parametrize("op", [Adasum, Max, "Adasum", "sum"])
def test_reduction__of_another_kind_is_refused(op: object) -> None:
    with pytest.raises(ValueError, match="push-pull has Average and Sum"):
        byteps.reduction(op)  # type: ignore[arg-type]


@pytest.mark.parametrize("op", [Sum, "Sum"])
def test_reduction__from_both_arguments_is_refused(op: object) -> None:
    with pytest.raises(ValueError, match="op"):
        byteps.reduction(op, average=True)  # type: ignore[arg-type]


def test_speed__is_zero_outside_a_job() -> None:
    now, rate = byteps.get_pushpull_speed()
    assert rate == 0.0
    assert now > 1_500_000_000_000
