"""Position of this process as its launcher gives it: torchrun, horovodrun, Open MPI's mpirun, or Slurm's srun."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mlt.errors import ConfigError

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
_SLURM_FIRST_PORT, _SLURM_PORTS = 20_000, 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Of a process in its job. None: the launcher does not say."""

    rank: int
    world_size: int
    local_rank: int | None = None
    local_size: int | None = None
    master_addr: str | None = None
    rendezvous_port: int | None = None


def place(environ: Mapping[str, str]) -> Place:
    """The position that the environment gives; without a launcher that of a job of one process.

    Under Slurm, rank 0 is on the first host of the step, and the port follows from the job's number, unless MASTER_ADDR
    and MASTER_PORT are set. Raises ConfigError that names the variable.
    """
    for rank, size, local_rank, local_size in _LAUNCHERS:
        if rank not in environ or size not in environ:
            continue
        slurm = rank == "SLURM_PROCID"
        own_address = slurm and "MASTER_ADDR" not in environ
        own_port = slurm and not {"MASTER_PORT", "MLT_RENDEZVOUS_PORT"} & environ.keys()
        return Place(
            rank=_number(environ, rank),
            world_size=_number(environ, size),
            local_rank=_number(environ, local_rank) if local_rank in environ else None,
            local_size=_number(environ, local_size) if local_size in environ else None,
            master_addr=first_host(environ.get("SLURM_STEP_NODELIST", "")) if own_address else None,
            rendezvous_port=_slurm_port(environ) if own_port else None,
        )
    return Place(rank=0, world_size=1, local_rank=0, local_size=1)


def first_host(nodes: str) -> str | None:
    """The first host of Slurm's list: "a[03-07,9],b1" begins with "a03"; None for an empty list."""
    found = re.match(r"([^\[,]*)(?:\[(\d+)[^\]]*\])?([^\[,]*)", nodes)
    return "".join(part or "" for part in found.groups()) or None if found else None


def _slurm_port(environ: Mapping[str, str]) -> int | None:
    if "SLURM_JOB_ID" not in environ:
        return None
    step = _number(environ, "SLURM_STEP_ID") if environ.get("SLURM_STEP_ID", "").isdigit() else 0
    return _SLURM_FIRST_PORT + (_number(environ, "SLURM_JOB_ID") * 7 + step) % _SLURM_PORTS


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ConfigError(f"environment variable {name} is {environ[name]!r}; it must be an integer") from None
