"""Tensors of a device, staged through host memory: the whole path on a stand-in whose copies come late."""

from __future__ import annotations

import pytest
import torch
from device_checks import Bucket
from mlt.torch import BoundedLossState, staging
from stand_in import StandIn
from transport_jobs import local_job


def test_pieces__cut_long_tensors_alike_and_keep_short_ones_together() -> None:
    short, long, strided = torch.zeros(10), torch.zeros(1_000), torch.arange(1_000.0).view(50, 20).t()
    (first, *cut) = staging.pieces_of([short, long, strided], piece_bytes=1_600)
    assert [one is short for one, *_ in first] == [True] * 3
    assert [piece.numel() for (piece,), *_ in cut[:3]] == [400, 400, 200]
    assert cut[0][0][0].data_ptr() == long.data_ptr()
    parts = [part for (part,), *_ in cut[3:]]
    assert [part.stop - part.start for part in parts] == [400, 400, 200]
    assert [(len(read), len(written)) for _, read, written in cut[3:]] == [(1, 0), (0, 0), (0, 1)]
    staged = staging.Staged(StandIn(), None)
    staged.mirror(strided).copy_(strided)
    assert torch.cat([staged.mirror(part) for part in parts]).tolist() == strided.reshape(-1).tolist()
    assert staging.pieces_of([], piece_bytes=1_600) == []


def test_device_of__refuses_what_is_in_two_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = StandIn(), StandIn()
    monkeypatch.setattr(staging, "_devices", [first, second])
    on_first, on_second = first.tensor(torch.zeros(3)), second.tensor(torch.zeros(3))
    assert staging.device_of([torch.zeros(3)], "allreduce") is None
    assert staging.device_of([], "barrier") is None
    assert staging.device_of([on_first, on_first], "allreduce") is first
    for others in ([torch.zeros(3)], [on_second]):
        with pytest.raises(TypeError, match=r"mlt allgather: .*one device"):
            staging.device_of([on_first, *others], "allgather")


def test_bucket__of_the_checks_is_what_ddp_gives_a_hook() -> None:
    names = {name for name in vars(Bucket) if not name.startswith("_")}
    assert names <= set(dir(torch.distributed.GradBucket))


def test_hook__fails_the_bucket_whose_copy_back_or_posting_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    device = StandIn()
    monkeypatch.setattr(staging, "_devices", [device])

    def refuse(*_: object) -> None:
        raise RuntimeError("out of memory")

    with local_job(2) as contexts:
        for step in ("copy_back", "synchronize"):
            states = [BoundedLossState(transport=context, loss_bound=0.0) for context in contexts]
            buckets = [Bucket(0, device.tensor(torch.ones(8)), last=True) for _ in states]
            with monkeypatch.context() as broken:
                broken.setattr(device, step, refuse)
                futures = [state.synchronise(bucket) for state, bucket in zip(states, buckets, strict=True)]  # type: ignore[arg-type]
                for future in futures:
                    with pytest.raises(RuntimeError, match=r"bucket 0 of step 0: out of memory"):
                        future.wait()
