"""Work beside a block of code."""

from __future__ import annotations

import threading

import pytest

from mlt._shared.background import beside


def test_beside__runs_until_the_block_ends_also_by_an_exception() -> None:
    started, names = threading.Event(), list[str]()

    def run(is_over: threading.Event) -> None:
        started.set()
        assert is_over.wait(30)
        names.append(threading.current_thread().name)

    def block() -> None:
        with beside(run, "mlt-test"):
            assert started.wait(30)
            assert names == []
            raise KeyError

    with pytest.raises(KeyError):
        block()
    assert names == ["mlt-test"]
