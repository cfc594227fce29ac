"""After a failed collective: every verb keeps what docs/pytorch.md says of the next call of its group."""

from __future__ import annotations

from typing import Any

import pytest
from checks import assert_names
from job import answers, run_job

VERBS = 18


@pytest.mark.parametrize("failure", ["mismatch", "timeout"])
def test_failed_call__ends_once_on_every_rank_and_the_next_works(failure: str) -> None:
    told: list[dict[str, dict[str, Any]]] = answers(run_job("failures", workers=3, failure=failure), workers=3)
    for rank, verbs in enumerate(told):
        assert len(verbs) == VERBS
        for verb, found in verbs.items():
            assert found["next"] == "", (rank, verb)
            assert found["right"], (rank, verb)
            assert_names(found["error"], "mlt ", "group", f"rank {rank}", "rank 1")
            if failure == "timeout":
                assert_names(found["error"], "timeout")


def test_dead_rank__fails_every_later_call_of_its_group_and_no_other() -> None:
    for outcome in run_job("death", workers=3, kill=2)[:2]:
        assert len(outcome.answer) == VERBS
        for verb, found in outcome.answer.items():
            for error in found["errors"]:
                assert error, verb
                assert_names(error, "rank 2")
            assert found["right"], verb
