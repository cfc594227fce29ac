"""The place of a run's processes: this host's loopback interface, or the hosts of a testbed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from mlt._shared.ports import free_port_pair
from mlt.demo.problem import BadSettingError, DemoError
from mlt.demo.settings import (
    GRAY_LINK,
    GRAY_LOSS,
    PATHS,
    RATE,
    SERVICES,
    SPINES,
    TCP_CONTROL,
    DemoSettings,
    RunSpec,
)
from mlt.job.secret import own_secret

if TYPE_CHECKING:
    from mlt.testbed import Testbed, Topology

LOOPBACK = "127.0.0.1"


class Network(Protocol):
    """A network for the processes of one run."""

    def popen(self, rank: int, command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> Any:
        """``subprocess.Popen`` where ``rank`` is, with this environment besides the network's own."""

    def packets_lost(self) -> int | None:
        """Packets that the network has dropped on purpose; None if the processes drop them and count."""


class Loopback:
    """All ranks on this host, over real UDP sockets; the processes drop packets themselves."""

    def __init__(self, workers: int) -> None:
        try:
            port = free_port_pair(LOOPBACK)
        except LookupError as error:
            raise DemoError(str(error)) from None
        self._environment = {
            "WORLD_SIZE": str(workers),
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(port),
            **own_secret(os.environ),
        }

    def popen(self, rank: int, command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> Any:
        full = {**os.environ, **self._environment, "RANK": str(rank), **env}
        return subprocess.Popen(command, env=full, **options)

    def packets_lost(self) -> int | None:
        return None


class Hosts:
    """A host of the testbed for each rank."""

    def __init__(self, bed: Testbed) -> None:
        self._bed = bed

    def popen(self, rank: int, command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> Any:
        settings = {"MLT_SERVICES": str(SERVICES["testbed"]), "MLT_PATHS": str(PATHS), **env}
        return self._bed.popen(self._bed.hosts[rank], command, env=settings, **options)

    def packets_lost(self) -> int | None:
        return sum(link.lost for link in self._bed.link_counters())


def topology(settings: DemoSettings, drop: float) -> Topology:
    """Leaves, spines and hosts; with loss, every host's link loses ``drop`` of what it sends, and one link between leaf
    and spine more."""
    from mlt.testbed import BadTopologyError, make

    links = {GRAY_LINK: {"loss": GRAY_LOSS}} if drop > 0 else {}
    try:
        return make({"hosts": settings.workers, "spines": SPINES, "rate": RATE, "loss": drop, "links": links})
    except BadTopologyError as error:
        raise BadSettingError(f"--workers {settings.workers}, --loss {settings.loss}: no testbed: {error}") from None


@contextmanager
def network_of(settings: DemoSettings, run: RunSpec) -> Iterator[Network]:
    """The network of one run. Raises DemoError if it cannot be made."""
    if settings.network == "loopback":
        yield Loopback(settings.workers)
        return
    from mlt.testbed import Testbed, TestbedError

    try:
        with Testbed(topology(settings, run.drop)) as bed:
            bed.set_tcp_control(TCP_CONTROL)
            yield Hosts(bed)
    except TestbedError as error:
        raise DemoError(str(error)) from error


def testbed_problems(settings: DemoSettings) -> list[str]:
    """Why this host cannot make the testbed, one line each; empty if it can."""
    from mlt.testbed.requirements import problems

    return problems(topology(settings, settings.loss))
