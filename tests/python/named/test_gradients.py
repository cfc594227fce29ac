"""``mlt._named.gradients``: layers, the allowed loss, and texts; ``mlt._named.operations`` of one rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from checks import assert_names

from mlt._named import job
from mlt._named.controller import Controller, Handle
from mlt._named.elements import Bytes
from mlt._named.execution import Tensors
from mlt._named.gradients import BoundedLossState, agree_on, layers_of, listed, loss_state, settle, small_layers_of
from mlt._named.operations import start
from mlt._named.process_sets import global_process_set
from mlt._named.reduce_ops import Sum
from mlt._named.requests import Request, Spec


class Floats:
    """One array of float32, summed in place."""

    def __init__(self, *values: float) -> None:
        self.values = np.array(values, np.float32)

    @property
    def specs(self) -> tuple[Spec, ...]:
        return (("float32", self.values.shape),)

    def input(self, index: int) -> Bytes:
        flat: Bytes = self.values.view(np.uint8)
        return flat

    def allocate(self, index: int, shape: tuple[int, ...]) -> Bytes:
        return self.input(index)


@pytest.mark.parametrize(
    ("sizes", "layers"),
    [
        ([], []),
        ([9], [[0]]),
        ([1, 1, 9, 9, 1], [[0, 1], [2], [3], [4]]),  # no small gradient is in the layer of a large one
        ([2, 2, 1, 0, 4, 0], [[0, 1], [2, 3], [4, 5]]),
    ],
)
def test_small_layers__leave_large_gradients_alone(sizes: list[int], layers: list[list[int]]) -> None:
    assert small_layers_of(sizes, 4) == layers


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A job of this process."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    job.start()
    yield
    job.stop()


def test_layers_of__ends_a_bucket_at_its_size_and_keeps_groups_whole() -> None:
    assert layers_of([4, 4, 4, 4, 9], 8) == [[0, 1], [2, 3], [4]]
    assert layers_of([4, 4, 4], None) == [[0, 1, 2]]
    assert layers_of([4, 4, 4, 4], 4, [[1, 3]]) == [[0], [1, 3], [2]]
    assert layers_of([], 4) == []


def test_loss_state__of_every_form_of_the_argument() -> None:
    assert loss_state(None).is_exact
    assert not loss_state(0.1).is_exact
    assert loss_state("10%").loss_bound == 0.1
    assert loss_state("0%").is_exact
    state = loss_state(lambda step, layer: 0.1 * layer)
    assert [state.bound(layer) for layer in (0, 2)] == [0.0, 0.2]
    assert loss_state(state) is state
    with pytest.raises(ValueError, match="bucket_bytes is 0"):
        BoundedLossState(0.1, bucket_bytes=0)
    with pytest.raises(ValueError, match="loss bound is 1"):
        BoundedLossState(1.0)


@pytest.mark.usefixtures("alone")
def test_exchange__waits_for_the_layers_and_records_the_step() -> None:
    state = BoundedLossState(0.0)
    layers = [Floats(1.0, 2.0), Floats(3.0)]
    handles = [
        start("allreduce", held, f"layer {number}", global_process_set, Sum, prescale=2.0)
        for number, held in enumerate(layers)
    ]
    state.exchange(handles)
    settle(handles)
    assert [held.values.tolist() for held in layers] == [[2.0, 4.0], [6.0]]
    assert state.latest is not None
    assert (state.step, state.latest.buckets) == (1, 2)


@pytest.mark.usefixtures("alone")
def test_agree_on__compares_an_exchange_once_in_each_job(monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[Request] = []
    submit = Controller.submit

    def noting(self: Controller, request: Request, tensors: Tensors | None = None) -> Handle:
        if request.kind == "barrier":
            submitted.append(request)
        return submit(self, request, tensors)

    monkeypatch.setattr(Controller, "submit", noting)
    specs: list[Spec] = [("float32", (3,)), ("float32", (0, 2))]
    for _ in range(2):
        agree_on("gradients", specs, global_process_set, layers=2)
        agree_on("gradients", specs, global_process_set, layers=2, sparse=[1])
    assert [(one.kind, one.name, one.sparse) for one in submitted] == [
        ("barrier", "gradients", ()),
        ("barrier", "gradients", (1,)),
    ]
    # A rank that had joined has compared less, and one of the next job nothing.
    job.controller().join()
    agree_on("gradients", specs, global_process_set, layers=2)
    assert len(submitted) == 3
    job.stop()
    job.start()
    agree_on("gradients", specs, global_process_set, layers=2)
    assert len(submitted) == 4


@pytest.mark.usefixtures("alone")
def test_listed__names_the_first_gradients_and_counts_the_others() -> None:
    specs: list[Spec] = [("float32", (3, 2)), ("float16", ())] + [("float32", (1,))] * 12
    text = listed(specs, [f"weight{number}" for number in range(14)])
    assert_names(text, "rank 0", "weight0 float32 3x2", "weight1 float16 scalar", "and 2 more")
