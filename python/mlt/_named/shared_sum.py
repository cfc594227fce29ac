"""``SharedSum``: a vector to which every rank adds at its own pace, for asynchronous training; ``SharedParameters``:
such sums for the parameters of a model.

Each rank holds a part of the vector. A rank that adds sends each holder its part of the addend; the holder adds it, and
returns its part of the sum as of then. So a rank waits for the holders' threads, never for another rank's addend. What
two exchanges of different ranks return may differ in how many addends of others the parts contain.

The holder's work runs on the context's callback thread. A rank must therefore not leave the job before all others have
added their last: ``before_stop`` of the job waits for that.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from mlt._named import channel, elements, job
from mlt._named.controller import Controller, EndedError, HorovodInternalError, RejectedError
from mlt._named.elements import Bytes
from mlt._named.execution import parts_of
from mlt._named.requests import Request
from mlt.errors import MltError

if TYPE_CHECKING:
    from mlt.operation import Operation

Array = npt.NDArray[Any]

_TAG: Final = channel.TAG + 1
_END: Final = "end of asynchronous training"
# While a sum is registered, its receives refer to it: one that the program forgets still serves the others.
_registered: list[SharedSum] = []


class SharedSum:
    """All ranks create it, with the same ``initial`` bytes of elements ``dtype``, and wait for each other to do so.

    ``layout``: what else must be the same on all ranks. Raises RejectedError on all ranks if they differ in it or in
    the values, EndedError if the job has ended.

    >>> shared = SharedSum(controller, np.zeros(4, np.float32).view(np.uint8), "float32", "weights of 4")
    >>> shared.exchange(np.ones(4, np.float32).view(np.uint8)).view(np.float32)  # no other rank has added yet
    array([1., 1., 1., 1.], dtype=float32)
    """

    def __init__(self, controller: Controller, initial: Bytes, dtype: str, layout: str) -> None:
        self._controller = controller
        self._dtype = dtype
        number = sum(one._controller is controller for one in _registered)
        self._push_tag, self._value_tag = _TAG + 2 * number, _TAG + 2 * number + 1
        self._agree(initial, layout, number)
        item = elements.item_bytes(dtype)
        sizes = [count * item for count in parts_of(initial.size // item, controller.size)]
        self._ends = [0, *(int(end) for end in np.cumsum(sizes))]
        self._lock = threading.Lock()
        self._part: Bytes = initial[self._slice(controller.rank)].copy()
        _registered.append(self)
        for rank in self._others():
            if self._part.size:
                self._receive(rank, np.empty_like(self._part))

    @property
    def controller(self) -> Controller:
        """The job's controller, for as long as it lasts."""
        return self._controller

    def exchange(self, addend: Bytes) -> Bytes:
        """Add to the sum, and return it: with this addend, and those of the others that have arrived.

        Raises EndedError if a rank is gone.
        """
        result: Bytes = np.empty_like(addend)
        context = self._controller.context
        operations: list[Operation] = []
        try:
            for rank in self._others():
                part = self._slice(rank)
                if context is not None and part.start < part.stop:
                    operations.append(context.post_recv(result[part], from_=rank, tag=self._value_tag))
                    operations.append(context.post_send(addend[part], to=rank, tag=self._push_tag))
            own = self._slice(self._controller.rank)
            with self._lock:
                elements.add(self._part, addend[own], self._dtype)
                result[own] = self._part
            for operation in operations:
                operation.wait()
        except MltError as error:
            raise EndedError(f"rank {self._controller.rank}: asynchronous training cannot continue: {error}") from error
        return result

    def _agree(self, initial: Bytes, layout: str, number: int) -> None:
        """Raise RejectedError on all ranks unless they have the same layout and values."""
        described = f"{self._dtype} {initial.size} {layout}".encode()
        own = [hashlib.sha256(one).hexdigest() for one in (described, initial.tobytes())]
        texts = job.gather_bytes(self._controller, json.dumps(own).encode(), f"asynchronous sum {number}")
        for index, what in enumerate(("names, shapes and types", "values")):
            found = [json.loads(text)[index] for text in texts]
            differing = [str(rank) for rank, one in enumerate(found) if one != found[0]]
            if differing:
                raise RejectedError(
                    f"asynchronous training: the {what} of the parameters on rank(s) {', '.join(differing)} differ "
                    "from those on rank 0 at the first step; give all ranks the same model, and before it call "
                    "broadcast_parameters (with TensorFlow: broadcast_variables)"
                )

    def _slice(self, rank: int) -> slice:
        return slice(self._ends[rank], self._ends[rank + 1])

    def _others(self) -> list[int]:
        return [rank for rank in range(self._controller.size) if rank != self._controller.rank]

    def _receive(self, rank: int, buffer: Bytes) -> None:
        """Serve the next addend of a rank."""
        context = self._controller.context
        if context is None:
            return

        def received(operation: Operation) -> None:
            try:
                operation.wait()
                with self._lock:
                    elements.add(self._part, buffer, self._dtype)
                    value = self._part.copy()
                self._receive(rank, buffer)
                context.post_send(value, to=rank, tag=self._value_tag).add_done_callback(_forget)
            except MltError:
                return  # the rank is gone, or this one ends: its next exchange raises the error

        receive = context.post_recv(buffer, from_=rank, tag=self._push_tag, timeout=channel.FOREVER_SECONDS)
        receive.expect_idle().add_done_callback(received)


class SharedParameters:
    """The parameters of a model in asynchronous training, as numpy's arrays: a ``SharedSum`` for each element type.

    It begins with the first step in a job, and again in the next job.
    """

    def __init__(self) -> None:
        self._sums: list[tuple[SharedSum, list[int]]] = []
        self._layout = ""

    def exchange(self, before: Sequence[Array], after: Sequence[Array], names: Sequence[str]) -> list[Array]:
        """Add this rank's change of the parameters to the sum of all ranks; the parameters as of then.

        The first call waits for that of all ranks, and raises RejectedError on all if their parameters ``before``
        differ. Raises EndedError if a rank is gone, ValueError if the parameters are not those of the first call, or
        not of floating point.
        """
        own = job.controller()
        if own.size == 1:
            return list(after)
        layout = ", ".join(f"{name} {one.dtype.name} {one.shape}" for name, one in zip(names, before, strict=True))
        if not self._sums or self._sums[0][0].controller is not own:
            self._begin(own, before, names, layout)
        elif layout != self._layout:
            raise ValueError(
                f"asynchronous training began with the parameters {self._layout}, and this step has {layout}: give an "
                "optimizer the same parameters in every step"
            )
        results = list(after)
        for shared, places in self._sums:
            changes = np.concatenate([(after[place] - before[place]).reshape(-1) for place in places])
            current = shared.exchange(changes.view(np.uint8)).view(changes.dtype)
            at = 0
            for place in places:
                results[place] = current[at : at + after[place].size].reshape(after[place].shape)
                at += after[place].size
        return results

    def _begin(self, own: Controller, before: Sequence[Array], names: Sequence[str], layout: str) -> None:
        by_type: dict[str, list[int]] = {}
        for place, (name, one) in enumerate(zip(names, before, strict=True)):
            if one.dtype.name not in elements.DTYPES or not elements.is_float(one.dtype.name):
                raise ValueError(
                    f"asynchronous training needs parameters of floating point; {name!r} has the type {one.dtype.name}"
                )
            by_type.setdefault(one.dtype.name, []).append(place)
        sums = []
        for dtype, places in sorted(by_type.items()):
            initial = np.concatenate([before[place].reshape(-1) for place in places])
            sums.append((SharedSum(own, initial.view(np.uint8), dtype, layout), places))
        self._sums, self._layout = sums, layout


def _forget(operation: Operation) -> None:
    """Take the completion of a value's send; a failure is found by what this rank exchanges next."""
    try:
        operation.wait()
    except MltError:
        return


def finish(controller: Controller) -> None:
    """Serve the other ranks until all have called this, or one is gone."""
    try:
        controller.submit(Request("barrier", _END)).wait()
    except HorovodInternalError:
        return


def _finish_all() -> None:
    if _registered:
        finish(_registered[-1].controller)


job.before_stop(_finish_all)
job.at_stop(_registered.clear)
