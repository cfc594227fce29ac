"""Every number and time that a variable of the environment gives: accepted in one form, else an error that names it."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pytest
from checks import names
from test_import_layers import MODULES

import mlt
from mlt._named import byteps, unused_variables
from mlt._shared import variables
from mlt.errors import ConfigError
from mlt.job import launchers, rendezvous
from mlt.job.configuration import JobConfig
from mlt.options import arguments, limits, serving, times
from mlt.options.limits import MAX_RANKS
from mlt.perf import session
from mlt.testbed import state

Environ = Mapping[str, str | None]
Read = Callable[[Environ], object]

JOB = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
HOROVOD = {f"HOROVOD_{name}": "1" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")}
OPEN_MPI = {f"OMPI_COMM_WORLD_{name}": "1" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")}
SLURM = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}
BYTEPS = {"DMLC_WORKER_ID": "0", "DMLC_NUM_WORKER": "1", "DMLC_PS_ROOT_PORT": "9000"}


def full(environ: Environ, others: Mapping[str, str] | None = None) -> dict[str, str]:
    """``environ`` over ``others``; None takes a variable away."""
    return {name: value for name, value in {**(others or {}), **environ}.items() if value is not None}


def job(environ: Environ) -> object:
    return JobConfig.resolve(environ=full(environ, JOB))


def position(others: Mapping[str, str]) -> Read:
    return lambda environ: launchers.position(full(environ, others))


def byteps_job(environ: Environ) -> object:
    byteps.check_environment(full(environ))
    return None


def traced_job(other: str, value: str) -> Read:
    """Reads a step of BytePS's trace beside the other one."""
    return lambda environ: byteps.check_environment({"BYTEPS_TRACE_ON": "1", other: value, **full(environ)})


def context_options(environ: Environ) -> object:
    return arguments.resolve({}, full(environ))


def dead_services(environ: Environ) -> object:
    return serving.max_dead_services(environ=full(environ))


def service_options(environ: Environ) -> object:
    return serving.resolve(environ=full(environ))


def connect_seconds(environ: Environ) -> object:
    return times.resolve({}, full(environ))


def perf_port(environ: Environ) -> object:
    return session._job_port(full(environ), JobConfig.resolve(environ=JOB))


def stall_settings(environ: Environ) -> object:
    pytest.importorskip("torch")
    from mlt._named.job import settings

    return settings(full(environ))


def mark_cycles(environ: Environ) -> object:
    pytest.importorskip("torch")
    from mlt.torch import horovod

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", full(environ))
        horovod.init()
        horovod.shutdown()
    return None


def caller(environ: Environ) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 0)
        patch.setattr(os, "environ", full(environ))
        return state.user()


@dataclass(frozen=True)
class Number:
    read: Read
    minimum: int = 0
    maximum: int | None = None


@dataclass(frozen=True)
class Time:
    read: Read
    maximum: float = variables.MAX_SECONDS
    is_zero_valid: bool = False


PORT = {"minimum": 1, "maximum": 65_535}
SIZE = {"minimum": 1, "maximum": MAX_RANKS}
FORMS: dict[str, Number | Time] = {
    "RANK": Number(job, maximum=MAX_RANKS),
    "WORLD_SIZE": Number(job, **SIZE),
    "LOCAL_RANK": Number(position(JOB), maximum=MAX_RANKS),
    "LOCAL_WORLD_SIZE": Number(position(JOB), **SIZE),
    "MASTER_PORT": Number(job, **PORT),
    "MLT_RENDEZVOUS_PORT": Number(job, **PORT),
    "MLT_SERVICES": Number(job, maximum=MAX_RANKS),
    "MLT_INSECURE": Number(job, maximum=1),
    "MLT_PERF_PORT": Number(perf_port, **PORT),
    "MLT_MAX_DEAD_WORKERS": Number(service_options, maximum=MAX_RANKS),
    "MLT_MAX_DEAD_SERVICES": Number(dead_services, maximum=MAX_RANKS),
    "MLT_MAX_WAIT": Time(service_options),
    "MLT_SHARES_BY_RATE": Number(context_options, maximum=1),
    "MLT_CHECKSUMS": Number(context_options, maximum=1),
    "MLT_ERASURE_CORRECTION": Number(context_options, maximum=1),
    "MLT_CONNECTS_ON_USE": Number(context_options, maximum=1),
    "MLT_SPIN_US": Time(context_options, maximum=1.0, is_zero_valid=True),
    **{
        variable: Number(context_options, minimum=1, maximum=maximum) for variable, maximum in limits.VARIABLES.values()
    },
    **{variable: Time(context_options) for variable in times.VARIABLES.values()},
    "MLT_CONNECT_TIMEOUT": Time(connect_seconds),
    "HOROVOD_RANK": Number(position(HOROVOD), maximum=MAX_RANKS),
    "HOROVOD_SIZE": Number(position(HOROVOD), **SIZE),
    "HOROVOD_LOCAL_RANK": Number(position(HOROVOD), maximum=MAX_RANKS),
    "HOROVOD_LOCAL_SIZE": Number(position(HOROVOD), **SIZE),
    "OMPI_COMM_WORLD_RANK": Number(position(OPEN_MPI), maximum=MAX_RANKS),
    "OMPI_COMM_WORLD_SIZE": Number(position(OPEN_MPI), **SIZE),
    "OMPI_COMM_WORLD_LOCAL_RANK": Number(position(OPEN_MPI), maximum=MAX_RANKS),
    "OMPI_COMM_WORLD_LOCAL_SIZE": Number(position(OPEN_MPI), **SIZE),
    "SLURM_PROCID": Number(position(SLURM), maximum=MAX_RANKS),
    "SLURM_STEP_NUM_TASKS": Number(position(SLURM), **SIZE),
    "SLURM_LOCALID": Number(position(SLURM), maximum=MAX_RANKS),
    "DMLC_WORKER_ID": Number(position(BYTEPS), maximum=MAX_RANKS),
    "DMLC_NUM_WORKER": Number(position(BYTEPS), **SIZE),
    "DMLC_PS_ROOT_PORT": Number(position(BYTEPS), **PORT),
    "BYTEPS_LOCAL_RANK": Number(position(BYTEPS), maximum=MAX_RANKS),
    "BYTEPS_LOCAL_SIZE": Number(position(BYTEPS), **SIZE),
    "BYTEPS_GLOBAL_RANK": Number(position(BYTEPS), maximum=MAX_RANKS),
    "BYTEPS_ENABLE_ASYNC": Number(byteps_job, maximum=1),
    "BYTEPS_TRACE_ON": Number(byteps_job, maximum=1),
    "BYTEPS_TRACE_START_STEP": Number(traced_job("BYTEPS_TRACE_END_STEP", "9" * 30), minimum=1),
    "BYTEPS_TRACE_END_STEP": Number(traced_job("BYTEPS_TRACE_START_STEP", "1"), minimum=1),
    "HOROVOD_FUSION_THRESHOLD": Number(stall_settings),
    "HOROVOD_CACHE_CAPACITY": Number(stall_settings),
    "HOROVOD_STALL_CHECK_TIME_SECONDS": Time(stall_settings, is_zero_valid=True),
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": Time(stall_settings, is_zero_valid=True),
    "HOROVOD_STALL_CHECK_DISABLE": Number(stall_settings, maximum=1),
    "HOROVOD_TIMELINE_MARK_CYCLES": Number(mark_cycles, maximum=1),
    "SUDO_UID": Number(caller),
}
# Variables that are texts, lists and files, or removed, or set for other programs only.
TEXTS = {
    "MASTER_ADDR", "MLT_JOB", "MLT_JOB_SECRET", "MLT_JOB_SECRET_FILE", "MLT_HOST", "MLT_INTERFACE", "MLT_DATAPATH",
    "MLT_PATHS", "MLT_QOS_POLICY", "MLT_IO_THREADS", "MLT_IO_CPUS", "MLT_SWITCH_USER", "MLT_SWITCH_PASSWORD",
    "MLT_SWITCH_KEY", "MLT_SWITCH_VALIDATORS", "MLT_TESTBED", "MLT_TESTBED_HOST", "MLT_TESTBED_USER_NAMESPACE",
    "MLT_PLAN", "MLT_ELASTIC", "HOROVOD_TIMELINE", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST",
    "DMLC_PS_ROOT_URI", "DMLC_ROLE", "MLT_FLIGHT_RECORDER", "MLT_LAUNCH_FAILURES", "DMLC_NUM_SERVER",
    "BYTEPS_TRACE_DIR",
}  # fmt: skip
NAME = re.compile(
    r"(?:MLT|HOROVOD|OMPI|SLURM|DMLC|BYTEPS|SUDO)_[A-Z][A-Z_]*|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_\w+"
)

NO_NUMBERS = ("one", "2.5", "1_0", "+1", "-1", "0x1", "1e3", "nan", "٣", "１", "1 0", "9" * 5_000)
NO_TIMES = ("soon", "-2s", "nan", "inf", "1_0", "٣", "１s", "1e400", "1e99999999999999999999", "3 Gbit/s")


def named_in_the_code() -> set[str]:
    """The variables that a module of the package has as a string of its own."""
    return {
        node.value
        for name, path in MODULES.items()
        if name.startswith("mlt.")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value)
    }


def wrong_values() -> Iterator[tuple[str, str]]:
    for name, form in FORMS.items():
        if isinstance(form, Number):
            beyond = () if form.maximum is None else (str(form.maximum + 1),)
            values = (*NO_NUMBERS, *beyond, *(("0",) if form.minimum else ()))
        else:
            values = (*NO_TIMES, f"{form.maximum * 1.01:g}s", *(() if form.is_zero_valid else ("0", "0ms")))
        yield from ((name, value) for value in values)


def test_every_variable_of_the_code_is_in_the_table_or_a_text() -> None:
    code = named_in_the_code()
    assert code - FORMS.keys() - TEXTS == set()
    assert {"RANK", "MLT_SPIN_US", "HOROVOD_CACHE_CAPACITY", "MLT_MAX_TAGS"} <= code
    assert FORMS.keys() | TEXTS == code


def test_variables_of_horovod_and_byteps__that_count_as_read_are_those_of_the_code() -> None:
    assert {name for name in named_in_the_code() if name.startswith(("HOROVOD_", "BYTEPS_"))} == unused_variables.NAMES


@pytest.mark.parametrize(("name", "value"), [pytest.param(n, v, id=f"{n}={v[:24]}") for n, v in wrong_values()])
def test_wrong_value__is_named_with_the_right_form(name: str, value: str) -> None:
    form = FORMS[name]
    kind = "an integer" if isinstance(form, Number) else "a time"
    with pytest.raises(ConfigError, match=names(name, repr(value), kind)):
        form.read({name: value})


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("empty", ["", " "])
def test_empty__counts_as_unset(name: str, empty: str) -> None:
    def outcome(value: str | None) -> object:
        try:
            return FORMS[name].read({name: value})
        except ConfigError as error:
            return str(error)

    assert outcome(empty) == outcome(None)


def test_right_values__are_read() -> None:
    environ = {"N": " 007 ", "PORT": "65535", "T": "1500 ms", "BARE": "90", "MOST": "9e9", "US": "20", "ON": "1"}
    assert variables.integer(environ, "N", maximum=7) == 7
    assert variables.port(environ, "PORT") == 65_535
    assert variables.time(environ, "T") == 1.5
    assert (variables.time(environ, "BARE"), variables.time(environ, "MOST")) == (90.0, 9e9)
    assert variables.time(environ, "US", unit="us", maximum=1.0) == 20.0
    assert (variables.flag(environ, "ON"), variables.flag(environ, "OFF")) == (True, False)


IN_A_CONTEXT = {
    "WORLD_SIZE": "2.0",
    "MASTER_PORT": "65536",
    "MLT_RENDEZVOUS_PORT": "0",
    "MLT_SERVICES": "some",
    "MLT_INSECURE": "yes",
    "MLT_SPIN_US": "long",
    "MLT_HOST": "node-7",
    "MLT_INTERFACE": "=nonesuch",
    "MLT_DATAPATH": "dpdk",
    "MLT_PATHS": "٣",
    **{variable: "1_0" for variable, _ in limits.VARIABLES.values()},
    **dict.fromkeys(times.VARIABLES.values(), "inf"),
}


@pytest.mark.parametrize("name", IN_A_CONTEXT)
def test_context__refuses_a_wrong_value_before_the_rendezvous(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def met(*_: object, **__: object) -> None:
        raise AssertionError("the rendezvous began")

    monkeypatch.setattr(rendezvous, "meet", met)
    for variable, value in {**JOB, name: IN_A_CONTEXT[name]}.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=names(name, IN_A_CONTEXT[name])):
        mlt.Context()
