"""``mlt._named.shared_sum``: ranks in threads add to one vector at their own pace."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from checks import assert_names
from test_controller import controllers, everywhere

import mlt
from mlt._named import job, shared_sum
from mlt._named.controller import Controller, EndedError, RejectedError
from mlt._named.elements import Bytes
from mlt._named.shared_sum import SharedParameters, SharedSum, finish

Floats = npt.NDArray[np.float32]


@pytest.fixture(autouse=True)
def _no_sums_are_left() -> Iterator[None]:
    yield
    shared_sum._registered.clear()


def raw(values: npt.ArrayLike) -> Bytes:
    return np.array(values, np.float32).view(np.uint8)


def added(shared: SharedSum, values: npt.ArrayLike) -> list[float]:
    floats: list[float] = shared.exchange(raw(values)).view(np.float32).tolist()
    return floats


@pytest.mark.parametrize(("size", "elements"), [(2, 5), (3, 100_000), (3, 2)])
@pytest.mark.parametrize("drop", [0.0, 0.05])
def test_exchange__sums_all_addends_of_all_ranks(size: int, elements: int, drop: float) -> None:
    steps = 4

    def add(own: Controller) -> Floats:
        shared = SharedSum(own, raw(np.arange(elements)), "float32", "layout")
        for step in range(steps):
            value = shared.exchange(raw(np.full(elements, own.rank + 1.0))).view(np.float32) - np.arange(elements)
            assert value.min() >= (own.rank + 1) * (step + 1)  # its own addends are in it
        finish(own)
        last: Floats = shared.exchange(raw(np.zeros(elements))).view(np.float32)
        finish(own)
        return last

    with controllers(size, faults=mlt.Faults(drop=drop, seed=1), datapath="udp") as made:
        results = everywhere(made, add)
    expected = np.arange(elements) + steps * size * (size + 1) / 2
    assert all(np.array_equal(one, expected) for one in results)


def test_exchange__waits_for_no_addend_of_another_rank() -> None:
    fast_is_done = threading.Event()

    def add(own: Controller) -> list[float]:
        shared = SharedSum(own, raw([0, 0]), "float32", "layout")
        if own.rank == 1:
            assert fast_is_done.wait(60)
            return added(shared, [1, 1])
        values = [added(shared, [1, 1]) for _ in range(10)]
        fast_is_done.set()
        return values[-1]

    with controllers(2) as made:
        assert everywhere(made, add) == [[10, 10], [11, 11]]


def test_exchange__of_several_sums_and_element_types() -> None:
    types = {"float16": np.float16, "float32": np.float32, "float64": np.float64}

    def add(own: Controller) -> None:
        sums = {name: SharedSum(own, np.zeros(3, kind).view(np.uint8), name, "") for name, kind in types.items()}
        brain = SharedSum(own, np.zeros(6, np.uint8), "bfloat16", "")
        for name, kind in types.items():
            sums[name].exchange(np.full(3, 0.5, kind).view(np.uint8))
        brain.exchange(np.full(3, 0x3F80, np.uint16).view(np.uint8))
        finish(own)
        for name, kind in types.items():
            value = sums[name].exchange(np.zeros(3, kind).view(np.uint8)).view(kind)
            assert value.tolist() == [1.0] * 3
        assert brain.exchange(np.zeros(6, np.uint8)).view(np.uint16).tolist() == [0x4000] * 3
        finish(own)

    with controllers(2) as made:
        everywhere(made, add)


def test_init__rejects_different_values_and_layouts_on_every_rank() -> None:
    def differ(own: Controller) -> list[str]:
        texts = []
        for value, layout in ((own.rank, "same"), (0, f"of rank {own.rank}")):
            with pytest.raises(RejectedError) as raised:
                SharedSum(own, raw([value]), "float32", layout)
            texts.append(str(raised.value))
        return texts

    with controllers(2) as made:
        first, second = everywhere(made, differ)
    assert first == second
    assert_names(first[0], "the values", "rank(s) 1", "broadcast_parameters")
    assert_names(first[1], "names, shapes and types", "rank(s) 1")


def test_exchange__fails_if_a_rank_is_gone() -> None:
    with controllers(2) as made:
        sums = everywhere(made, lambda own: SharedSum(own, raw([1, 2, 3]), "float32", ""))
        assert added(sums[0], [1, 1, 1]) == [2, 3, 4]
        made[1].close("failed")
        with pytest.raises(EndedError, match="rank 0: asynchronous training cannot continue"):
            sums[0].exchange(raw([1, 1, 1]))
        finish(made[0])  # ends all the same


def test_exchange__of_one_rank_is_a_sum() -> None:
    own = Controller(None)
    shared = SharedSum(own, raw([1, 2]), "float32", "")
    assert added(shared, [1, 1]) == [2, 3]
    assert added(shared, [1, 1]) == [3, 4]
    own.close()


def test_shared_parameters__have_the_changes_of_all_ranks_in_every_type(monkeypatch: pytest.MonkeyPatch) -> None:
    of_thread = threading.local()
    monkeypatch.setattr(job, "controller", lambda: of_thread.controller)
    names = ["half", "single", "scalar", "none"]

    def train(own: Controller) -> list[float]:
        of_thread.controller = own
        parameters = SharedParameters()
        values = [np.ones((2, 2), np.float16), np.ones(3, np.float32), np.float32(1), np.ones((0, 2), np.float32)]
        values = [np.asarray(one) for one in values]
        for step in range(3):
            after = [one + one.dtype.type(own.rank + 1) for one in values]
            values = parameters.exchange(values, after, names)
            assert [(one.dtype, one.shape) for one in values] == [(one.dtype, one.shape) for one in after], step
        with pytest.raises(ValueError, match="began with the parameters half float16"):
            parameters.exchange(values[:1], values[:1], names[:1])
        with pytest.raises(ValueError, match="floating point; 'count' has the type int32"):
            SharedParameters().exchange([np.ones(1, np.int32)], [np.ones(1, np.int32)], ["count"])
        finish(own)
        values = parameters.exchange(values, values, names)
        finish(own)
        return [float(value) for one in values for value in one.reshape(-1)]

    with controllers(2) as made:
        assert everywhere(made, train) == [[10.0] * 8] * 2


def test_shared_parameters__of_one_rank_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Controller(None)
    monkeypatch.setattr(job, "controller", lambda: own)
    before, after = [np.zeros(2)], [np.ones(2)]
    assert SharedParameters().exchange(before, after, ["weight"])[0] is after[0]
    own.close()
