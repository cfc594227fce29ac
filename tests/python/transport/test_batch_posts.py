"""``post_sends``, ``post_recvs`` and ``wait_all``: many transfers with one call, all or none."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from checks import names, until
from transport_jobs import local_job

import mlt
from mlt import errors, priority


def test_post_sends__arrive_despite_losses(lossy: list[mlt.Context]) -> None:
    a, b = lossy
    sent = [np.full(n, n, np.float32) for n in range(300)]
    into = [np.zeros(n, np.float32) for n in range(300)]
    receives = b.post_recvs([(tensor, 0, n) for n, tensor in enumerate(into)])
    sends = a.post_sends(((tensor, np.int64(1), np.uint32(n)) for n, tensor in enumerate(sent)), timeout=20)
    done = b.wait_all(receives, timeout=20)
    assert [one.op for one in done] == receives
    assert [one.bytes for one in a.wait_all(sends, timeout=20)] == [4 * n for n in range(300)]
    assert [(op.kind, op.peer, op.tag) for op in (sends[7], receives[7])] == [("send", 1, 7), ("recv", 0, 7)]
    for tensor, arrived in zip(sent, into, strict=True):
        np.testing.assert_array_equal(tensor, arrived)


def test_post_sends__take_the_options_of_single_posts(lossy: list[mlt.Context]) -> None:
    a, b = lossy
    bits, values = np.arange(5_000, dtype=np.uint16), np.arange(50_000, dtype=np.float32)
    into = [np.zeros(8_000, np.uint16), np.zeros(8_000, np.uint16)]
    receives = b.post_recvs([(tensor, 0) for tensor in into], dtype="bfloat16", up_to=True)
    sends = a.post_sends([(bits, 1), (bits[:10], 1)], priority.all_important, dtype="bfloat16")
    assert [one.bytes for one in b.wait_all(receives, 20)] == [10_000, 20]
    np.testing.assert_array_equal(into[0][:5_000], bits)
    a.wait_all(sends, 20)

    grids = []

    def first_is_critical(tensor: Any, grid: mlt.SegmentGrid) -> Any:
        grids.append((tensor.size, grid.segment_count))
        marks = np.zeros(grid.segment_count, np.uint8)
        marks[0] = 0x10
        return marks

    lossy_into = [np.zeros(50_000, np.float32), np.zeros(40_000, np.float32)]
    receives = b.post_recvs([(tensor, 0, 5) for tensor in lossy_into], "30%")
    sends = a.post_sends([(values, 1, 5), (values[:40_000], 1, 5)], first_is_critical, layer=1, layers=4)
    assert [round(one.allowed_missing_bytes / one.bytes, 3) for one in b.wait_all(receives, 20)] == [0.3, 0.3]
    a.wait_all(sends, 20)
    assert [size for size, _ in grids] == [50_000, 40_000]
    assert lossy_into[0][1] == lossy_into[1][1] == 1


Post = Callable[[mlt.Context], object]
GOOD = (b"four", 1, 1)


def marks(_: object, grid: mlt.SegmentGrid) -> Any:
    return np.zeros(grid.segment_count, np.uint8)


BAD: dict[str, tuple[Post, type[Exception], tuple[str, ...]]] = {
    "not a list": (lambda a: a.post_sends(7), TypeError, ("post_sends", "int")),  # type: ignore[arg-type]
    "no tuple": (lambda a: a.post_sends([GOOD, b"four"]), TypeError, ("number 2",)),  # type: ignore[list-item]
    "a pair too long": (lambda a: a.post_sends([GOOD, (b"x", 1, 2, 3)]), TypeError, ("number 2",)),  # type: ignore[list-item]
    "a text as rank": (lambda a: a.post_sends([(b"x", "1")]), TypeError, ("number 1", "rank")),  # type: ignore[list-item]
    "a float as tag": (lambda a: a.post_sends([GOOD, (b"x", 1, 0.5)]), TypeError, ("number 2", "tag")),  # type: ignore[list-item]
    "a negative tag": (lambda a: a.post_sends([GOOD, (b"x", 1, -1)]), mlt.ConfigError, ("number 2", "-1")),
    "a large tag": (lambda a: a.post_sends([GOOD, (b"x", 1, 2**63)]), mlt.ConfigError, ("number 2", str(2**63))),
    "itself": (lambda a: a.post_sends([GOOD, GOOD, (b"x", 0)]), errors.UnknownPeerError, ("rank 0", "number 3 of 3")),
    "no such rank": (lambda a: a.post_recvs([(bytearray(1), -3)]), errors.UnknownPeerError, ("rank -3",)),
    "no tensor": (lambda a: a.post_sends([GOOD, ("x", 1)]), mlt.InvalidBufferError, ("str", "number 2 of 2")),
    "read-only": (lambda a: a.post_recvs([(b"x", 1, 4)]), mlt.InvalidBufferError, ("read-only", "tag 4")),
    "layers": (lambda a: a.post_sends([GOOD], layer=2, layers=2), mlt.ConfigError, ("layer 2 of 2",)),
    "a text as layers": (lambda a: a.post_sends([GOOD], layers="x"), TypeError, ()),  # type: ignore[arg-type]
    "lossy bytes": (lambda a: a.post_recvs([(bytearray(4), 1)], 0.5), mlt.InvalidBufferError, ("number 1 of 1",)),
    "bound": (lambda a: a.post_recvs([(bytearray(4), 1)], 1.5), mlt.ConfigError, ("1.5",)),
    "fill": (lambda a: a.post_recvs([(bytearray(4), 1)], fill="ones"), mlt.ConfigError, ("ones",)),  # type: ignore[arg-type]
    "timeout": (lambda a: a.post_sends([GOOD], timeout=-1), mlt.ConfigError, ("-1",)),
    "dtype": (lambda a: a.post_sends([GOOD, (b"x", 1)], dtype="int16"), mlt.InvalidBufferError, ("number 2 of 2",)),
    "no such rank, 2**70": (lambda a: a.post_sends([(b"x", 2**70)]), errors.UnknownPeerError, (str(2**70), "1 of 1")),
    "a short tuple, ranked": (lambda a: a.post_sends([GOOD, (b"x",)], marks), TypeError, ("number 2",)),  # type: ignore[list-item]
    "no rank, ranked": (lambda a: a.post_sends([GOOD, (b"x", 5)], marks), errors.UnknownPeerError, ("number 2 of 2",)),
    "no tensor, ranked": (lambda a: a.post_sends([("x", 1)], marks), mlt.InvalidBufferError, ("number 1 of 1",)),
    "marks": (lambda a: a.post_sends([GOOD], lambda *_: np.zeros(9)), mlt.InvalidBufferError, ("tag 1",)),
}


@pytest.mark.parametrize("case", BAD)
def test_post_sends__of_one_that_is_bad_post_none(clean: list[mlt.Context], case: str) -> None:
    call, error, facts = BAD[case]
    pinned = clean[0].engine.pinned
    with pytest.raises(error, match=names(*facts)):
        call(clean[0])
    assert clean[0].engine.pinned == pinned


class Rank:
    """A rank whose value runs ``first``."""

    def __init__(self, value: int, first: Callable[[], object]) -> None:
        self._value, self._first = value, first

    def __index__(self) -> int:
        self._first()
        return self._value


def test_post_sends__of_a_list_that_changes_meanwhile_are_those_it_had(clean: list[mlt.Context]) -> None:
    a, b = clean
    transfers: list[Any] = []
    transfers += [(np.full(1 << 16, n, np.uint8), Rank(1, transfers.clear), n) for n in range(50)]
    sends = a.post_sends(transfers)
    assert transfers == []
    assert len(sends) == 50

    def spoils(_: object, grid: mlt.SegmentGrid) -> Any:
        values[:] = [("spoiled",)]
        return marks(_, grid)

    values: list[Any] = [(np.full(4, n, np.float32), 1, n) for n in (50, 51)]
    sends += a.post_sends(values, spoils)
    into = [np.zeros(1 << 16 if n < 50 else 16, np.uint8) for n in range(52)]
    b.wait_all(b.post_recvs([(one if n < 50 else one.view(np.float32), 0, n) for n, one in enumerate(into)]), 20)
    a.wait_all(sends, 20)
    assert all((into[n] == n).all() for n in range(50))
    assert (into[51].view(np.float32) == 51).all()


def test_post_sends__raise_what_a_rank_raises(clean: list[mlt.Context]) -> None:
    def fail() -> None:
        raise ValueError("no rank yet")

    def fails_later() -> Any:
        yield GOOD
        raise TypeError("no more tensors")

    with pytest.raises(ValueError, match="no rank yet"):
        clean[0].post_sends([(b"x", Rank(1, fail))])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="no more tensors"):
        clean[0].post_sends(fails_later())


def test_post_sends__of_more_tags_than_fit_fail_as_completions() -> None:
    with local_job(2, max_tags=4) as (a, b):
        sends = a.post_sends([(b"x", 1, n) for n in range(8)])
        b.wait_all(b.post_recvs([(bytearray(1), 0, n) for n in range(4)]), 20)
        done = a.wait_all(sends, 20, raise_failed=False)
        assert [one.failed for one in done] == [False] * 4 + [True] * 4


def test_post_sends__beyond_the_limit_post_none() -> None:
    with local_job(2, max_operations=100) as (a, b):
        sends = a.post_sends([(b"x", 1)] * 60)
        with pytest.raises(errors.LimitError, match=names("60", "max_operations", "MLT_MAX_OPERATIONS", "100")):
            a.post_sends([(b"x", 1)] * 60)
        assert a.post_sends([]) == []
        sends += a.post_sends([(b"y", 1)] * 40)
        into = [bytearray(1) for _ in range(100)]
        b.wait_all(b.post_recvs([(one, 0) for one in into]), 20)
        assert bytes(b"".join(into)) == b"x" * 60 + b"y" * 40
        a.wait_all(sends, 20)
        a.close()
        with pytest.raises(errors.ClosedError):
            a.post_sends([(b"x", 1)])


def test_post_sends__give_the_tensors_back(clean: list[mlt.Context]) -> None:
    a, b = clean
    tensor, into = np.ones(16), np.zeros(16)
    before = sys.getrefcount(tensor), sys.getrefcount(into)
    sends = a.post_sends([(tensor, 1, n) for n in range(50)])
    assert a.engine.pinned >= 50
    b.wait_all(b.post_recvs([(into, 0, n) for n in range(50)]), 20)
    a.wait_all(sends, 20)
    gc.collect()
    assert (sys.getrefcount(tensor), sys.getrefcount(into)) == before


def test_wait_all__raises_the_first_failure_once_all_have_ended(clean: list[mlt.Context]) -> None:
    a, b = clean
    receives = b.post_recvs([(bytearray(4), 0, 1), (bytearray(5), 0, 2), (bytearray(6), 0, 3)])
    sends = a.post_sends([(b"four", 1, 1), (b"four", 1, 2), (b"four", 1, 3)])
    with pytest.raises(errors.SizeMismatchError, match=names("tag 2")) as raised:
        b.wait_all(receives, 20)
    assert raised.value.completion is not None
    assert raised.value.completion.op == receives[1]
    done = a.wait_all(sends, 20, raise_failed=False)
    assert [one.failed for one in done] == [False, True, True]
    with pytest.raises(errors.UnknownOperationError):
        b.wait_all(receives, 20)


def test_wait_all__on_timeout_takes_none(clean: list[mlt.Context]) -> None:
    a, b = clean
    into = [bytearray(1), bytearray(1)]
    receives = b.post_recvs([(into[0], 0, 1), (into[1], 0, 2)])
    a.wait(a.post_send(b"a", to=1, tag=1), 20)
    with pytest.raises(errors.WaitTimeoutError, match=names("1 of 2", "tag 2", "0.05 s")):
        b.wait_all(receives, 0.05)
    late = threading.Timer(0.1, lambda: a.wait(a.post_send(b"b", to=1, tag=2), 20))
    late.start()
    assert [one.status for one in b.wait_all(receives, 20)] == ["complete", "complete"]
    late.join()
    assert into == [b"a", b"b"]
    assert b.wait_all([]) == []


def test_wait_all__refuses_what_it_cannot_wait_for(clean: list[mlt.Context]) -> None:
    a, b = clean
    send = a.post_send(b"x", to=1)
    with pytest.raises(TypeError, match=names("wait_all", "int")):
        a.wait_all([send, 7])  # type: ignore[list-item]
    with pytest.raises(mlt.ConfigError, match=names("rank 1", "another context")):
        b.wait_all([send])
    with pytest.raises(errors.UnknownOperationError):
        a.wait_all([send, send])
    b.wait(b.post_recv(bytearray(1), from_=0), 20)
    assert a.wait_all([send], 20)[0].op == send
    watched = a.post_send(b"x", to=1)
    watched.add_done_callback(lambda _: None)
    with pytest.raises(errors.UnknownOperationError, match=names("rank 0", "2 times")):
        a.wait_all([watched, watched])
    b.wait(b.post_recv(bytearray(1), from_=0), 20)
    assert a.wait_all([watched], 20)[0].op == watched


def test_wait_all__with_callbacks_and_coroutines(clean: list[mlt.Context]) -> None:
    a, b = clean
    called: list[mlt.Operation] = []
    receives = b.post_recvs([(bytearray(1), 0, n) for n in range(6)])
    receives[2].add_done_callback(called.append)
    with pytest.raises(errors.WaitTimeoutError):
        b.wait_all(receives, 0.02)
    waits = threading.Thread(target=lambda: b.wait_all(receives, 20))
    waits.start()
    sends = a.post_sends([(b"x", 1, n) for n in range(6)])

    async def each() -> list[mlt.Completion]:
        return [await send for send in sends]

    assert [one.status for one in asyncio.run(each())] == ["complete"] * 6
    waits.join(20)
    assert not waits.is_alive()
    until(lambda: called == [receives[2]])
    assert [one.op for one in a.wait_all(sends, 20)] == sends  # those with callbacks may be waited for again


def test_wait_all__lets_other_threads_run_and_names_a_slow_one(
    clean: list[mlt.Context], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlt._waits.QUIET_SECONDS", 1)
    a, b = clean
    receives = b.post_recvs([(bytearray(1), 0, n) for n in (1, 77)])
    a.wait(a.post_send(b"x", to=1, tag=1), 20)
    waits = threading.Thread(target=lambda: b.wait_all(receives, 20))
    waits.start()
    until(lambda: "tag 77" in caplog.text)
    assert "tag 1," not in caplog.text
    a.wait(a.post_send(b"x", to=1, tag=77), 20)
    waits.join(20)
    assert not waits.is_alive()


def test_wait_all__can_be_interrupted(clean: list[mlt.Context]) -> None:
    import signal

    b = clean[1]
    receives = b.post_recvs([(bytearray(1), 0, n) for n in range(3)])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def wait_with_alarm() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        b.wait_all(receives, 20)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            wait_with_alarm()
        assert time.monotonic() - began < 10
    finally:
        signal.signal(signal.SIGALRM, before)
    clean[0].wait_all(clean[0].post_sends([(b"x", 1, n) for n in range(3)]), 20)
    b.wait_all(receives, 20)
