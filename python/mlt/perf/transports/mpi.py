"""Open MPI through mpi4py; mpirun starts its processes.

``mpi`` uses its TCP transport alone: between hosts there is no shared memory. ``mpi-shm`` uses its default between
ranks of one host, for comparison with mlt's own shared memory.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

from mlt._shared.extras import how_to_install
from mlt.perf.patterns import Buffers
from mlt.perf.transports.base import Address, Outcome, Transport, not_installed

_ASK, _DATA = 1, 2
RANK_VARIABLE = "OMPI_COMM_WORLD_RANK"


class Mpi(Transport):
    """MPI_COMM_WORLD. It polls while it waits, as Open MPI does, but yields the core."""

    _mpi: Any = None

    @classmethod
    def missing(cls) -> str | None:
        if shutil.which("mpirun") is None:
            return f"mpirun is not installed: apt-get install openmpi-bin; {how_to_install('perf', 'mpi4py')}"
        return not_installed("mpi4py", how_to_install("perf", "mpi4py"))

    def open(self, table: Sequence[Address]) -> None:
        import numpy as np
        from mpi4py import MPI

        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        self._ask = np.zeros(8, np.uint8)
        self._world.Barrier()

    def incast(self, buffers: Buffers) -> Outcome:
        world = self._world
        if self.place.rank:
            world.Recv(self._ask, 0, _ASK)
            world.Send(buffers.outgoing, 0, _DATA)
            return Outcome(0.0)
        began = time.perf_counter()
        receives = [world.Irecv(array, peer, _DATA) for peer, array in buffers.incoming.items()]
        asks = [world.Isend(self._ask, peer, _ASK) for peer in buffers.incoming]
        self._mpi.Request.Waitall(receives)
        seconds = time.perf_counter() - began
        self._mpi.Request.Waitall(asks)
        return Outcome(seconds)

    def alltoall(self, buffers: Buffers) -> Outcome:
        began = time.perf_counter()
        self._world.Alltoall(buffers.outgoing, buffers.work)
        return Outcome(time.perf_counter() - began)

    def allreduce(self, buffers: Buffers) -> Outcome:
        began = time.perf_counter()
        self._world.Allreduce(self._mpi.IN_PLACE, buffers.work)
        return Outcome(time.perf_counter() - began)

    def close(self) -> None:
        if self._mpi is not None:
            self._mpi.Finalize()


def launch_command(ranks: int, interface: str, agent: Sequence[str], *, shared_memory: bool = False) -> list[str]:
    """mpirun for ``ranks`` agents on this host, which communicate over TCP on ``interface`` or through shared
    memory."""
    command = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    transport = {"btl": "^tcp"} if shared_memory else {"btl": "tcp,self", "btl_tcp_if_include": interface}
    settings = {**transport, "mpi_yield_when_idle": "1"}
    for name, value in settings.items():
        command += ["--mca", name, value]
    return [*command, sys.executable, *agent]


TRANSPORT = Mpi
