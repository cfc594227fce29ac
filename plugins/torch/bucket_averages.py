"""``BucketAverages``: which workers average the gradient buckets of the hook, and by which collective.

The workers average among themselves (``Context.post_all_reduce``) or push to the job's summation services
(``PushPull.push_pull``). The buckets' all-reduces are a stream of their own, so they need no common order with the
other collectives of the group. Absent on purpose: keys and names of buckets (``bucket_keys``), and what follows the
end of an average (``open_bucket``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mlt.torch.process_group import MltProcessGroup
from mlt.torch.registration import mlt_group
from mlt.torch.sparse import SparseAverages, SparseSum

import torch
import torch.distributed as dist
from mlt._gradients import services as services_module
from mlt._shared.counts import count_of
from mlt.errors import SizeMismatchError
from mlt.job.rendezvous import ranks_text

if TYPE_CHECKING:
    from mlt import Context, Operation, PushPull

logger = logging.getLogger("mlt")
STREAM_BIT: Final = 1 << 31
# And those of sparse buckets another, because a thread makes them: no group's number has this bit (mlt.torch.tags).
SPARSE_BIT: Final = 1 << 29
_BY_SERVICES: Final = (torch.float32,)
_AMONG_WORKERS: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class BucketAverages:
    """Averages over the workers that ``transport`` connects; ``services`` as in ``BoundedLossState``."""

    def __init__(self, transport: Context | PushPull | dist.ProcessGroup, services: bool | None) -> None:
        self._post = _averaging(transport, services)
        self._group = _group_of(transport)
        self.context, self.ranks, self.stream = _members(transport)
        self._is_agreed = self._group is None
        self._types = _AMONG_WORKERS if self._post.func is _all_reduce else _BY_SERVICES
        self._sparse: SparseAverages | None = None  # from the first sparse bucket on

    def types(self, *, sparse: bool) -> tuple[torch.dtype, ...]:
        """The element types that can be averaged."""
        return _AMONG_WORKERS if sparse else self._types

    def agree(self, options: Mapping[str, float | None]) -> None:
        """Before the first bucket: every rank of the group averages by this hook, and has the same ``options``.

        A rank without the hook would call the group's own all-reduce, and both would wait for the other's. So the hook
        calls the group too: calls that differ are an error of both, at once.
        """
        if self._is_agreed:
            return
        assert self._group is not None
        try:
            self._group.barrier().wait()
        except RuntimeError as error:
            if isinstance(error.__context__, SizeMismatchError):
                raise RuntimeError(
                    f"rank {self._group.rank()} averages its gradients by bounded_loss_hook, another does not: {error}"
                ) from None
            raise
        _compare_options(self._group, options)
        self._is_agreed = True

    def agree_on_layout(self, what: str, *, sparse: bool, parameters: int, elements: int, last: bool) -> None:
        """Before a bucket's first step: it is sparse on every rank of the group or on none, of as many parameters and
        elements, and the last one everywhere or nowhere.

        Otherwise each would wait for a collective that the others do not call. DDP puts each sparse parameter into a
        bucket of its own, so ranks with other layers may have another number of buckets: with the last one compared,
        all make as many comparisons. ``what``: the bucket, for the error. Raises RuntimeError on every rank.
        """
        if self._group is not None:
            _compare_layout(self._group, f"rank {self._group.rank()}: {what}", sparse, (parameters, elements, last))

    def start(self, tensor: torch.Tensor, *, key: int, name: str, **options: Any) -> Any:
        """Start averaging ``tensor`` in place; takes a push-pull's options. The end of the group waits for it."""
        handle = self._post(tensor, key=key, name=name, **options)
        self._adopt(name, 0, handle)
        return handle

    def start_sparse(
        self,
        tensor: torch.Tensor,
        *,
        name: str,
        done: Callable[[SparseSum], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Start averaging a sparse tensor among the workers; on a thread, call ``done`` with it, or ``failed``."""
        if self._sparse is None:
            everyone = tuple(range(self.context.world_size)) if self.ranks is None else self.ranks
            self._sparse = SparseAverages(self.context, everyone, self.stream | SPARSE_BIT)
        self._sparse.start(tensor, partial(self._adopt, name, SPARSE_BIT), done, failed)

    def _adopt(self, name: str, stream_bit: int, handle: Any) -> None:
        """The group's end waits for it, or fails it."""
        if self._group is not None:
            self._group.adopt(handle, name, STREAM_BIT | self._group.stream | stream_bit)


def _of_all(group: MltProcessGroup, own: Sequence[float]) -> list[list[float]]:
    """Every rank's values."""
    tensor = torch.tensor(own, dtype=torch.float64)
    of_all = [torch.empty_like(tensor) for _ in range(group.size())]
    group.allgather([of_all], [tensor]).wait()
    return [one.tolist() for one in of_all]


def _compare_options(group: MltProcessGroup, options: Mapping[str, float | None]) -> None:
    """Raise RuntimeError on every rank unless all have the same: their sums would mix unrelated elements, or some ranks
    would wait for a comparison that others do not make."""
    of_all = _of_all(group, [-1 if value is None else value for value in options.values()])
    for index, (name, value) in enumerate(options.items()):
        having: dict[float, list[int]] = {}
        for rank, values in enumerate(of_all):
            having.setdefault(values[index], []).append(rank)
        if len(having) == 1:
            continue
        texts = {number: "None" if number == -1 else f"{number:g}" for number in having}
        if isinstance(value, bool):
            texts = {number: str(bool(number)) for number in having}
        found = " and ".join(f"{name}={texts[number]} on group {ranks_text(having[number])}" for number in having)
        raise RuntimeError(f"rank {group.rank()}: BoundedLossState has {found}: give all ranks the same")


def _compare_layout(group: MltProcessGroup, what: str, sparse: bool, content: tuple[int, int, bool]) -> None:
    """Raise RuntimeError on every rank unless ``sparse`` and ``content`` are the same on all."""
    of_all = _of_all(group, [sparse, *content])
    having: dict[str, list[int]] = {}
    if len({is_sparse for is_sparse, *_ in of_all}) > 1:
        for kind in (1.0, 0.0):
            having["sparse" if kind else "dense"] = [rank for rank, one in enumerate(of_all) if one[0] == kind]
        fix = "create the layer with the same `sparse` on all ranks"
    else:
        for rank, (_, parameters, elements, last) in enumerate(of_all):
            text = f"{count_of(int(parameters), 'parameter')} with {count_of(int(elements), 'element')}"
            having.setdefault(f"of {text}{', the last bucket,' if last else ''}", []).append(rank)
        fix = "create the same layers on all ranks, with the same `sparse`, and give DDP the same bucket_cap_mb"
    if len(having) > 1:
        found = " and ".join(f"{text} on group {ranks_text(ranks)}" for text, ranks in having.items())
        raise RuntimeError(f"{what} is {found}: {fix}")


def _group_of(transport: Context | PushPull | dist.ProcessGroup) -> MltProcessGroup | None:
    """The process group "mlt" of the workers that ``transport`` connects; None if they have none."""
    if isinstance(transport, dist.ProcessGroup):
        return mlt_group(transport, "BoundedLossState")
    default = dist.group.WORLD
    if default is None:
        return None
    with suppress(TypeError, RuntimeError):  # the default group has another backend for the host's memory, or none
        group = mlt_group(default, "BoundedLossState")
        if group.context is getattr(transport, "context", transport):
            return group
    return None


def _members(transport: Context | PushPull | dist.ProcessGroup) -> tuple[Context, Sequence[int] | None, int]:
    """The context of the workers that ``transport`` connects, their ranks (None: all) and the stream of the hook."""
    if isinstance(transport, dist.ProcessGroup):
        group = mlt_group(transport, "BoundedLossState")
        return group.context, group.ranks, STREAM_BIT | group.stream
    context: Context = getattr(transport, "context", None) or transport  # type: ignore[assignment]
    return context, None, STREAM_BIT


def _averaging(transport: Context | PushPull | dist.ProcessGroup, services: bool | None) -> partial[Any]:
    """A function that starts averaging a tensor over the workers of ``transport``, and takes a push-pull's options.

    Every rank of a job decides alike.
    """
    from mlt import PushPull  # loads the native library, which importing torch must not

    if isinstance(transport, PushPull):
        if services is False:
            raise ValueError("services is False, and transport is a PushPull, which needs them: give a Context")
        return partial(transport.push_pull, average=True)
    group: MltProcessGroup | None = None
    if isinstance(transport, dist.ProcessGroup):
        group = mlt_group(transport, "BoundedLossState")
        context = group.context
    else:
        context = transport
    if services and context.services == 0:
        raise ValueError(f"rank {context.rank}: services is True, and the job has none: set MLT_SERVICES at every rank")
    is_whole = group is None or len(group.ranks) == context.world_size
    if services and not is_whole:
        raise ValueError("services average over all workers: give the default process group, or services=False")
    if services is None:
        services = is_whole and _services_pay(context)
    if services:
        return partial(PushPull(context).push_pull, average=True)
    return partial(_all_reduce, *_members(transport))


def _services_pay(context: Context) -> bool:
    if context.services == 0:
        return False
    loads = context.service_loads
    pay = services_module.pay(context.hosts, context.world_size, loads)
    by_services, around = services_module.link_loads(context.hosts, context.world_size, loads)
    who = f"the job's {context.services} summation services average" if pay else "the workers average among themselves"
    logger.info(
        "rank %d: %s: by services the busiest link carries %.1f times the gradients, around a ring of the workers %.1f",
        context.rank, who, by_services, around,
    )  # fmt: skip
    return pay


def _all_reduce(
    context: Context,
    ranks: Sequence[int] | None,
    stream: int,
    tensor: torch.Tensor,
    *,
    key: int,
    name: str,
    **options: Any,
) -> Operation:
    """Start the all-reduce of a bucket; it needs no key: all workers have the same buckets in the same order."""
    return context.post_all_reduce(tensor, ranks=ranks, stream=stream, **options)
