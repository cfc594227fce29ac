"""One bucket of the hook: every end completes its future once, and its entry in the flight recorder."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from checks import assert_names, names
from mlt.torch.open_bucket import OpenBucket
from mlt.torch.rotation import rotate
from mlt.torch.sparse import SparseSum

from mlt.errors import PeerFailedError


class Handle:
    """An operation in progress; ``end`` completes it."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self._callbacks: list[Callable[[Any], object]] = []

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)

    def report_if_slow(self) -> None:
        pass

    def wait(self, timeout: float) -> Any:
        assert timeout == 0
        if self._error is not None:
            raise self._error
        return SimpleNamespace(bytes=32, missing_bytes=4, repairs=1)

    def end(self) -> None:
        for callback in self._callbacks:
            callback(self)


class Ends:
    """The bucket's entry and statistics, as lists."""

    def __init__(self) -> None:
        self.entries: list[Exception | None] = []
        self.recorded: list[tuple[int, int, int]] = []

    def end(self, error: Exception | None) -> None:
        self.entries.append(error)

    def record(self, *, pushed_bytes: int, missing_bytes: int, repairs: int) -> None:
        self.recorded.append((pushed_bytes, missing_bytes, repairs))


def opened(ends: Ends) -> tuple[OpenBucket, Any]:
    future: Any = torch.futures.Future()
    return OpenBucket("gradient bucket 3", future, ends, ends.record), future  # type: ignore[arg-type]


def test_bucket__completes_with_what_landed_and_is_recorded() -> None:
    ends, data, handle = Ends(), torch.ones(8), Handle()
    bucket, future = opened(ends)
    bucket.start(lambda _: handle, data, None, lambda: bucket.set_result(data))
    assert not future.done()
    handle.end()
    assert future.value() is data
    assert (ends.entries, ends.recorded) == ([None], [(32, 4, 1)])


def test_bucket__rotated_for_the_average_and_back() -> None:
    data = torch.arange(8.0)
    expected, given = data.clone(), []
    rotate(expected, 5)
    ends, handle = Ends(), Handle()
    bucket, future = opened(ends)

    def average(tensor: torch.Tensor) -> Handle:
        given.append(tensor.clone())
        return handle

    bucket.start(average, data, 5, lambda: bucket.set_result(data))
    assert torch.equal(given[0], expected)
    handle.end()
    assert torch.allclose(future.value(), torch.arange(8.0), atol=1e-5)


@pytest.mark.parametrize("where", ["operation", "landing"])
def test_bucket__a_failure_names_the_bucket(where: str) -> None:
    ends = Ends()
    bucket, future = opened(ends)
    handle = Handle(RuntimeError("rank 2 failed") if where == "operation" else None)

    def land() -> None:
        raise RuntimeError("no copy")

    bucket.start(lambda _: handle, torch.ones(8), None, land)
    handle.end()
    with pytest.raises(RuntimeError) as caught:
        future.wait()
    assert_names(str(caught.value), "gradient bucket 3", "rank 2" if where == "operation" else "no copy")
    assert (ends.entries[0] is None) is (where == "landing")


def test_bucket__a_peer_that_is_gone_fails_the_bucket_and_other_errors_are_raised() -> None:
    def average(_: torch.Tensor) -> Any:
        raise error

    ends = Ends()
    bucket, future = opened(ends)
    error: Exception = PeerFailedError("rank 1 is gone")
    bucket.start(average, torch.ones(8), None, lambda: None)
    with pytest.raises(RuntimeError, match=names("gradient bucket 3", "rank 1")):
        future.wait()
    assert ends.entries[0] is error
    bucket, future = opened(ends)
    error = ValueError("wrong")
    with pytest.raises(ValueError, match="wrong"):
        bucket.start(average, torch.ones(8), None, lambda: None)
    assert not future.done()
    # In the queue that posts buckets of a GPU it fails the bucket too.
    bucket.run(lambda: bucket.start(average, torch.ones(8), None, lambda: None))
    bucket.publish(None)
    with pytest.raises(RuntimeError, match=names("gradient bucket 3", "wrong")):
        future.wait()


def test_bucket__a_sparse_average_counts_its_bytes_and_repairs() -> None:
    ends, total = Ends(), torch.ones(2)
    bucket, future = opened(ends)
    bucket.set_sparse_result(SparseSum(total, bytes=64, repairs=2))
    assert future.value() is total
    assert (ends.entries, ends.recorded) == ([None], [(64, 0, 2)])
