"""The choice of who averages gradient buckets: the services, or the workers among themselves.

``test_hook.py`` has the hook over it, and ranks that do not agree.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from checks import assert_names, names
from mlt.torch.bucket_averages import BucketAverages
from mlt.torch.sparse import SparseSum
from transport_jobs import local_job

import mlt

OPTIONS: dict[str, Any] = {"key": 0, "name": "bucket", "loss_bound": 0.0, "lossy_results": False}


def average(contexts: list[mlt.Context], services: bool | None = None) -> list[torch.Tensor]:
    """Average of one tensor of each worker, filled with its rank."""
    tensors = [torch.full((1_000,), float(rank)) for rank in range(len(contexts))]
    made = [BucketAverages(context, services) for context in contexts]
    handles = [one.start(tensor, layer=0, layers=1, **OPTIONS) for one, tensor in zip(made, tensors, strict=True)]
    for handle in handles:
        handle.wait()
    return tensors


@pytest.mark.parametrize(
    ("hosts", "chosen", "by_services"),
    [
        ([1, 2, 3, 3], None, False),  # one service: its link would carry two tensors, those of a ring one
        ([1, 2, 3, 3], True, True),
        ([1, 1, 1, 1], None, False),  # all on one host
        ([1, 2, 3, 4], None, False),
        ([1, 2, 3, 4], False, False),
    ],
)  # fmt: skip
def test_averages__by_services_only_where_their_links_carry_less(
    hosts: list[int], chosen: bool | None, by_services: bool
) -> None:
    addresses = [f"127.0.0.{host}" for host in hosts]
    with local_job(2, services=2, hosts=addresses) as contexts:
        assert all((tensor == 0.5).all() for tensor in average(contexts[:2], chosen))
        rounds = sum(one.counters()["summation_rounds"] for one in contexts[2:])
        assert (rounds > 0) is by_services


def test_averages__by_four_services_on_hosts_of_their_own_for_four_workers(caplog: pytest.LogCaptureFixture) -> None:
    hosts = [f"127.0.0.{host}" for host in range(1, 9)]
    with local_job(4, services=4, hosts=hosts) as contexts, caplog.at_level(logging.INFO, "mlt"):
        assert all((tensor == 1.5).all() for tensor in average(contexts[:4]))
        assert sum(one.counters()["summation_rounds"] for one in contexts[4:]) > 0
    assert_names(caplog.text, "4 summation services average", "1.0 times", "1.5")


def test_averages__among_three_workers_beside_as_many_services_that_save_too_little(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hosts = [f"127.0.0.{host}" for host in range(1, 7)]
    with local_job(3, services=3, hosts=hosts) as contexts, caplog.at_level(logging.INFO, "mlt"):
        assert all((tensor == 1.0).all() for tensor in average(contexts[:3]))
        assert sum(one.counters()["summation_rounds"] for one in contexts[3:]) == 0
    assert_names(caplog.text, "the workers average among themselves", "1.0 times", "1.3")


def test_averages__services_that_are_not_there_are_an_error() -> None:
    with local_job(2) as contexts, pytest.raises(ValueError, match="rank 0: services is True, and the job has none"):
        BucketAverages(contexts[0], True)


def test_averages__a_push_pull_needs_services() -> None:
    with local_job(2, services=1) as contexts:
        push_pull = mlt.PushPull(contexts[0])
        with pytest.raises(ValueError, match=names("services is False", "PushPull")):
            BucketAverages(push_pull, False)
        averages = BucketAverages(push_pull, None)
        assert averages.context is contexts[0]
        # Services sum float32 only; sparse tensors are averaged among the workers, of any type.
        assert averages.types(sparse=False) == (torch.float32,)
        assert torch.bfloat16 in averages.types(sparse=True)
        assert torch.bfloat16 in BucketAverages(contexts[0], False).types(sparse=False)


def test_averages__of_sparse_tensors_are_exact() -> None:
    with local_job(2) as contexts:
        made = [BucketAverages(context, None) for context in contexts]
        results: list[Any] = [torch.futures.Future(), torch.futures.Future()]
        for rank, (one, result) in enumerate(zip(made, results, strict=True)):
            one.agree({"rotate": False})  # outside of a process group there is nothing to agree on
            tensor = torch.sparse_coo_tensor([[rank]], [2.0], (4,))
            one.start_sparse(tensor, name="bucket", done=result.set_result, failed=result.set_exception)
        for result in results:
            found: SparseSum = result.wait()
            assert found.total.to_dense().tolist() == [1.0, 1.0, 0.0, 0.0]
