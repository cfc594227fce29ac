"""Position of this process as its launcher gives it: torchrun, horovodrun, mpirun (Open MPI), srun, bpslaunch."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mlt._shared import variables
from mlt._shared.ports import RENDEZVOUS_OFFSET, port_beside
from mlt.options.limits import MAX_RANKS

# Variables of rank, world size, local rank and local size, by launcher; the first of which both first are set counts.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    # Only srun sets the second: the script of sbatch is not a rank of a job.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
)
# Below the ports that Linux gives to clients.
_FIRST_PORT, _PORTS = 20_000, 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPosition:
    """Position of a process in its job. None: the launcher does not set it."""

    rank: int
    world_size: int
    local_rank: int | None = None
    local_size: int | None = None
    master_addr: str | None = None
    rendezvous_port: int | None = None


def position(environ: Mapping[str, str]) -> JobPosition:
    """The position that the environment gives; without a launcher that of a job of one process.

    MASTER_ADDR and MASTER_PORT need not be set under srun, where rank 0 is on the first host of the step, and under an
    mpirun of one host. The port then follows from the launcher's name of the job. Raises ConfigError that names the
    variable.
    """
    environ = {name: value for name, value in environ.items() if value.strip()}  # empty counts as unset
    for rank, size, local_rank, local_size in _LAUNCHERS:
        if rank not in environ or size not in environ:
            continue
        found = JobPosition(
            rank=_rank(environ, rank),
            world_size=_size(environ, size),
            local_rank=variables.integer(environ, local_rank, maximum=MAX_RANKS),
            local_size=variables.integer(environ, local_size, minimum=1, maximum=MAX_RANKS),
        )
        host, job = _meeting_point(environ, rank, found)
        if {"MASTER_PORT", "MLT_RENDEZVOUS_PORT"} & environ.keys():
            job = ""
        return replace(
            found,
            master_addr=None if "MASTER_ADDR" in environ else host,
            rendezvous_port=_FIRST_PORT + zlib.crc32(job.encode()) % _PORTS if job else None,
        )
    if "DMLC_WORKER_ID" in environ and "DMLC_NUM_WORKER" in environ:
        return _of_byteps(environ)
    return JobPosition(rank=0, world_size=1, local_rank=0, local_size=1)


def _rank(environ: Mapping[str, str], name: str) -> int:
    return variables.integer(environ, name, maximum=MAX_RANKS) or 0


def _size(environ: Mapping[str, str], name: str) -> int:
    return variables.integer(environ, name, minimum=1, maximum=MAX_RANKS) or 1


def _of_byteps(environ: Mapping[str, str]) -> JobPosition:
    """A worker of BytePS is a host. BYTEPS_GLOBAL_RANK, which BytePS's ``resume`` writes, replaces the rank.

    Rank 0 is taken to be on the host of the scheduler, which a job of mlt does not have.
    """
    local_size = variables.integer(environ, "BYTEPS_LOCAL_SIZE", minimum=1, maximum=MAX_RANKS) or 1
    local_rank = variables.integer(environ, "BYTEPS_LOCAL_RANK", maximum=MAX_RANKS) or 0
    root_port = variables.port(environ, "DMLC_PS_ROOT_PORT")
    if {"MASTER_PORT", "MLT_RENDEZVOUS_PORT"} & environ.keys():
        root_port = None
    rank = variables.integer(environ, "BYTEPS_GLOBAL_RANK", maximum=MAX_RANKS)
    return JobPosition(
        rank=_rank(environ, "DMLC_WORKER_ID") * local_size + local_rank if rank is None else rank,
        world_size=_size(environ, "DMLC_NUM_WORKER") * local_size,
        local_rank=local_rank,
        local_size=local_size,
        master_addr=None if "MASTER_ADDR" in environ else environ.get("DMLC_PS_ROOT_URI"),
        rendezvous_port=None if root_port is None else port_beside(root_port, RENDEZVOUS_OFFSET),
    )


def _meeting_point(environ: Mapping[str, str], launcher: str, found: JobPosition) -> tuple[str | None, str]:
    """The host of rank 0, and a text that is the same on all ranks and differs between jobs; None and "" if unknown."""
    if launcher == "SLURM_PROCID":
        job = environ.get("SLURM_JOB_ID", "")
        return first_host(environ.get("SLURM_STEP_NODELIST", "")), job and f"{job}.{environ.get('SLURM_STEP_ID', '')}"
    if launcher == "OMPI_COMM_WORLD_RANK" and found.local_size == found.world_size:
        return "127.0.0.1", environ.get("PMIX_NAMESPACE", "")
    return None, ""


def first_host(nodes: str) -> str | None:
    """The first host of Slurm's list: "a[03-07,9],b1" begins with "a03"; None for an empty list."""
    found = re.match(r"([^\[,]*)(?:\[(\d+)[^\]]*\])?([^\[,]*)", nodes)
    return "".join(part or "" for part in found.groups()) or None if found else None
