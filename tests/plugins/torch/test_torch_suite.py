"""A part of PyTorch's own tests of c10d, over mlt and over gloo; ``make torch-suite`` runs all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).with_name("torch_suite.py")
# One of each kind: types, groups, coalesced forms, objects, point to point, DDP; those that failed once.
TESTS = [
    "test_all_gather_coalesced_simple",
    "test_all_gather_object_default_pg",
    "test_all_reduce_coalesced_sum",
    "test_all_reduce_sum_complex",
    "test_get_future",
    "test_accumulate_gradients_no_sync",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo",
    "test_destroy_full_group",
    "test_gather_checks",
    "test_monitored_barrier_gloo_rank_0_timeout",
    "test_reduce_max",
    "test_scatter_object_list",
    "test_send_recv_any_source",
    "test_sparse_all_reduce_sum",
]


def test_torch_suite__passes_what_gloo_passes() -> None:
    pytest.importorskip("expecttest")
    command = [sys.executable, str(SUITE), "--exact", *TESTS]
    run = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert f"{len(TESTS)} tests: gloo passes {len(TESTS)} here, mlt {len(TESTS)} of these" in run.stdout
