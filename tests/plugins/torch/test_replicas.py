"""``verify_replicas``, between real processes."""

from __future__ import annotations

from checks import assert_names
from job import answers, run_job


def test_verify_replicas__names_what_differs_and_where_on_every_rank() -> None:
    told = answers(run_job("replicas", workers=3), workers=3)
    assert told[0] == told[1] == told[2]
    one_bit, one_less = told[0]
    assert_names(one_bit, "3.bias", "rank(s) 1")
    assert_names(one_less, "rank 1 has")
