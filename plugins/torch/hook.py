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
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Union

from mlt.torch import recorder
from mlt.torch.bucket_averages import BucketAverages
from mlt.torch.bucket_keys import BucketKeys
from mlt.torch.bucket_norms import BucketNorms
from mlt.torch.compilation import untraced, untraced_class
from mlt.torch.contexts import current_context
from mlt.torch.hook_arguments import (
    check_log_every,
    check_norm_limits,
    check_options,
    check_transport,
    names_of,
    recorder_name,
)
from mlt.torch.open_bucket import OpenBucket
from mlt.torch.profiling import recorded
from mlt.torch.resynchronisation import By, Drift, Resynchronisation
from mlt.torch.resynchronisation_schedule import ResynchronisationSchedule
from mlt.torch.rotation import TYPES as ROTATED_TYPES
from mlt.torch.staging import Staged, device_of
from mlt.torch.work import CallQueue

import torch
import torch.distributed as dist
from mlt._gradients.loss import LossSchedule, bound_at, checked
from mlt._gradients.statistics import DEFAULT_HISTORY, OpenStep, StepRecorder
from torch._C._distributed_c10d import GradBucket

if TYPE_CHECKING:
    from mlt import Context, PushPull

logger = logging.getLogger("mlt")


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
    the replicas drift apart: call ``resynchronise_every`` before the first backward pass. ``max_norm_ratio``: before a
    bucket is averaged, the workers compare its norms (``Context.check_norms``); one that is no number, or above this
    many times the median, fails the backward pass at every worker, with an error that names its worker. Up to
    ``max_dropped`` such workers are dropped instead: the average is one of the others. The backward pass waits for each
    comparison; sparse buckets are not compared. None: no comparison. ``history``: number of steps
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
        max_norm_ratio: float | None = None,
        max_dropped: int = 0,
        first_key: int = 0,
        history: int = DEFAULT_HISTORY,
        log_every: int | None = None,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] = (),
    ) -> None:
        bound = checked(loss_bound)
        check_transport(transport)
        check_options(lossy_results=lossy_results, rotate=rotate, services=services, first_key=first_key)
        check_norm_limits(max_norm_ratio, max_dropped)
        check_log_every(log_every)
        super().__init__(history)
        self.loss_bound = bound
        self.lossy_results = lossy_results
        self._rotate = rotate
        self._log_every = log_every
        self._resynchronisation = ResynchronisationSchedule(self._log, is_required=lossy_results, history=history)
        self._averages = BucketAverages(transport if transport is not None else current_context(), services)
        averages = self._averages
        self._norms = (
            BucketNorms(averages.context, averages.ranks, averages.stream, max_norm_ratio, max_dropped)
            if max_norm_ratio is not None
            else None
        )
        self._alike = {"rotate": rotate, "max_norm_ratio": max_norm_ratio, "max_dropped": max_dropped}
        self._keys = BucketKeys(first_key, names_of(named_parameters))
        self._count = 0  # of buckets, over all steps
        self._recorded_as = recorder_name()
        self._staging = CallQueue("mlt-hook")  # its threads start with the first bucket on a GPU

    def synchronise(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start averaging one bucket; returns a future of its average over the workers (in the bucket's own buffer).

        Raises TypeError for a bucket on another device or of a type that cannot be averaged; a failed transfer raises
        from the backward pass. A bucket on a GPU goes through host memory, behind the backward pass's stream. A sparse
        bucket (``nn.Embedding(sparse=True)``) loses nothing, whatever the bound, and is averaged among the workers; one
        that is sparse on some ranks only, or not of the same parameters on all, is a RuntimeError on all.
        """
        buffer = bucket.buffer()
        index = bucket.index()
        is_sparse = buffer.layout == torch.sparse_coo
        device = device_of([buffer], "hook")
        self._check_type(buffer, index)
        self._resynchronisation.check(first=index == 0)
        self._averages.agree(self._alike)
        key = self._key(bucket)
        layer, layers = self._keys.layer(index, bucket.is_last())
        step = self._log.push(first=index == 0, last=bucket.is_last())
        future: torch.futures.Future[torch.Tensor] = (
            torch.futures.Future() if device is None else device.future([buffer])
        )
        # An exception set on a Python future reaches DDP's C++ side as a malformed result; one raised inside then()
        # becomes a real error of the chained future, with its text.
        result: torch.futures.Future[torch.Tensor] = future.then(_value)
        name = f"gradient bucket {index} of step {step.step}{self._keys.label(key)}"
        bound = bound_at(self.loss_bound, step.step, layer)
        self._count += 1
        entry = recorder.begin(name, self._recorded_as, self._count, buffer)
        opened = OpenBucket(name, future, entry, partial(self._record, step))
        if is_sparse:
            self._averages.start_sparse(buffer, name=name, done=opened.set_sparse_result, failed=opened.fail)
            return result
        how: dict[str, Any] = {
            "loss_bound": bound,
            "lossy_results": self.lossy_results,
            "layer": layer,
            "layers": layers,
        }
        average = partial(self._averages.start, key=key, name=name, **how)
        # Every rank has the same steps and keys. What cannot lose is left as it is, to the last bit.
        seed = step.step << 32 | key if self._rotate and bound > 0 else None
        if device is None:
            self._start(opened, average, buffer, seed, lambda: opened.set_result(buffer))
            return result
        staged = Staged(device, device.mark(buffer))
        mirror, copied = staged.mirror(buffer), staged.to_host([buffer])

        def land() -> None:
            device.complete(lambda: opened.set_result(buffer), staged.back([buffer]))

        def post() -> None:
            device.synchronize(copied)
            self._start(opened, average, mirror, seed, land)

        self._staging.submit(opened, post, None)
        return result

    def _start(
        self,
        opened: OpenBucket,
        average: Callable[[torch.Tensor], Any],
        data: torch.Tensor,
        seed: int | None,
        land: Callable[[], None],
    ) -> None:
        """``opened.start``, after the comparison of the norms."""
        if self._norms is None:
            opened.start(average, data, seed, land)
            return
        try:
            scale = self._norms.check(data)
        except Exception as error:  # from the future: DDP then ends the backward pass in order
            opened.fail(error)
            return

        def scaled() -> None:
            if scale != 1:
                data.mul_(scale)
            land()

        opened.start(average, data, seed, scaled)

    def _check_type(self, buffer: torch.Tensor, index: int) -> None:
        is_sparse = buffer.layout == torch.sparse_coo
        types = self._averages.types(sparse=is_sparse)
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
        return self._resynchronisation.drifts

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
        if self._resynchronisation.is_set:
            raise ValueError("resynchronise_every was called before: a state has one model")
        averages = self._averages
        made = Resynchronisation(
            averages.context, averages.ranks, averages.stream, replica, optimizer, by=by, root=root
        )
        self._resynchronisation.set(made, steps, replica, averages.context.rank)

    def resynchronise(self) -> Drift:
        """Make the replicas equal now, for example before they are saved; returns how far they had drifted apart.

        A collective: every rank calls it, between an optimizer's step and the next forward pass. Raises RuntimeError
        without ``resynchronise_every``.
        """
        return self._resynchronisation.run()

    def _key(self, bucket: GradBucket) -> int:
        key = self._keys.find(bucket.parameters())
        if key is None:
            self._resynchronisation.check_covers(bucket.parameters())
            parameters = bucket.parameters()
            self._averages.agree_on_layout(
                f"gradient bucket {bucket.index()}{self._keys.label_of(parameters)}",
                sparse=bucket.buffer().layout == torch.sparse_coo,
                parameters=len(parameters),
                elements=sum(one.numel() for one in parameters),
                last=bucket.is_last(),
            )
            # Only now: a caller that catches the error and tries again compares them again.
            key = self._keys.add(parameters)
        return key

    def _record(self, step: OpenStep, *, pushed_bytes: int, missing_bytes: int, repairs: int) -> None:
        closed = self._log.result(step, pushed_bytes=pushed_bytes, missing_bytes=missing_bytes, repairs=repairs)
        if closed is not None and self._log_every and (closed.step + 1) % self._log_every == 0:
            logger.info("rank %d: %s", self._averages.context.rank, closed)


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


def _value(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
    return future.value()
