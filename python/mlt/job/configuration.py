"""The job and rank of this process: arguments first, then the environment variables that torchrun sets."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from mlt._shared import variables
from mlt._shared.addresses import without_brackets
from mlt._shared.counts import count_of
from mlt._shared.ports import RENDEZVOUS_OFFSET, port_beside
from mlt.errors import ConfigError
from mlt.job import secret as secret_module
from mlt.job.epochs.settings import VARIABLE, is_elastic
from mlt.job.secret import JobSecret
from mlt.options.limits import MAX_RANKS

if TYPE_CHECKING:
    from typing_extensions import Unpack

DEFAULT_JOB = "default"
# A message of the rendezvous carries the name.
MAX_JOB_LENGTH = 1_000


class JobArguments(TypedDict, total=False):
    """Position of the job and of this process in it; None, or left out: from the environment."""

    job: str | None
    master_addr: str | None
    rendezvous_port: int | None
    host: str | None
    interface: str | None
    secret: str | bytes | JobSecret | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """Position of a process in its job.

    Workers are ranks 0 to ``world_size - 1``, summation services the ``services`` ranks after them. Rank 0 listens for
    the others at ``master_addr``:``rendezvous_port``. ``host``: address to bind and announce; ``interface``: selection
    of interfaces (``mlt.job.interfaces``); both None: the address that routes to rank 0. Without a ``secret`` the job
    uses loopback addresses only, unless ``insecure`` (``mlt.job.secret``).
    """

    rank: int
    world_size: int
    services: int
    job: str
    master_addr: str
    rendezvous_port: int
    host: str | None
    interface: str | None = None
    secret: JobSecret | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        _check(self.world_size >= 1, f"world_size (WORLD_SIZE) is {self.world_size}; a job has 1 worker at least")
        _check(self.services >= 0, f"services (MLT_SERVICES) is {self.services}; it is 0 or more")
        _check(
            self.size <= MAX_RANKS,
            f"services (MLT_SERVICES) is {self.services} with {count_of(self.world_size, 'worker')}; "
            f"{MAX_RANKS} ranks at most"
            if self.services
            else f"world_size (WORLD_SIZE) is {self.world_size}; {MAX_RANKS} at most",
        )
        _check(
            0 <= self.rank < self.size,
            f"rank (RANK) is {self.rank}; workers are 0 to {self.world_size - 1}"
            + (
                f", services {self.world_size} to {self.size - 1}" if self.services else ", and the job has no services"
            ),
        )
        _check(bool(self.job), "job (MLT_JOB) is empty; leave it out for the job 'default'")
        _check(
            len(self.job) <= MAX_JOB_LENGTH,
            f"job (MLT_JOB) has {len(self.job):,} characters; {MAX_JOB_LENGTH:,} at most",
        )
        _check(bool(self.master_addr), "master_addr (MASTER_ADDR) is empty; set it to the address of rank 0's host")
        _check(
            1 <= self.rendezvous_port <= variables.MAX_PORT,
            f"rendezvous_port (MLT_RENDEZVOUS_PORT, or MASTER_PORT + 1000) is {self.rendezvous_port}; "
            "a port is 1 to 65535",
        )
        _check(
            self.host is None or self.interface is None,
            f"host is {self.host!r} and interface {self.interface!r}; give one of them",
        )

    @property
    def size(self) -> int:
        """Number of ranks in the job: workers and services."""
        return self.world_size + self.services

    @property
    def job_id(self) -> int:
        """64-bit hash of the job's name, which hellos compare."""
        return int.from_bytes(hashlib.blake2b(self.job.encode(), digest_size=8).digest(), "little")

    @classmethod
    def resolve(
        cls,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        services: int | None = None,
        environ: Mapping[str, str] | None = None,
        **given: Unpack[JobArguments],
    ) -> JobConfig:
        """Take what is None from RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and MLT_SERVICES, MLT_JOB,
        MLT_RENDEZVOUS_PORT, MLT_HOST, MLT_INTERFACE, MLT_JOB_SECRET or MLT_JOB_SECRET_FILE, MLT_INSECURE. Raises
        ConfigError that names the variable."""
        env = os.environ if environ is None else environ
        host, interface, rendezvous_port = given.get("host"), given.get("interface"), given.get("rendezvous_port")
        if host is None and interface is None:
            # Of the two, the address is more specific.
            host = variables.text(env, "MLT_HOST")
            interface = variables.text(env, "MLT_INTERFACE") if host is None else None
        missing = [
            name
            for name, value in (("RANK", rank), ("WORLD_SIZE", world_size))
            if value is None and not variables.text(env, name)
        ]
        if missing and is_elastic(env):
            raise ConfigError(
                f"{VARIABLE} is set: this process is of an elastic job, which gives a rank for each epoch: take the "
                "context from mlt.elastic.Membership, or use hvd.elastic of Horovod's names (docs/elastic.md); for a "
                f"job that is not elastic unset {VARIABLE}, or leave out --min-workers and --max-workers of mlt launch"
            )
        if missing:
            raise ConfigError(_missing_text(missing, env))
        rank = _required(env, "RANK", rank, minimum=0)
        world_size = _required(env, "WORLD_SIZE", world_size, minimum=1)
        if services is None:
            services = variables.integer(env, "MLT_SERVICES", maximum=MAX_RANKS) or 0
        alone = world_size + services == 1
        if rendezvous_port is None:
            rendezvous_port = variables.port(env, "MLT_RENDEZVOUS_PORT")
        if rendezvous_port is None:
            # torch's own store listens on MASTER_PORT.
            master_port = variables.port(env, "MASTER_PORT")
            if master_port is None and not alone:
                raise ConfigError(
                    "rank 0's rendezvous port is not known: set MLT_RENDEZVOUS_PORT, or MASTER_PORT (then it is "
                    "MASTER_PORT + 1000), or pass rendezvous_port="
                )
            rendezvous_port = 1 if master_port is None else port_beside(master_port, RENDEZVOUS_OFFSET)
        master_addr, job = given.get("master_addr"), given.get("job")
        if master_addr is None:
            master_addr = env.get("MASTER_ADDR", "127.0.0.1" if alone else None)
        if master_addr is None:
            raise ConfigError("MASTER_ADDR is not set: set it to the address of rank 0's host, or pass master_addr=")
        return cls(
            rank=rank,
            world_size=world_size,
            services=services,
            job=job if job is not None else env.get("MLT_JOB", DEFAULT_JOB),
            master_addr=without_brackets(master_addr),
            rendezvous_port=rendezvous_port,
            host=None if host is None else without_brackets(host),
            interface=interface,
            secret=secret_module.resolve(given.get("secret"), env),
            insecure=secret_module.is_insecure(env),
        )


def _check(condition: bool, text: str) -> None:
    if not condition:
        raise ConfigError(text)


def _missing_text(missing: list[str], env: Mapping[str, str]) -> str:
    """The remedy without RANK or WORLD_SIZE; names MASTER_ADDR and MASTER_PORT too where they will be missed next."""
    wanted = [*missing, *(name for name in ("MASTER_ADDR", "MASTER_PORT") if not variables.text(env, name))]
    arguments = " and ".join(f"{name.lower()}=" for name in missing)
    return (
        f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set: start with mlt launch or torchrun, "
        f"or set {', '.join(wanted)}, or pass {arguments}"
    )


def _required(env: Mapping[str, str], name: str, given: int | None, *, minimum: int) -> int:
    """One of the variables whose absence ``_missing_text`` has told."""
    value = given if given is not None else variables.integer(env, name, minimum=minimum, maximum=MAX_RANKS)
    assert value is not None
    return value
