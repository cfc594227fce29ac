"""Random schedules: every rank submits the same operations in an order of its own, and the results are numpy's."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from test_controller import Arrays, controllers, everywhere

from mlt._named.controller import Controller, Handle, RejectedError
from mlt._named.leader import Settings
from mlt._named.requests import Request

SIZE = 3
REDUCTIONS = {"sum": np.sum, "min": np.min, "max": np.max}


class Case:
    """One operation of all ranks: their requests and inputs, and what each gets; None: an error."""

    def __init__(self, number: int, draw: random.Random) -> None:
        kind: Any = draw.choice(["allreduce", "allreduce", "allreduce", "allgather", "broadcast", "alltoall"])
        name = f"{kind} {number % 7}"  # names come again, with other shapes at times
        dtype = draw.choice(["float32", "int64", "float64"])
        rows, columns = draw.choice([0, 1, 5, 2000]), draw.choice([1, 3])
        lengths = [draw.randint(0, 4) for _ in range(SIZE)] if kind == "allgather" else [rows] * SIZE
        splits = [[draw.randint(0, 3) for _ in range(SIZE)] for _ in range(SIZE)]
        if kind == "alltoall":
            lengths = [sum(one) for one in splits]
        op, root = (draw.choice(list(REDUCTIONS)), -1) if kind == "allreduce" else ("", -1)
        if kind == "broadcast":
            root = draw.randrange(SIZE)
        values = np.random.default_rng(number)
        self.inputs = [values.integers(-50, 50, (length, columns)).astype(dtype) for length in lengths]
        self.requests = [
            Request(
                kind,
                name,
                ((dtype, array.shape),),
                op=op,
                root=root,
                splits=tuple(splits[rank]) if kind == "alltoall" else None,
            )
            for rank, array in enumerate(self.inputs)
        ]
        self.expected: list[Any] = [None] * SIZE
        if kind in ("allreduce", "broadcast") and draw.random() < 0.1:
            wrong = draw.randrange(SIZE)
            self.inputs[wrong] = np.zeros((rows + 1, columns), dtype)
            self.requests[wrong] = Request(kind, name, ((dtype, (rows + 1, columns)),), op=op, root=root)
        elif kind == "allreduce":
            self.expected = [REDUCTIONS[op](np.stack(self.inputs), axis=0)] * SIZE
        elif kind == "allgather":
            self.expected = [np.concatenate(self.inputs)] * SIZE
        elif kind == "broadcast":
            self.expected = [self.inputs[root]] * SIZE
        else:
            starts = [np.cumsum([0, *one]) for one in splits]
            self.expected = [
                np.concatenate([self.inputs[s][starts[s][r] : starts[s][r + 1]] for s in range(SIZE)])
                for r in range(SIZE)
            ]


def check(case: Case, rank: int, handle: Handle, tensors: Arrays) -> None:
    if case.expected[rank] is None:
        with pytest.raises(RejectedError):
            handle.wait()
        return
    handle.wait()
    np.testing.assert_array_equal(tensors.outputs[0], case.expected[rank])


@pytest.mark.parametrize("seed", range(4))
def test_random_schedules__every_result_is_numpys(seed: int) -> None:
    cases = [Case(seed * 1000 + number, random.Random(seed * 1000 + number)) for number in range(140)]

    def run(own: Controller) -> None:
        draw = random.Random(seed * 10 + own.rank)
        # Names of a window differ, so that a rank may submit them in any order.
        for start in range(0, len(cases), 7):
            window = cases[start : start + 7]
            draw.shuffle(window)
            pending = []
            for case in window:
                tensors = Arrays(case.inputs[own.rank])
                pending.append((case, own.submit(case.requests[own.rank], tensors), tensors))
            draw.shuffle(pending)
            for case, handle, tensors in pending:
                check(case, own.rank, handle, tensors)

    with controllers(SIZE, Settings(fusion_bytes=50_000, cache_capacity=20)) as made:
        everywhere(made, run)


def test_random_schedules__threads_of_one_rank_submit_at_the_same_time() -> None:
    def run(own: Controller) -> None:
        def thread(number: int) -> None:
            for turn in range(20):
                tensors = Arrays(np.full(4, own.rank + number * turn))
                own.submit(Request("allreduce", f"thread {number}", (("int64", (4,)),), op="max"), tensors).wait()
                assert tensors.outputs[0].tolist() == [number * turn + SIZE - 1] * 4

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(thread, range(4)))

    with controllers(SIZE) as made:
        everywhere(made, run)
