"""Options of a process group: what it may lose, and what it may not, between real processes."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlt.torch
import pytest
import torch.distributed as dist
from checks import assert_names, in_threads, names
from job import answers, run_job
from mlt.torch import group_options
from mlt.torch.group_options import allowance_of, options_of
from torch._C._distributed_c10d import Backend

from mlt._gradients.statistics import Losses

PROGRAMS = Path(__file__).with_name("group_options_programs.py")
WORKERS = 3


def check_calls(told: list[dict[str, Any]], bound: float) -> None:
    """Checks each rank's shares of short elements: below the bound where elements may be short, else 0."""
    for rank in told:
        exact = {name: share for name, share in rank.items() if name.startswith("exact")}
        lossy = {name: share for name, share in rank.items() if name not in exact and name != "digest"}
        assert len(exact) == 10
        assert set(exact.values()) == {0.0}, exact
        assert max(lossy.values()) <= (WORKERS - 1) * bound, lossy  # of each of the sums that a result passes
    assert len({rank["digest"] for rank in told}) == 1


def check_losses(told: list[dict[str, Any]]) -> None:
    """Checks the losses of the calls on floating point: five all-reduces, a mean, one element, and two
    reduce-scatters."""
    assert {rank["reductions"] for rank in told} == {9}
    all_reduces, inputs_of_reduce_scatters = 4 + 8 + 2 + 2 + 4 + 4, 2 * WORKERS * 4
    assert {rank["bytes"] for rank in told} == {(1 << 20) * (all_reduces + inputs_of_reduce_scatters) + 4}
    assert all(rank["missing_bytes"] > 0 and rank["repairs"] > 0 for rank in told)


def short_shares(told: list[dict[str, Any]], name: str) -> float:
    return sum(share for rank in told for call, share in rank.items() if call.startswith(name))


@pytest.mark.parametrize(
    ("program", "bound", "given"), [("lossy_default_group", 0.1, "10%"), ("lossy_new_group", 0.05, 0.05)]
)
def test_loss_bound__holds_for_this_groups_sums_and_for_nothing_else(program: str, bound: float, given: object) -> None:
    told = answers(run_job(program, workers=WORKERS, programs=PROGRAMS, drop=0.05, bound=given), workers=WORKERS)
    check_calls([rank["with"] for rank in told], bound)
    for name in ("all_reduce", "reduce_scatter"):
        assert short_shares([rank["with"] for rank in told], name) > 0.0, name
    check_calls([rank["without"] for rank in told], 0.0)
    check_losses([rank["losses"] for rank in told])
    if program == "lossy_default_group":
        assert 0.0 < max(rank["lossy"] for rank in told) <= (WORKERS - 1) * 0.2


def test_wrong_options__are_refused_before_the_rank_waits_for_others() -> None:
    for rank in answers(run_job("refused", programs=PROGRAMS)):
        for error, kind in zip(rank["errors"], ("dict", "str", "Options", "float"), strict=True):
            assert_names(error, "TypeError", "pg_options", kind, "mlt.torch.Options")
        assert rank["sum"] == [2.0] * 3
        assert_names(rank["differs"], "loss bound 0,", "loss bound 0.1,", "rank 0", "rank 1")


def test_options__read_the_grammar_of_losses() -> None:
    assert group_options.Options().loss_bound == 0.0
    for given in ("1%", "0.01", 0.01, "1 %"):
        assert mlt.torch.Options(loss_bound=given).loss_bound == 0.01


@pytest.mark.parametrize("bound", ["1", "100%", 1.0, -0.1, "-1%", "a few", None, True, float("nan")])
def test_options__refuse_what_is_no_bound(bound: Any) -> None:
    with pytest.raises(ValueError, match="loss"):
        mlt.torch.Options(loss_bound=bound)
    with pytest.raises(TypeError):
        mlt.torch.Options(0.1)  # type: ignore[misc]


def test_options__are_torchs_and_may_be_copied() -> None:
    options = mlt.torch.Options(loss_bound="1%")
    assert isinstance(options, Backend.Options)  # what torch's device meshes accept
    for one in (options, copy.copy(options), copy.deepcopy(options), pickle.loads(pickle.dumps(options))):
        assert (one.loss_bound, one.backend, str(one)) == (0.01, "mlt", "Options(loss_bound=0.01)")
    with pytest.raises(AttributeError):
        options.loss_bound = 0.5  # type: ignore[misc]


def test_options__have_results_that_may_lose_and_checksums() -> None:
    options = mlt.torch.Options(loss_bound="1%", lossy_results=True, checksums=True)
    for one in (options, copy.copy(options), pickle.loads(pickle.dumps(options))):
        assert (one.lossy_results, one.checksums) == (True, True)
        assert str(one) == "Options(loss_bound=0.01, lossy_results=True, checksums=True)"
        assert allowance_of(one).lossy_results
    assert not allowance_of(mlt.torch.Options(lossy_results=True)).lossy_results  # nothing may be lost
    for wrong in ({"lossy_results": "yes"}, {"checksums": 1}):
        with pytest.raises(ValueError, match=names(*wrong, "True or False" if "lossy_results" in wrong else "None")):
            mlt.torch.Options(**wrong)  # type: ignore[arg-type]


def test_lossy_results__of_a_group_lose_on_the_way_back_too() -> None:
    program = "lossy_results_of_a_group"
    for told in answers(run_job(program, workers=WORKERS, programs=PROGRAMS, drop=0.05), workers=WORKERS):
        assert told["posted"] == [True, False, False, True, False]  # see the program
        assert told["reductions"] == 2


def test_checksums__are_those_of_the_group_that_starts_the_job() -> None:
    for told in answers(run_job("checked", programs=PROGRAMS)):
        assert told["checksums"] is True
        assert told["sum"] == [2.0] * 3
        assert_names(told["error"], "ConfigError", "checksums=False", "init_process_group", "MLT_CHECKSUMS")


def test_losses__are_counted_from_every_thread_and_start_at_0() -> None:
    options = mlt.torch.Options(loss_bound="1%")
    assert options.losses == Losses()
    assert options.losses.loss_fraction == 0.0
    done: Any = SimpleNamespace(bytes=100, missing_bytes=3, repairs=2)
    observe = allowance_of(options).observe
    assert observe is not None
    in_threads(lambda: [observe(done) for _ in range(100)], [()] * 4)
    assert options.losses == Losses(400, 40_000, 1_200, 800)
    assert options.losses.loss_fraction == 0.03
    assert allowance_of(mlt.torch.Options()).observe is None  # exact


def test_options_of__are_exact_without_any_and_never_anothers() -> None:
    assert options_of(None).loss_bound == 0.0
    options = mlt.torch.Options(loss_bound=0.2)
    assert options_of(options) is options
    with pytest.raises(TypeError, match=names("_Options", "mlt.torch.Options")):
        options_of(dist.ProcessGroupGloo._Options())
