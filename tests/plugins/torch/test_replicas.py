"""``verify_replicas``, between real processes."""

from __future__ import annotations

import torch
from checks import assert_names
from job import answers, run_job
from mlt.torch import replicas


def test_verify_replicas__names_what_differs_and_where_on_every_rank() -> None:
    told = answers(run_job("replicas", workers=3), workers=3)
    assert told[0] == told[1] == told[2]
    one_bit, one_less = told[0]
    assert_names(one_bit, "3.bias", "rank(s) 1")
    assert_names(one_less, "rank 1 has")


def test_verify_replicas__explains_buffers_and_can_leave_them_out() -> None:
    first, second = answers(run_job("replicas_with_buffers"))
    assert first == second
    buffers, alone, both, parameter = first
    assert_names(buffers, "0.running_mean", "rank(s) 1", "buffer", "BatchNorm", "buffers=False")
    assert alone == ""
    assert both == parameter
    assert_names(parameter, "1.bias", "outside the optimizer")


def test_verify_replicas__of_sharded_models_needs_the_ranks_with_the_same_parts() -> None:
    for sharded, alike, parts in answers(run_job("replicas_of_shards")):
        assert_names(sharded, "TypeError", "'bias'", "sharded", "full_tensor()", "HSDP")
        assert alike == ""
        assert_names(parts, "RuntimeError", "'bias'", "rank(s) 1")


def test_digest__distinguishes_name_type_shape_and_value() -> None:
    tensor = torch.arange(4, dtype=torch.float32)
    others = (("bias", tensor), ("w", tensor.view(torch.int32)), ("w", tensor.reshape(2, 2)), ("w", tensor + 0.5))
    digests = {replicas._digest(name, one) for name, one in (("w", tensor), *others)}
    assert len(digests) == 5
    assert replicas._digest("w", tensor.clone()) == replicas._digest("w", tensor)
