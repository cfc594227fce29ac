"""Calls on a device's tensors, between real processes, on a stand-in whose copies come late."""

from __future__ import annotations

import pytest
from job import answers, run_job


@pytest.mark.parametrize("workers", [2, 3])
def test_collectives__of_a_device_wait_for_its_stream_and_make_it_wait(workers: int) -> None:
    told = answers(run_job("staged", workers=workers), workers=workers)
    assert told == [["sums", "copies", "mixed", "futures", "completion", "layouts", "hook"]] * workers
