"""``mlt._named.operations``: operations that are started before a job, and under a name that is in use."""

from __future__ import annotations

import pytest
from checks import assert_names
from test_gradients import Floats

from mlt._named import job
from mlt._named.operations import start
from mlt._named.process_sets import ProcessSet, global_process_set
from mlt._named.reduce_ops import Sum


def test_start__needs_a_job_and_a_registered_process_set() -> None:
    job.stop()
    with pytest.raises(ValueError, match=r"hvd\.init"):
        start("allreduce", Floats(1.0), None, global_process_set, Sum)


def test_start__gives_a_name_to_an_operation_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    job.start()
    try:
        handles = [start("allreduce", Floats(1.0), None, global_process_set, Sum) for _ in range(2)]
        assert len({handle.request.name for handle in handles}) == 2
        for handle in handles:
            handle.wait()
        with pytest.raises(ValueError, match="not registered") as raised:
            start("allreduce", Floats(1.0), "given", ProcessSet([0]), Sum)
        assert_names(raised.value, "ranks=[0]")
    finally:
        job.stop()
