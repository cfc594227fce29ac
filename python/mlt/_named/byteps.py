"""The part of BytePS's API that needs no framework: the plugins of all frameworks take it from here.

``init`` and ``shutdown``, ``suspend`` and ``resume``, ranks and sizes, the speed of push-pull, and the tensors that
were declared. The workers sum among themselves, by the controller of Horovod's API: tensors match by name, also without
a declaration.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

from mlt._named import basics, job
from mlt._named.basics import local_rank, local_size, rank, shutdown, size
from mlt._named.reduce_ops import Average, ReduceOp, Sum, chosen_op
from mlt._named.timeline import StepTrace
from mlt._shared import variables
from mlt.errors import ConfigError
from mlt.job import launchers
from mlt.options.limits import MAX_RANKS

__all__ = [
    "check_environment",
    "check_name",
    "declare",
    "declared",
    "get_pushpull_speed",
    "init",
    "is_asynchronous",
    "local_rank",
    "local_size",
    "rank",
    "reduction",
    "refuse_asynchronous",
    "resume",
    "send_order",
    "shutdown",
    "size",
    "suspend",
    "traced_steps",
]

_MAX_TENSORS: Final = 1 << 20
_declared: dict[str, int] = {}
_lock = threading.Lock()
_traced: set[Path] = set()


def init(lazy: bool = True) -> None:
    """Connect all workers of the job, at once: ``lazy`` makes no difference. No-op in a job.

    Rank and size come from the launcher (``mlt.job.launchers``): torchrun, mpirun, srun, or BytePS's variables. Raises
    ConfigError in a scheduler or server of BytePS, which mlt does not need. With BYTEPS_TRACE_ON=1 each worker records
    its operations of some steps.
    """
    check_environment(os.environ)
    was_initialized = basics.is_initialized()
    basics.init()
    steps = traced_steps(os.environ)
    if steps is not None and not was_initialized:
        folder = Path(variables.text(os.environ, "BYTEPS_TRACE_DIR") or ".") / str(local_rank())
        folder.mkdir(parents=True, exist_ok=True)
        job.controller().set_timeline(StepTrace(_trace_file(folder), *steps))


def _trace_file(folder: Path) -> Path:
    """A file that no earlier job of this process has written: before ``suspend``, say."""
    names = chain(["comm.json"], (f"comm-{number}.json" for number in count(2)))
    path = next(one for name in names if (one := (folder / name).resolve()) not in _traced)
    _traced.add(path)
    return path


def traced_steps(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """The first and the last step that BytePS's variables want a trace of; None: no trace. Raises ConfigError."""
    if not variables.flag(environ, "BYTEPS_TRACE_ON"):
        return None
    first = variables.integer(environ, "BYTEPS_TRACE_START_STEP", minimum=1)
    last = variables.integer(environ, "BYTEPS_TRACE_END_STEP", minimum=1)
    first, last = 10 if first is None else first, 20 if last is None else last
    if last < first:
        raise ConfigError(
            f"BYTEPS_TRACE_END_STEP is {last}, before BYTEPS_TRACE_START_STEP, {first}: give a later step, such as "
            f"{first + 10}"
        )
    return first, last


def is_asynchronous(environ: Mapping[str, str]) -> bool:
    """Whether BytePS's variable asks for asynchronous training. Raises ConfigError."""
    return variables.flag(environ, "BYTEPS_ENABLE_ASYNC")


def refuse_asynchronous(what: str) -> None:
    """Raise ConfigError if BytePS's variable asks for asynchronous training, which ``what`` does not do."""
    if is_asynchronous(os.environ):
        raise ConfigError(
            f"BYTEPS_ENABLE_ASYNC is 1: {what} does not train asynchronously; use DistributedOptimizer, or unset the "
            "variable"
        )


def check_environment(environ: Mapping[str, str]) -> None:
    """Raise ConfigError if BytePS's variables ask for what mlt does not do, or have values that cannot be."""
    role = variables.text(environ, "DMLC_ROLE")
    if role is not None and role not in ("worker", "joint"):
        raise ConfigError(
            f"DMLC_ROLE is {role!r}: mlt has no schedulers and servers, the workers sum among themselves; start the "
            "workers only, with DMLC_ROLE=worker"
        )
    is_asynchronous(environ)
    traced_steps(environ)


def suspend() -> None:
    """Leave the job, to ``resume`` in one of another size; all workers call it."""
    basics.shutdown()


def resume(num_workers: int, num_servers: int, global_rank: int, context: Any = None) -> None:
    """Join a job of ``num_workers`` hosts under this rank, after ``suspend``. ``context`` is not used, and no server
    takes part.

    Tensors keep their names and keys. A host has BYTEPS_LOCAL_SIZE workers, one if that is not set. Writes
    DMLC_NUM_WORKER, DMLC_NUM_SERVER and BYTEPS_GLOBAL_RANK, as BytePS does; RANK and WORLD_SIZE; and where rank 0 is
    as MASTER_ADDR and MLT_RENDEZVOUS_PORT if the launcher gave it in variables of its own.
    """
    position = launchers.position(os.environ)
    local_size = variables.integer(os.environ, "BYTEPS_LOCAL_SIZE", minimum=1, maximum=MAX_RANKS) or 1
    if position.master_addr is not None:
        os.environ["MASTER_ADDR"] = position.master_addr
    if position.rendezvous_port is not None:
        os.environ["MLT_RENDEZVOUS_PORT"] = str(position.rendezvous_port)
    os.environ["DMLC_NUM_WORKER"], os.environ["DMLC_NUM_SERVER"] = str(num_workers), str(num_servers)
    os.environ["BYTEPS_GLOBAL_RANK"] = os.environ["RANK"] = str(global_rank)
    os.environ["WORLD_SIZE"] = str(num_workers * local_size)
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):  # of the old job; known again when the workers have connected
        os.environ.pop(name, None)
    init()


class _Speed:
    """The bytes that this worker passed to push-pull until the last call, and when that was."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._controller: Any = None
        self._bytes = 0
        self._since = time.time()

    def take(self) -> tuple[int, float]:
        with self._lock:
            now = time.time()
            own = job.controller() if basics.is_initialized() else None
            total = 0 if own is None else own.pushed_bytes
            rate = (total - (self._bytes if own is self._controller else 0)) / 1e6 / max(now - self._since, 1e-9)
            self._controller, self._bytes, self._since = own, total, now
        return round(now * 1000), rate


_speed = _Speed()


def get_pushpull_speed() -> tuple[int, float]:
    """Time in milliseconds since 1970, and MB/s that this worker gave to push-pull and broadcasts since the last call.

    0 MB/s outside a job.
    """
    return _speed.take()


def declare(name: str) -> int:
    """The key of a tensor's name: names count from 0 in the order of their first declaration. Not required.

    >>> declare("front") < declare("back"), declare("front") == declare("front")
    (True, True)
    """
    with _lock:
        return _declared.setdefault(name, len(_declared))


def declared() -> int:
    """Number of names that were declared."""
    return len(_declared)


def send_order(name: str | None, priority: int) -> int:
    """The priority of a request among those that are ready together: the highest ``priority`` is first, then the tensor
    that was declared first. A tensor without a name comes after those that have one; a new name is declared."""
    return priority * _MAX_TENSORS - (_MAX_TENSORS - 1 if name is None else declare(check_name(name)))


def check_name(name: Any) -> str:
    """Raise TypeError unless a tensor's name is a text."""
    if not isinstance(name, str):
        raise TypeError(f"a tensor's name is {name!r}, of {type(name).__name__}: give a text, such as 'gradient_0'")
    return name


def reduction(op: ReduceOp | str | None, average: bool | None = None) -> ReduceOp:
    """Average or Sum from the arguments ``op`` and, as long ago, ``average``; by default Average.

    BytePS names them by texts. Raises ValueError for others: its servers do not know them either.

    >>> reduction("Sum"), reduction(None)
    (<ReduceOp.Sum: 1>, <ReduceOp.Average: 0>)
    """
    names = {"Average": Average, "Sum": Sum}
    chosen = names.get(op) if isinstance(op, str) else chosen_op(op, average)
    if isinstance(op, str) and average is not None:
        raise ValueError("give op or average, not both")
    if chosen not in (Average, Sum):
        named = op if isinstance(op, str) else ReduceOp(op or 0).name
        raise ValueError(f"op is {named!r}: push-pull has Average and Sum; for others use mlt's API for Horovod")
    return chosen
