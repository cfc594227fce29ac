"""The job configuration from arguments and environment, and errors for wrong values."""

from __future__ import annotations

from typing import Any

import pytest
from checks import assert_names

import mlt
from mlt.job.configuration import JobConfig

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_resolve__reads_what_torchrun_sets() -> None:
    config = JobConfig.resolve(environ=TORCHRUN)
    assert (config.rank, config.world_size, config.services, config.size) == (1, 4, 0, 4)
    # torch's store has MASTER_PORT itself.
    assert (config.master_addr, config.rendezvous_port, config.job, config.host) == ("10.0.0.1", 30500, "default", None)


def test_resolve__reads_its_own_variables() -> None:
    own = {"MLT_SERVICES": "2", "MLT_JOB": "night", "MLT_RENDEZVOUS_PORT": "7000", "MLT_HOST": "10.0.0.2"}
    config = JobConfig.resolve(environ={**TORCHRUN, **own})
    assert (config.services, config.size, config.job, config.rendezvous_port) == (2, 6, "night", 7000)
    assert config.host == "10.0.0.2"


def test_resolve__ports_of_jobs_in_a_row_do_not_meet() -> None:
    jobs = range(29_500, 29_900)
    ports = {JobConfig.resolve(environ={**TORCHRUN, "MASTER_PORT": str(port)}).rendezvous_port for port in jobs}
    assert len(ports) == len(jobs)
    assert not ports & set(jobs)


def test_resolve__brackets_around_an_address_are_taken_off() -> None:
    config = JobConfig.resolve(environ={**TORCHRUN, "MASTER_ADDR": "[fd00::1]", "MLT_HOST": "[fd00::2]"})
    assert (config.master_addr, config.host) == ("fd00::1", "fd00::2")


def test_resolve__arguments_come_first() -> None:
    config = JobConfig.resolve(
        rank=5, world_size=5, services=1, job="x", master_addr="::1", rendezvous_port=9, host="h", environ=TORCHRUN
    )
    assert config == JobConfig(
        rank=5, world_size=5, services=1, job="x", master_addr="::1", rendezvous_port=9, host="h"
    )


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        ({"RANK": None}, "RANK is not set: start with mlt launch or torchrun, or set RANK, or pass rank="),
        ({"RANK": None, "WORLD_SIZE": ""}, "RANK and WORLD_SIZE are not set"),
        ({"RANK": None, "MASTER_ADDR": None}, "set RANK, MASTER_ADDR,"),
        ({"WORLD_SIZE": None}, "WORLD_SIZE is not set"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR is not set"),
        ({"MASTER_PORT": None}, "MLT_RENDEZVOUS_PORT, or MASTER_PORT"),
        ({"RANK": "one"}, "RANK is 'one'"),
        ({"WORLD_SIZE": "2.5"}, "WORLD_SIZE is '2.5'"),
        ({"MASTER_PORT": ""}, "MLT_RENDEZVOUS_PORT, or MASTER_PORT"),
        ({"MLT_SERVICES": "some"}, "MLT_SERVICES is 'some'"),
        ({"MLT_SERVICES": "-1"}, "MLT_SERVICES is '-1'"),
        ({"MLT_RENDEZVOUS_PORT": "70000"}, "MLT_RENDEZVOUS_PORT is '70000'.*1 to 65535"),
        ({"MASTER_PORT": "-1500"}, "MASTER_PORT is '-1500'.*1 to 65535"),
        ({"RANK": "4"}, r"\(RANK\) is 4.*0 to 3.*no services"),
        ({"RANK": "6", "MLT_SERVICES": "1"}, r"\(RANK\) is 6.*0 to 3.*4 to 4"),
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'"),
        ({"WORLD_SIZE": "70000"}, "WORLD_SIZE is '70000'.*1 to 65535"),
        ({"WORLD_SIZE": "65535", "MLT_SERVICES": "1"}, "65535 ranks at most"),
        ({"MLT_JOB": ""}, "MLT_JOB"),
        ({"MLT_JOB": "x" * 1_001}, "MLT_JOB.*1,001 characters; 1,000 at most"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR"),
    ],
)
def test_resolve__names_the_variable_that_is_wrong(environ: dict[str, str | None], variable: str) -> None:
    merged = {name: value for name, value in {**TORCHRUN, **environ}.items() if value is not None}
    with pytest.raises(mlt.ConfigError, match=variable):
        JobConfig.resolve(environ=merged)


def test_resolve__says_in_an_elastic_job_where_ranks_come_from() -> None:
    environ = {"MLT_ELASTIC": "127.0.0.1:29700"}
    with pytest.raises(mlt.ConfigError) as failure:
        JobConfig.resolve(environ=environ)
    assert_names(failure.value, "MLT_ELASTIC", "elastic", "mlt.elastic.Membership", "hvd.elastic", "docs/elastic.md")
    assert "torchrun" not in str(failure.value)
    assert JobConfig.resolve(rank=0, world_size=1, environ=environ).size == 1


def test_resolve__one_rank_alone_needs_no_address() -> None:
    assert JobConfig.resolve(rank=0, world_size=1, environ={}).size == 1


def test_job_id__distinguishes_names() -> None:
    names = ["default", "night", "Night", ""]
    ids = {JobConfig.resolve(job=name, environ=TORCHRUN).job_id for name in names[:3]}
    assert len(ids) == 3
    assert all(0 <= one < 2**64 for one in ids)


@pytest.mark.parametrize(
    "options",
    [
        {"operation_timeout": 0},
        {"connect_timeout": float("inf")},
        {"peer_timeout": -1},
        {"line_rate_gbps": 0},
        {"segment_bytes": 4},
        {"segment_bytes": 1_001},
    ],
)
def test_context__names_the_option_that_is_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(mlt.ConfigError, match=next(iter(options))):
        mlt.Context(0, 1, **options)
