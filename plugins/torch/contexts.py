"""The contexts of process groups "mlt": one for the default group and its subgroups, one for a group beside another
backend's.

torch's store carries the job's secret and the address of rank 0, so every way to start ``init_process_group`` works:
``env://``, ``tcp://``, ``file://`` and a store of the caller. A job with summation services takes both from the
environment, because services cannot read the store.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from mlt._shared import known_variables, variables
from mlt._shared.patience import Patience
from mlt._shared.ports import free_port
from mlt.errors import ConfigError, RendezvousError
from mlt.job import interfaces, rendezvous

if TYPE_CHECKING:
    from mlt import Context

_KEY: Final = "mlt"
_MIN_PAUSE_SECONDS: Final = 0.005
_MAX_PAUSE_SECONDS: Final = 0.25

_shared_context: Context | None = None


@dataclass(frozen=True)
class Membership:
    """A group's ranks in the job of ``context``, by group rank. ``owns_context``: the group closes the context."""

    context: Context
    ranks: tuple[int, ...]
    owns_context: bool


def use_context(context: Context | None) -> None:
    """Choose the context for ``init_process_group("mlt")``; the caller still closes it. None removes the choice.

    Others may post transfers on it, but must wait for them by operation: ``poll_cq`` would take a collective's
    completions.
    """
    global _shared_context
    _shared_context = context


def forget_context(context: Context) -> None:
    """Remove the choice of ``context``, if it is the one chosen; called when its group closes it."""
    if _shared_context is context:
        use_context(None)


def current_context() -> Context:
    """The context of the default process group "mlt" (or the one chosen with ``use_context``).

    Raises RuntimeError if neither exists.
    """
    if _shared_context is None:
        raise RuntimeError(
            'no mlt context exists: call torch.distributed.init_process_group("mlt") first, '
            "or mlt.torch.use_context(context)"
        )
    return _shared_context


def join(options: Any, *, checksums: bool | None = None) -> Membership:
    """The membership of a new group with torch's ``options`` (``extended_api`` of ``register_backend``).

    ``checksums``: of a new job; raises ConfigError if that of an existing one is another.

    The default group makes the context that its subgroups share. A group "mlt" beside a default group of another
    backend has a job of its own, whose ranks are the group's.
    """
    ranks = tuple(options.global_ranks_in_group)
    if _shared_context is not None:
        ranks = ranks or tuple(range(options.group_size))
        if _shared_context.world_size <= max(ranks):
            raise ValueError(
                f"the mlt context connects {_shared_context.world_size} workers, the process group wants rank "
                f"{max(ranks)}: start both with the same WORLD_SIZE"
            )
        if checksums not in (None, _shared_context.checksums):
            raise ConfigError(
                f"pg_options has checksums={checksums}, and the job whose connections this group shares "
                f"{'has checksums' if _shared_context.checksums else 'has none'}: give them to init_process_group, or "
                "set MLT_CHECKSUMS on every rank"
            )
        return Membership(_shared_context, ranks, owns_context=False)
    is_default = not ranks
    context = _make_context(options, is_default=is_default, checksums=checksums)
    if is_default:
        use_context(context)
    return Membership(context, tuple(range(options.group_size)), owns_context=True)


def _make_context(options: Any, *, is_default: bool, checksums: bool | None) -> Context:
    # Here: the native library is loaded when a job starts.
    from mlt import Context
    from mlt.options.limits import MAX_RANKS

    rank, size, store = options.group_rank, options.group_size, options.store
    if store is None or (is_default and variables.integer(os.environ, "MLT_SERVICES", maximum=MAX_RANKS)):
        return Context(rank, size, checksums=checksums, **_connect_limit(options.timeout))
    return over_store(store, rank, size, timeout=options.timeout, address=_address_of_rank_0, checksums=checksums)


def over_store(
    store: Any,
    rank: int,
    size: int,
    *,
    timeout: timedelta,
    address: Callable[[Any], str],
    checksums: bool | None = None,
) -> Context:
    """The context of a job of its own, whose ranks meet through ``store``.

    ``address``: called at rank 0 with the store, for the address at which rank 0 listens.
    """
    from mlt import Context
    from mlt.job.configuration import JobConfig
    from mlt.options import arguments, times

    known_variables.warn_once()
    # A wrong variable is an error before this rank waits for rank 0.
    JobConfig.resolve(rank=rank, world_size=size, services=0, master_addr="localhost", rendezvous_port=1)
    arguments.resolve({}, os.environ)
    own = address(store) if rank == 0 else ""
    limit = _connect_limit(timeout)
    seconds = limit.get("connect_timeout") or times.resolve({}, os.environ).get(
        "connect_timeout", times.CONNECT_SECONDS
    )
    address_of_0, port = _meeting_point(store, rank, size, seconds, own)
    return Context(
        rank,
        size,
        services=0,
        secret=_secret_of(store, rank),
        master_addr=address_of_0,
        rendezvous_port=port,
        checksums=checksums,
        **limit,
    )


def _connect_limit(timeout: timedelta) -> Any:
    """The argument of ``Context`` that limits the start of the job to a group's ``timeout``, if that is shorter than
    the environment's limit."""
    from mlt.options import times

    limit = timeout.total_seconds()
    maximum = times.resolve({}, os.environ).get("connect_timeout", times.CONNECT_SECONDS)
    return {"connect_timeout": limit} if limit < maximum else {}


def _meeting_point(store: Any, rank: int, size: int, seconds: float, own: str) -> tuple[str, int]:
    """The address at which rank 0 listens for the others: its ``own``, which the others wait for in the store.

    The n-th group of a rank over one store reads what rank 0 wrote for its n-th group.
    """
    turn = store.add(f"{_KEY}/groups/{rank}", 1)
    key = f"{_KEY}/rank 0/{turn}"
    if rank == 0:
        port = variables.port(os.environ, "MLT_RENDEZVOUS_PORT") or (free_port(own) if size > 1 else 1)
        store.set(key, json.dumps([own, port]))
        return own, port
    # Polled: a wait of torch's is silent, and it logs a warning of its own about every one that ends in vain.
    patience, deadline, pause = Patience(), time.monotonic() + seconds, _MIN_PAUSE_SECONDS
    try:
        while not store.check([key]):
            if (left := deadline - time.monotonic()) <= 0:
                raise RendezvousError(
                    f"rank {rank}: rank 0 did not write its address to torch's store within {seconds:g} s; "
                    f"{_missing_text(store, rank, size, turn)} did not come; check that each is running, and that all "
                    "ranks have the same init_method or store",
                    peer=0,
                )
            patience.ask(
                lambda: (
                    f"rank {rank}: still waiting in torch's store for {_missing_text(store, rank, size, turn)} of "
                    f"{size} (times out {seconds:g} s after its start)"
                )
            )
            time.sleep(min(pause, left))
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)
        address, port = json.loads(store.get(key))
    except RuntimeError as error:
        raise RendezvousError(
            f"rank {rank}: torch's store failed while this rank waited for rank 0's address ({error}); check that rank "
            "0 is running, and that all ranks have the same init_method or store",
            peer=0,
        ) from None
    return str(address), int(port)


def _missing_text(store: Any, rank: int, size: int, turn: int) -> str:
    """The ranks that have not come to their n-th group. Rank 0 comes last where it waits in torch's store itself."""
    missing = [one for one in range(size) if one != rank and store.add(f"{_KEY}/groups/{one}", 0) < turn]
    others = [one for one in missing if one != 0]
    if not others or 0 not in missing:
        return rendezvous.ranks_text(missing or [0])
    return f"{rendezvous.ranks_text(others)} and rank 0, which may wait for {'it' if len(others) == 1 else 'them'}"


def _address_of_rank_0(store: Any) -> str:
    """The host of torch's own store, which runs at rank 0; without one (a file), this host's address."""
    return host_of(store) or interfaces.machine_address() or "127.0.0.1"


def host_of(store: Any) -> str:
    """The host of ``store``, as its user named it; empty for one without a host."""
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    host = getattr(store, "host", None)
    return host if isinstance(host, str) else ""


def _secret_of(store: Any, rank: int) -> str | None:
    """The job's secret from torch's store, where rank 0 writes a new one; None if the environment has one.

    A group created again over the same store uses the previous group's secret: rank 0 does not replace it, because the
    other ranks read whatever is stored.
    """
    key = f"{_KEY}/job_secret"
    own = os.environ.get("MLT_JOB_SECRET") or os.environ.get("MLT_JOB_SECRET_FILE")
    if rank == 0:
        before = "" if own or not store.check([key]) else store.get(key).decode()
        made = "" if own else before or secrets.token_hex(32)
        store.set(key, made)
        return made or None
    # Rank 0 has its own secret, and this rank needs the same; the rendezvous reports a mismatch.
    return None if own else store.get(key).decode() or None
