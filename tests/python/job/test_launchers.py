"""``mlt.job.launchers``: where each launcher says that this process is."""

from __future__ import annotations

import pytest
from checks import names

from mlt.errors import ConfigError
from mlt.job.launchers import JobPosition, first_host, position

SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[07-10]",
    "SLURM_JOB_ID": "123",
    "SLURM_STEP_ID": "2",
}

BYTEPS = {
    "DMLC_WORKER_ID": "1",
    "DMLC_NUM_WORKER": "2",
    "BYTEPS_LOCAL_RANK": "1",
    "BYTEPS_LOCAL_SIZE": "2",
    "DMLC_PS_ROOT_URI": "10.0.0.9",
    "DMLC_PS_ROOT_PORT": "9000",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prte@1",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, JobPosition(rank=0, world_size=1, local_rank=0, local_size=1)),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            JobPosition(rank=3, world_size=4, local_rank=1, local_size=2),
        ),
        ({"RANK": "3", "WORLD_SIZE": "4"}, JobPosition(rank=3, world_size=4)),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}, JobPosition(rank=1, world_size=2)),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
            JobPosition(rank=1, world_size=2, local_rank=0),
        ),
        (SLURM, JobPosition(rank=5, world_size=8, local_rank=1, master_addr="gpu07", rendezvous_port=25_092)),
        (
            SLURM | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"},
            JobPosition(rank=5, world_size=8, local_rank=1),
        ),
        (
            OPEN_MPI,
            JobPosition(
                rank=1, world_size=2, local_rank=1, local_size=2, master_addr="127.0.0.1", rendezvous_port=29_922
            ),
        ),
        # Two hosts: mpirun does not say which has rank 0.
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, JobPosition(rank=1, world_size=2, local_rank=1, local_size=1)),
        (
            BYTEPS,
            JobPosition(
                rank=3, world_size=4, local_rank=1, local_size=2, master_addr="10.0.0.9", rendezvous_port=10_000
            ),
        ),
        (
            BYTEPS | {"BYTEPS_GLOBAL_RANK": "2", "MASTER_ADDR": "h", "MASTER_PORT": "29500"},
            JobPosition(rank=2, world_size=4, local_rank=1, local_size=2),
        ),
        (
            {"DMLC_WORKER_ID": "1", "DMLC_NUM_WORKER": "2", "MASTER_ADDR": "h"},
            JobPosition(rank=1, world_size=2, local_rank=0, local_size=1),
        ),
        # The script of sbatch, outside srun.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, JobPosition(rank=0, world_size=1, local_rank=0, local_size=1)),
    ],
)
def test_position__of_each_launcher(environ: dict[str, str], expected: JobPosition) -> None:
    assert position(environ) == expected


def test_position__torchrun_goes_before_slurm() -> None:
    assert position(SLURM | {"RANK": "0", "WORLD_SIZE": "2"}).world_size == 2


def test_position__names_the_variable_that_is_no_number() -> None:
    with pytest.raises(ConfigError, match=names("OMPI_COMM_WORLD_RANK", "'first'")):
        position({"OMPI_COMM_WORLD_RANK": "first", "OMPI_COMM_WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("a1", "a1"), ("a1,b2", "a1"), ("a[03-07,9],b1", "a03"), ("a[3,5]-ib", "a3-ib"), ("rack-1-node2", "rack-1-node2")],
)
def test_first_host__of_slurms_lists(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_first_host__of_an_empty_list_is_none() -> None:
    assert first_host("") is None
