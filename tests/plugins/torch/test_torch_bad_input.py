"""Calls that differ from rank to rank, unusual tensors and ways to start, through the backend."""

from __future__ import annotations

from pathlib import Path

from checks import assert_names
from job import answers, run_job

PROGRAMS = Path(__file__).with_name("bad_input_programs.py")
SOON_SECONDS = 5.0

# What the errors name: of rank 0's call, of the others'.
MISMATCHES = {
    "SUM, MAX": ("sum", "max"),
    "all_reduce, broadcast": ("all-reduce", "broadcast"),
    "all_reduce, barrier": ("all-reduce", "barrier"),
    "roots": ("root 0", "root 1"),
    "float32, float64": ("float32", "float64"),
    "5, 6 elements": ("20 bytes", "24 bytes"),
    "broadcast of float32, int32": ("float32", "int32"),
    "gather of float32, int32": ("float32", "int32"),
    "scatter of float32, int32": ("float32", "int32"),
    "all_gather of float32, int32": ("float32", "int32"),
    "all_gather_into_tensor of float32, int32": ("float32", "int32"),
    "all_to_all of float32, int32": ("float32", "int32"),
    "all_to_all_single of float32, int32": ("float32", "int32"),
}


def test_calls__that_differ_are_an_error_on_every_rank_that_names_both() -> None:
    for rank, told in enumerate(answers(run_job("mismatches", workers=3, programs=PROGRAMS), workers=3)):
        for name, facts in MISMATCHES.items():
            found = told[name]
            assert_names(found["error"], "RuntimeError", f"rank {rank}", "rank 0", *facts)
            assert found["seconds"] < SOON_SECONDS, (rank, name)
            assert found["next"] == 3.0, (rank, name)


def test_bool__is_combined_bit_by_bit() -> None:
    for told in answers(run_job("bools", workers=3, programs=PROGRAMS), workers=3):
        assert told["wrong"] == []
        assert_names(told["mean"], "TypeError", "AVG", "bool")
        assert told["next"] == 3.0


def test_empty_tensors__are_taken_by_each_verb() -> None:
    for told in answers(run_job("empties", workers=3, programs=PROGRAMS), workers=3):
        assert told == {"errors": {}, "right": True, "next": 3.0}


def test_mean__of_complex_tensors() -> None:
    for told in answers(run_job("means_of_complex", workers=3, programs=PROGRAMS), workers=3):
        assert told == {"wrong": [], "next": 3.0}


def test_init__for_the_cpu_alone() -> None:
    for told in answers(run_job("cpu_alone", programs=PROGRAMS)):
        assert told == {"sums": [2.0, 2.0], "backend": "cpu:mlt"}


def test_init__twice_is_an_error_that_leaves_the_first() -> None:
    for told in answers(run_job("twice", programs=PROGRAMS)):
        for one in told:
            assert_names(one["error"], "twice")
            assert one["sum"] == 2.0


def test_options__of_subgroups_and_of_a_mesh() -> None:
    for told in answers(run_job("options_of_groups", workers=4, programs=PROGRAMS), workers=4):
        assert told["bounds"] == [0.1, 0.2, 0.05, 0.0]
        assert told["sums"] == [2.0, 2.0, 2.0, 4.0]
        assert told["wrong"]
