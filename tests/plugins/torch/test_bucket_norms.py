"""The comparison of the workers' norms of one bucket."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from checks import names
from mlt.torch.bucket_norms import BucketNorms
from transport_jobs import local_job

import mlt


def test_check__of_some_ranks_on_a_stream_of_their_own() -> None:
    with local_job(3) as contexts, ThreadPoolExecutor() as threads:
        ones = torch.ones(100)

        def check(rank: int, bucket: torch.Tensor, dropped: int) -> float:
            return BucketNorms(contexts[rank], (0, 2), 3, max_ratio=100, max_dropped=dropped).check(bucket)

        assert list(threads.map(check, (0, 2), (ones, ones.clone()), (0, 0))) == [1.0, 1.0]
        bad = torch.full((100,), 1e30, dtype=torch.bfloat16)
        assert list(threads.map(check, (0, 2), (ones, bad), (1, 1))) == [2.0, 2.0]
        assert not bad.any()
        bad[5] = float("inf")
        both = [threads.submit(check, rank, bucket, 0) for rank, bucket in ((0, ones), (2, bad))]
        for one in both:
            with pytest.raises(mlt.CancelledError, match=names("rank 2's tensors")) as error:
                one.result()
            assert error.value.peer == 2
