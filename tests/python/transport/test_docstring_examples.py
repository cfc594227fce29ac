"""The examples in the docstrings of the public API, run between two ranks and a summation service."""

from __future__ import annotations

import doctest
import threading
from collections.abc import Iterator
from importlib import import_module

import numpy as np
import pytest

import mlt
from mlt._shared.ports import free_port

MODULES = ("mlt.collectives", "mlt.context", "mlt.operation", "mlt.priority", "mlt.push_pull")


@pytest.fixture
def ranks() -> Iterator[dict[str, mlt.Context]]:
    """``rank_0`` and ``rank_1`` of one process, with a service."""
    port, found = free_port("127.0.0.1"), {}

    def start(rank: int) -> None:
        context = mlt.Context(rank=rank, world_size=2, services=1, master_addr="127.0.0.1", rendezvous_port=port)
        found[f"rank_{rank}"] = context
        if rank == 2:
            mlt.SummationService(context).run()
            context.close()

    threads = [threading.Thread(target=start, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads[:2]:
        thread.join()
    yield {name: context for name, context in found.items() if name != "rank_2"}
    for name in ("rank_0", "rank_1"):
        found[name].close()
    threads[2].join()


@pytest.mark.parametrize("name", MODULES)
def test_examples__do_what_they_show(name: str, ranks: dict[str, mlt.Context]) -> None:
    module = import_module(name)
    result = doctest.testmod(module, extraglobs={"np": np, **ranks}, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
    assert result.attempted > 3
