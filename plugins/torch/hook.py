"""DDP communication hook: averages ready gradient buckets, of which a bounded part may be lost.

``DistributedDataParallel.register_comm_hook(BoundedLossState(loss_bound=0.1), bounded_loss_hook)``. The training loop
is unchanged, and no other process is needed: the workers average among themselves (``Context.all_reduce``). In a job
with summation services that can be faster, they push to these and pull the averages (push-pull after BytePS, OSDI
2020). Either way the sums may lose up to ``loss_bound`` and the results are reliable, so every replica applies the same
bits (MLT, NSDI 2024, section 4.1 and appendix A). With ``lossy_results`` the results may lose as much, as in the paper;
replicas then drift apart, and are made equal again every so many steps.

This module has no ``from __future__ import annotations``: DDP compares the hook's annotations with the real types.
"""

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Union

from mlt.torch import recorder
from mlt.torch.compilation import untraced, untraced_class
from mlt.torch.contexts import current_context
from mlt.torch.hook_arguments import check_log_every, check_options, check_transport, names_of, recorder_name
from mlt.torch.process_group import MltProcessGroup
from mlt.torch.profiling import recorded
from mlt.torch.registration import mlt_group
from mlt.torch.resynchronisation import By, Drift, Resynchronisation
from mlt.torch.rotation import TYPES as ROTATED_TYPES
from mlt.torch.rotation import restore, rotate
from mlt.torch.sparse import SparseAverages, SparseSum
from mlt.torch.staging import Staged, device_of
from mlt.torch.work import CallQueue, failure_of

import torch
import torch.distributed as dist
from mlt._gradients import services as services_module
from mlt._gradients.loss import LossSchedule, bound_at, checked
from mlt._gradients.statistics import DEFAULT_HISTORY, OpenStep, StepRecorder
from mlt.errors import PeerFailedError, SizeMismatchError
from mlt.job.rendezvous import ranks_text
from torch._C._distributed_c10d import GradBucket

if TYPE_CHECKING:
    from mlt import Context, Operation, PushPull

logger = logging.getLogger("mlt")
# The buckets' all-reduces are a stream of their own: they need no common order with other collectives of the group.
STREAM_BIT = 1 << 31
# And those of sparse buckets another, because a thread makes them: no group's number has this bit (mlt.torch.tags).
_SPARSE_BIT = 1 << 29
_SHOWN_NAMES = 3
_BY_SERVICES = (torch.float32,)
_AMONG_WORKERS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@untraced_class
class BoundedLossState(StepRecorder):
    """State of the hook between steps: how buckets are averaged, their keys, the statistics.

    ``transport``: whose workers average. A process group "mlt" (that of the model's DDP, if it has one of its own) or a
    ``Context``: its workers; a ``PushPull``: over its services. Default: the context of the process group "mlt".
    ``services``: whether the job's summation services average, not the workers among themselves. None: if their links
    then carry clearly less than the workers' otherwise (``mlt._gradients.services``), which a line of the log says.
    ``loss_bound`` in [0, 1), or text such as "10%": max fraction of a bucket's elements that may be lost per step, of a
    push or in each hop between two workers; 0 is fully reliable. Or a function of step and layer (``warm_up``,
    ``phases``), the same on every rank; its step counts this state's backward passes. ``first_key``: first push-pull
    key of this state (two states that share a ``PushPull`` need separate ranges). ``rotate``: spread each bucket that
    may lose over blocks of 4,096 elements before it is sent, so that a lost segment takes a little of each element, not
    all of a few (``mlt.torch.rotation``); float32 and float64 only. It costs CPU time. ``lossy_results``: the averages
    may lose up to ``loss_bound`` as well; a worker then keeps, of what it misses, the mean of the terms that it has. So
    the replicas drift apart: call ``resynchronise_every`` before the first backward pass. ``history``: number of steps
    whose statistics are kept. ``log_every``: every so many steps the logger "mlt" gets the step's, at level INFO.
    ``named_parameters``: the model's, so that errors name the parameters of a bucket, not only its number.

    Services divide by the contributions that arrived, per element. Among themselves, a worker that misses a sum of
    others gives its own term their weights: so losses do not make the average smaller.

    Used from the thread that runs the backward pass; ``steps`` and ``latest`` may be read from any thread.

    >>> state = BoundedLossState(loss_bound=warm_up(0.1, steps=100))  # doctest: +SKIP
    >>> model.register_comm_hook(state, bounded_loss_hook)  # doctest: +SKIP
    >>> state.latest.loss_fraction  # doctest: +SKIP
    """

    def __init__(
        self,
        transport: Union["Context", "PushPull", dist.ProcessGroup] | None = None,
        *,
        loss_bound: float | str | LossSchedule = 0.1,
        services: bool | None = None,
        rotate: bool = False,
        lossy_results: bool = False,
        first_key: int = 0,
        history: int = DEFAULT_HISTORY,
        log_every: int | None = None,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] = (),
    ) -> None:
        bound = checked(loss_bound)
        check_transport(transport)
        check_options(lossy_results=lossy_results, rotate=rotate, services=services, first_key=first_key)
        check_log_every(log_every)
        super().__init__(history)
        self.loss_bound = bound
        self.lossy_results = lossy_results
        self._rotate = rotate
        self._log_every = log_every
        self._resynchronisation: Resynchronisation | None = None
        self._resync_steps = 0
        self._synchronised_at = 0  # steps
        self._drifts: deque[Drift] = deque(maxlen=history)
        transport = transport if transport is not None else current_context()
        self._transport = transport
        self._post: partial[Any] = _averaging(transport, services)
        self._group = _group_of(transport)
        self._is_agreed = self._group is None
        self._types = _AMONG_WORKERS if self._post.func is _all_reduce else _BY_SERVICES
        self._next_key = first_key
        self._keys: dict[Hashable, int] = {}
        self._names = names_of(named_parameters)
        self._labels: dict[int, str] = {}  # by key
        self._bucket_count = 0
        self._count = 0  # of buckets, over all steps
        self._recorded_as = recorder_name()
        self._staging = CallQueue("mlt-hook")  # its threads start with the first bucket on a GPU
        self._sparse: SparseAverages | None = None  # from the first sparse bucket on

    def synchronise(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start averaging one bucket; returns a future of its average over the workers (in the bucket's own buffer).

        Raises TypeError for a bucket on another device or of a type that cannot be averaged; a failed transfer raises
        from the backward pass. A bucket on a GPU goes through host memory, behind the backward pass's stream. A sparse
        bucket (``nn.Embedding(sparse=True)``) loses nothing, whatever the bound, and is averaged among the workers.
        """
        buffer = bucket.buffer()
        index = bucket.index()
        is_sparse = buffer.layout == torch.sparse_coo
        device = device_of([buffer], "hook")
        self._check_type(buffer, index)
        if self.lossy_results and self._resynchronisation is None:
            raise RuntimeError(
                "lossy_results lets the replicas drift apart: before the first backward pass call "
                "state.resynchronise_every(steps, replica, optimizer)"
            )
        is_overdue = index == 0 and self._log.started - self._synchronised_at > 2 * self._resync_steps
        if self.lossy_results and is_overdue:
            raise RuntimeError(
                f"the replicas were to be re-synchronised every {self._resync_steps} steps, and were not in twice as "
                "many: give resynchronise_every the model whose forward pass the program calls, in training mode"
            )
        if not self._is_agreed:
            self._agree()
        key = self._key(bucket)
        layer, layers = self._layer(index, bucket.is_last())
        step = self._log.push(first=index == 0, last=bucket.is_last())
        future: torch.futures.Future[torch.Tensor] = (
            torch.futures.Future() if device is None else device.future([buffer])
        )
        # An exception set on a Python future reaches DDP's C++ side as a malformed result; one raised inside then()
        # becomes a real error of the chained future, with its text.
        result: torch.futures.Future[torch.Tensor] = future.then(_value)
        name = f"gradient bucket {index} of step {step.step}{self._labels[key]}"
        bound = bound_at(self.loss_bound, step.step, layer)
        how = {"loss_bound": bound, "lossy_results": self.lossy_results, "layer": layer, "layers": layers}
        average = partial(self._post, key=key, name=name, **how)
        self._count += 1
        entry = recorder.begin(name, self._recorded_as, self._count, buffer)
        if is_sparse:
            done = partial(self._finish_sparse, name, step, future, entry)
            self._sparse_averages().start(
                buffer, partial(self._adopt, name, _SPARSE_BIT), done, partial(_fail, name, future, entry)
            )
            return result
        # Every rank has the same steps and keys. What cannot lose is left as it is, to the last bit.
        seed = step.step << 32 | key if self._rotate and bound > 0 else None
        if device is None:
            self._start(average, buffer, name, step, future, seed, lambda: future.set_result(buffer), entry)
            return result
        staged = Staged(device, device.mark(buffer))
        mirror, copied = staged.mirror(buffer), staged.to_host([buffer])

        def post() -> None:
            device.synchronize(copied)
            self._start(average, mirror, name, step, future, seed, land, entry)

        def land() -> None:
            device.complete(lambda: future.set_result(buffer), staged.back([buffer]))

        self._staging.submit(_Posting(name, future), post, None)
        return result

    def _check_type(self, buffer: torch.Tensor, index: int) -> None:
        is_sparse = buffer.layout == torch.sparse_coo
        types: tuple[torch.dtype, ...] = _AMONG_WORKERS if is_sparse else self._types
        if self._rotate and not is_sparse:
            types = tuple(one for one in types if one in ROTATED_TYPES)
        on_device = device_of([buffer], "hook") is not None
        if buffer.dtype in types and (on_device or buffer.device.type == "cpu"):
            return
        known = ", ".join(str(one).removeprefix("torch.") for one in types)
        rotating = ", with rotate=True," if self._rotate else ""
        raise TypeError(
            f"gradient bucket {index} is {buffer.dtype} on {buffer.device}; the hook averages{rotating} {known} in "
            "memory of the host or of a CUDA device: keep these parameters so, or synchronise them without this "
            "hook"
        )

    @property
    def drifts(self) -> tuple[Drift, ...]:
        """Distance of the replicas before each re-synchronisation, oldest first."""
        return tuple(self._drifts)

    def resynchronise_every(
        self,
        steps: int,
        replica: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        by: By = "mean",
        root: int = 0,
    ) -> None:
        """Make the replicas equal again every ``steps`` backward passes, before the next forward pass of ``replica``.

        ``replica``: the DDP model. Its parameters, and the floating-point tensors of ``optimizer``'s state, become
        their mean over the ranks, or with ``by="broadcast"`` those of the group's rank ``root``, equal to the last bit.
        Without the optimizer, replicas with momentum drift apart again at once. Every rank calls it once, alike, and
        makes the same forward passes in training mode: DDP's ``join()`` does not go together with it. Each
        re-synchronisation measures how far the replicas had drifted: ``drifts``, ``StepStatistics.drift``, and a line
        of the log. Raises ValueError.

        >>> state = BoundedLossState(loss_bound=0.1, lossy_results=True)  # doctest: +SKIP
        >>> state.resynchronise_every(100, replica, optimizer)  # doctest: +SKIP
        """
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"steps is {steps!r}; re-synchronise every 1 step or more")
        if self._resynchronisation is not None:
            raise ValueError("resynchronise_every was called before: a state has one model")
        context, ranks, stream = _members(self._transport)
        made = Resynchronisation(context, ranks, stream, replica, optimizer, by=by, root=root)
        self._resynchronisation, self._resync_steps = made, steps
        replica.register_forward_pre_hook(self._before_forward)
        if self.lossy_results:
            made.mark_drifting()

    def resynchronise(self) -> Drift:
        """Make the replicas equal now, for example before they are saved; returns how far they had drifted apart.

        A collective: every rank calls it, between an optimizer's step and the next forward pass. Raises RuntimeError
        without ``resynchronise_every``.
        """
        if self._resynchronisation is None:
            raise RuntimeError("call resynchronise_every(steps, replica, optimizer) first")
        self._synchronised_at = self._log.started
        drift = self._resynchronisation.run(self._synchronised_at)
        self._drifts.append(drift)
        self._log.drifted(drift.greatest)
        logger.info("rank %d: %s", _members(self._transport)[0].rank, drift)
        return drift

    def _before_forward(self, replica: torch.nn.Module, _inputs: Any) -> None:
        is_due = self._log.started - self._synchronised_at >= self._resync_steps
        if not is_due or not replica.training or not torch.is_grad_enabled():
            return
        if getattr(getattr(replica, "_join_config", None), "enable", False):
            raise RuntimeError(
                "resynchronise_every and DDP's join() do not go together: a rank without input would wait"
            )
        self.resynchronise()

    def _agree(self) -> None:
        """Before the first bucket: every rank of the group averages by this hook.

        A rank without it would call the group's own all-reduce, and both would wait for the other's. So the hook calls
        the group too: calls that differ are an error of both, at once.
        """
        assert self._group is not None
        try:
            self._group.barrier().wait()
        except RuntimeError as error:
            if isinstance(error.__context__, SizeMismatchError):
                raise RuntimeError(
                    f"rank {self._group.rank()} averages its gradients by bounded_loss_hook, another does not: {error}"
                ) from None
            raise
        self._compare_rotation()
        self._is_agreed = True

    def _compare_rotation(self) -> None:
        """Ranks that rotate and ranks that do not would add up what has nothing in common."""
        assert self._group is not None
        own = torch.tensor([self._rotate], dtype=torch.uint8)
        of_all = [torch.empty_like(own) for _ in range(self._group.size())]
        self._group.allgather([of_all], [own]).wait()
        rotating = [rank for rank, flag in enumerate(of_all) if flag.item()]
        if 0 < len(rotating) < len(of_all):
            others = [rank for rank, flag in enumerate(of_all) if not flag.item()]
            raise RuntimeError(
                f"rank {self._group.rank()}: BoundedLossState has rotate=True on group {ranks_text(rotating)} and "
                f"rotate=False on group {ranks_text(others)}: give all ranks the same"
            )

    def _start(
        self,
        average: Callable[[torch.Tensor], Any],
        data: torch.Tensor,
        name: str,
        step: OpenStep,
        future: torch.futures.Future[torch.Tensor],
        seed: int | None,
        land: Callable[[], None],
        entry: recorder.Entry | None,
    ) -> None:
        if seed is not None:
            rotate(data, seed)

        def finished() -> None:
            if seed is not None:
                restore(data, seed)
            land()

        try:
            handle = average(data)
            self._adopt(name, 0, handle)
        except Exception as error:
            if entry is not None:
                entry.end(error)
            if not isinstance(error, PeerFailedError):
                raise
            _fail(name, future, None, error)  # of a rank that is gone: an error of the bucket, like one in progress
            return
        handle.add_done_callback(partial(self._finish, handle, name, step, future, finished, entry))
        handle.report_if_slow()

    def _key(self, bucket: GradBucket) -> int:
        """A key per set of parameters, numbered in order of first appearance.

        DDP regroups the parameters after the first backward pass, so a bucket's index does not identify its content.
        The service needs the same element count under a key every time. Every rank has the same buckets in the same
        order, and so gives them the same keys.
        """
        parameters = tuple(id(parameter) for parameter in bucket.parameters())
        key = self._keys.get(parameters)
        if key is None:
            if (
                self.lossy_results
                and self._resynchronisation
                and not self._resynchronisation.covers(bucket.parameters())
            ):
                raise RuntimeError(
                    "the hook averages parameters that resynchronise_every does not make equal again: give each model "
                    "a state of its own, and resynchronise_every the DDP model that the hook is registered on"
                )
            key = self._keys[parameters] = self._next_key
            self._labels[key] = self._label(parameters)
            self._next_key += 1
        return key

    def _label(self, parameters: Sequence[int]) -> str:
        """The names of these parameters, in brackets; empty if they are not known."""
        names = [self._names[one] for one in parameters if one in self._names]
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        return f" ({', '.join(names[:_SHOWN_NAMES])}{more})" if names else ""

    def _layer(self, index: int, is_last: bool) -> tuple[int, int]:
        """Bucket index to (layer, layers): the last bucket holds the front layers, which the next forward needs first.

        The bucket count is known with the last bucket; until then the previous step's count is used.
        """
        if is_last:
            self._bucket_count = index + 1
        layers = max(self._bucket_count, index + 1)
        return layers - 1 - index, layers

    def _finish(
        self,
        handle: Any,
        name: str,
        step: OpenStep,
        future: torch.futures.Future[torch.Tensor],
        land: Callable[[], None],
        entry: recorder.Entry | None,
        *_: object,
    ) -> None:
        """Completion callback, on a thread of the library: sets the future's result, with ``land``, or exception."""
        try:
            done = handle.wait(timeout=0)
        except Exception as error:
            _fail(name, future, entry, error)
            return
        if entry is not None:
            entry.end(None)
        self._record(step, pushed_bytes=done.bytes, missing_bytes=done.missing_bytes, repairs=done.repairs)
        try:
            land()
        except Exception as error:  # of the rotation, or the copy back to a GPU: nobody else would complete the future
            _fail(name, future, None, error)

    def _adopt(self, name: str, stream_bit: int, handle: Any) -> None:
        """The group's end waits for it, or fails it."""
        if self._group is not None:
            self._group.adopt(handle, name, STREAM_BIT | self._group.stream | stream_bit)

    def _sparse_averages(self) -> SparseAverages:
        if self._sparse is None:
            context, ranks, stream = _members(self._transport)
            everyone = tuple(range(context.world_size)) if ranks is None else ranks
            self._sparse = SparseAverages(context, everyone, stream | _SPARSE_BIT)
        return self._sparse

    def _finish_sparse(
        self,
        name: str,
        step: OpenStep,
        future: torch.futures.Future[torch.Tensor],
        entry: recorder.Entry | None,
        average: SparseSum,
    ) -> None:
        if entry is not None:
            entry.end(None)
        self._record(step, pushed_bytes=average.bytes, missing_bytes=0, repairs=average.repairs)
        future.set_result(average.total)

    def _record(self, step: OpenStep, **of_bucket: int) -> None:
        closed = self._log.result(step, **of_bucket)
        if closed is not None and self._log_every and (closed.step + 1) % self._log_every == 0:
            logger.info("rank %d: %s", _members(self._transport)[0].rank, closed)


def _fail(
    name: str, future: torch.futures.Future[torch.Tensor], entry: recorder.Entry | None, error: Exception
) -> None:
    failure = error if name in str(error) else failure_of(name, error)
    if entry is not None:
        entry.end(failure)
    # (torch's annotation gives the result's type here; the method takes any exception.)
    future.set_exception(failure)  # type: ignore[arg-type]


class _Posting:
    """The posting of a bucket in turn; its failure is the future's."""

    def __init__(self, name: str, future: torch.futures.Future[torch.Tensor]) -> None:
        self._name = name
        self._future = future

    def run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            _fail(self._name, self._future, None, error)

    def publish(self, result: Any) -> None:
        """No result to publish: the caller that averages completes the future."""


@untraced
def bounded_loss_hook(state: BoundedLossState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook for ``DistributedDataParallel.register_comm_hook(state, bounded_loss_hook)``.

    Returns a future of the bucket's flat buffer, averaged over the workers that contributed to each element, or of a
    sparse bucket's average.
    """
    if isinstance(bucket, tuple):
        raise TypeError(
            f"bounded_loss_hook was called with a {type(bucket).__name__}, not with a bucket of gradients: Dynamo's "
            'optimize_ddp="python_reducer" gives hooks one tensor at a time; keep its default, True'
        )
    future: torch.futures.Future[torch.Tensor] = recorded("bounded_loss_hook", lambda: state.synchronise(bucket))
    return future


def _group_of(transport: Union["Context", "PushPull", dist.ProcessGroup]) -> MltProcessGroup | None:
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


def _members(
    transport: Union["Context", "PushPull", dist.ProcessGroup],
) -> tuple["Context", Sequence[int] | None, int]:
    """The context of the workers that ``transport`` connects, their ranks (None: all) and the stream of the hook."""
    if isinstance(transport, dist.ProcessGroup):
        group = mlt_group(transport, "BoundedLossState")
        return group.context, group.ranks, STREAM_BIT | group.stream
    context: Context = getattr(transport, "context", None) or transport  # type: ignore[assignment]
    return context, None, STREAM_BIT


def _averaging(transport: Union["Context", "PushPull", dist.ProcessGroup], services: bool | None) -> "partial[Any]":
    """A function that starts averaging a tensor over the workers of ``transport``, and takes a push-pull's options.

    ``services`` as in ``BoundedLossState``; every rank of a job decides alike.
    """
    from mlt import PushPull

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


def _services_pay(context: "Context") -> bool:
    if context.services == 0:
        return False
    pay = services_module.pay(context.hosts, context.world_size)
    by_services, around = services_module.link_loads(context.hosts, context.world_size)
    who = f"the job's {context.services} summation services average" if pay else "the workers average among themselves"
    logger.info(
        "rank %d: %s: by services the busiest link carries %.1f times the gradients, around a ring of the workers %.1f",
        context.rank, who, by_services, around,
    )  # fmt: skip
    return pay


def _all_reduce(
    context: "Context",
    ranks: Sequence[int] | None,
    stream: int,
    tensor: torch.Tensor,
    *,
    key: int,
    name: str,
    **options: Any,
) -> "Operation":
    """Start the all-reduce of a bucket; it needs no key: all workers have the same buckets in the same order."""
    return context.post_all_reduce(tensor, ranks=ranks, stream=stream, **options)


def _value(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
    return future.value()
