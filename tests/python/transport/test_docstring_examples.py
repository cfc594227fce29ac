"""The examples in the docstrings of the public API, run between two ranks and a summation service."""

from __future__ import annotations

import doctest
import enum
import inspect
import threading
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest

import mlt
from mlt._shared.ports import free_port

# mlt.metrics needs its extra, which environments of the wheels' tests lack.
METRICS = ("mlt.metrics",) if find_spec("prometheus_client") and find_spec("opentelemetry") else ()
MODULES = ("mlt.collectives", "mlt.context", "mlt.operation", "mlt.options.faults", "mlt.priority", "mlt.push_pull",
           "mlt.stats", *METRICS)  # fmt: skip


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
    result = doctest.testmod(
        module, extraglobs={"mlt": mlt, "np": np, **ranks}, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert result.failed == 0
    assert result.attempted > 0


def public() -> Iterator[tuple[str, object]]:
    """The public API: the classes and functions of ``mlt``, and the verbs of a context."""
    for name in mlt.__all__:
        value = getattr(mlt, name)
        if inspect.isclass(value) and not issubclass(value, (BaseException, enum.Enum)):
            yield name, value
    yield from ((name, getattr(mlt.priority, name)) for name in ("magnitude", "all_important", "random"))
    yield from ((name, getattr(mlt.Context, name)) for name in dir(mlt.Context) if name.startswith("post_"))


@pytest.mark.parametrize(("name", "value"), [pytest.param(*one, id=one[0]) for one in public()])
def test_examples__every_public_name_has_one(name: str, value: object) -> None:
    own = [member for member in vars(value).values() if inspect.isfunction(member)] if inspect.isclass(value) else []
    assert any(">>> " in (inspect.getdoc(one) or "") for one in (value, *own)), name
