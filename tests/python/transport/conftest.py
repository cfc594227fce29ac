"""Jobs of two ranks that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from transport_jobs import ETHERNET_SEGMENT, local_job

import mlt


@pytest.fixture(scope="module")
def clean() -> Iterator[list[mlt.Context]]:
    with local_job(2) as contexts:
        yield contexts


@pytest.fixture(scope="module")
def lossy() -> Iterator[list[mlt.Context]]:
    faults = mlt.Faults(drop=0.05, duplicate=0.01, reorder=0.05, seed=11)
    with local_job(2, faults=faults, segment_bytes=ETHERNET_SEGMENT) as contexts:
        yield contexts
