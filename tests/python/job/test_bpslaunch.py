"""``mlt.job.bpslaunch``: the workers of a host by BytePS's variables."""

from __future__ import annotations

import pytest
from checks import assert_names

from mlt.errors import ConfigError
from mlt.job.bpslaunch import environments, role

HOST = {
    "DMLC_ROLE": "worker",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_WORKER_ID": "1",
    "DMLC_PS_ROOT_URI": "10.0.0.9",
    "DMLC_PS_ROOT_PORT": "9000",
}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("worker", "worker"),
        ("Worker", "worker"),
        ("joint", "joint"),
        (" server ", "server"),
        ("scheduler", "scheduler"),
    ],
)
def test_role__is_one_of_byteps(given: str, found: str) -> None:
    assert role({"DMLC_ROLE": given}) == found


@pytest.mark.parametrize("environ", [{}, {"DMLC_ROLE": ""}, {"DMLC_ROLE": "leader"}])
def test_role__missing_or_another_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        role(environ)
    assert_names(caught.value, "DMLC_ROLE is", "worker", "server", "scheduler")


def test_environments__of_a_host_with_one_worker() -> None:
    assert environments(HOST) == [
        {
            "BYTEPS_LOCAL_RANK": "0",
            "BYTEPS_LOCAL_SIZE": "1",
            "RANK": "1",
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "10.0.0.9",
            "MASTER_PORT": "9000",
        }
    ]


@pytest.mark.parametrize(
    ("devices", "workers", "size"),
    [("0,1,2", None, 3), ("0", None, 1), ("all", None, 1), ("", None, 1), ("0,1", 4, 4)],
)
def test_environments__has_a_worker_per_device_or_as_many_as_given(
    devices: str, workers: int | None, size: int
) -> None:
    found = environments({**HOST, "NVIDIA_VISIBLE_DEVICES": devices}, workers)
    assert [one["RANK"] for one in found] == [str(size + local) for local in range(size)]
    assert [one["BYTEPS_LOCAL_RANK"] for one in found] == [str(local) for local in range(size)]
    assert {(one["WORLD_SIZE"], one["BYTEPS_LOCAL_SIZE"], one["LOCAL_WORLD_SIZE"]) for one in found} == {
        (str(2 * size), str(size), str(size))
    }


def test_environments__of_another_launcher_do_not_count() -> None:
    (found,) = environments({**HOST, "RANK": "7", "WORLD_SIZE": "9", "BYTEPS_LOCAL_RANK": "3", "SLURM_PROCID": "5"})
    assert (found["RANK"], found["WORLD_SIZE"], found["BYTEPS_LOCAL_RANK"]) == ("1", "2", "0")


def test_environments__take_the_rank_that_is_forced() -> None:
    (found,) = environments({**HOST, "BYTEPS_GLOBAL_RANK": "0"})
    assert (found["RANK"], found["WORLD_SIZE"]) == ("0", "2")


def test_environments__keep_the_meeting_point_that_is_set() -> None:
    (found,) = environments({**HOST, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"})
    assert not {"MASTER_ADDR", "MASTER_PORT"} & found.keys()


def test_environments__of_one_host_need_no_meeting_point() -> None:
    first, second = environments({"DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0"}, 2)
    assert (first["RANK"], second["RANK"], second["WORLD_SIZE"]) == ("0", "1", "2")
    assert "MASTER_ADDR" not in first


@pytest.mark.parametrize(
    ("changed", "facts"),
    [
        ({"DMLC_WORKER_ID": ""}, ("DMLC_WORKER_ID", "is not set")),
        ({"DMLC_PS_ROOT_URI": "", "DMLC_PS_ROOT_PORT": ""}, ("DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT", "are not set")),
        ({"DMLC_NUM_WORKER": ""}, ("DMLC_NUM_WORKER", "is not set")),
        ({"DMLC_NUM_WORKER": "two"}, ("DMLC_NUM_WORKER is 'two'",)),
        ({"DMLC_WORKER_ID": "2"}, ("DMLC_WORKER_ID is 2", "at most 1")),
        ({"DMLC_PS_ROOT_PORT": "99999"}, ("DMLC_PS_ROOT_PORT is '99999'",)),
        (
            {"BYTEPS_GLOBAL_RANK": "1", "NVIDIA_VISIBLE_DEVICES": "0,1"},
            ("BYTEPS_GLOBAL_RANK is '1'", "all 2 workers", "unset it"),
        ),
    ],
)
def test_environments__that_are_missing_or_wrong_are_named(changed: dict[str, str], facts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        environments({**HOST, **changed})
    assert_names(caught.value, *facts)
