"""Options that ``mlt perf`` rejects before it starts anything, and the facts in its errors."""

from __future__ import annotations

from typing import Any

import pytest
from perf_runs import perf

from mlt.perf.options import TRANSPORTS, Options
from mlt.perf.problem import BadOptionError


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"pattern": "star"}, "--pattern 'star': expected one of p2p"),
        ({"ranks": 3}, "p2p has 2 ranks"),
        ({"pattern": "incast", "ranks": 1}, "--ranks 1: expected 2 to 64"),
        ({"rounds": 0}, "--rounds 0"),
        ({"turns": 0}, "--turns 0"),
        ({"sizes": ()}, "--size"),
        ({"sizes": (6,)}, "--size 6"),
        ({"pattern": "alltoall", "ranks": 3, "sizes": (64,)}, "multiple of 12"),
        ({"loss_bounds": (1.0,)}, "--loss-bound 100%"),
        ({"loss_bounds": (float("nan"),)}, "--loss-bound nan"),
        ({"loss_bounds": ()}, "--loss-bound"),
        ({"loss_bounds": (0.1, 0.1)}, "--loss-bound"),
        ({"stop": "never"}, "stop 'never'"),
        ({"stop": "eager", "pattern": "alltoall", "sizes": (64,)}, "--stop eager: alltoall"),
        ({"priority": "none", "pattern": "allreduce"}, "--priority none: allreduce"),
        ({"algorithms": ("tree",), "pattern": "allreduce"}, "--algorithm 'tree': expected one of automatic, direct"),
        ({"algorithms": ("ring", "ring"), "pattern": "allreduce"}, "--algorithm"),
        ({"algorithms": (), "pattern": "allreduce"}, "--algorithm"),
        ({"algorithms": ("ring",)}, "--algorithm ring: p2p has no such choice"),
        ({"algorithms": ("ring",), "pattern": "allgather"}, "'ring': expected one of automatic, direct, two-level"),
        ({"algorithms": ("halving",), "pattern": "reduce"}, "'halving': expected one of automatic, direct, chain"),
        ({"pattern": "broadcast", "loss_bounds": (0.0, 0.1)}, "a broadcast loses nothing"),
        ({"pattern": "allgather", "ranks": 3, "sizes": (64,)}, "multiple of 12"),
        ({"compare": ("udt",)}, "--compare 'udt': expected one of tcp"),
        ({"segment_bytes": 100}, "--segment-bytes 100"),
        ({"paths": 0}, "--paths 0"),
        ({"datapath": "dpdk"}, "datapath 'dpdk'"),
        ({"rate": 5}, "--rate 5 bit/s"),
        ({"timeout": 0.0}, "--timeout 0"),
        ({"faults": "drop=2"}, "drop=2"),
    ],
)
def test_options__rejects(given: dict[str, Any], text: str) -> None:
    with pytest.raises(BadOptionError) as caught:
        Options(**given)
    assert text in str(caught.value)


@pytest.mark.parametrize("given", [{"paths": 2}, {"datapath": "udp"}, {}])
def test_options__path_options_reach_the_context(given: dict[str, Any]) -> None:
    assert Options(**given).context_arguments == given


def test_options__all_is_optional_a_name_is_not() -> None:
    options = Options(compare=("all", "gloo"))
    assert options.transports == TRANSPORTS
    assert options.is_optional("mpi")
    assert not options.is_optional("gloo")


def test_options__come_back_from_json_checked() -> None:
    options = Options(pattern="incast", ranks=4, sizes=(1024, 2048), loss_bounds=(0.0, 0.1), rate=10**9)
    assert Options.read(options.as_dict() | {"sizes": [1024, 2048]}) == options
    for raw in ({"unknown": 1}, {"rounds": "many"}, {"sizes": [3]}):
        with pytest.raises(BadOptionError):
            Options.read(raw)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--local", "--size", "1"], "--size 1"),
        (["--local", "--serve"], "--serve and --local: give one of them"),
        (["--local", "--once"], "--once goes with --serve"),
        (["127.0.0.1", "--ranks", "3"], "--ranks goes with --local"),
        (["--local", "--interface", "nope0"], "leaves no interface"),
        (["--local", "--pin", "--pattern", "incast", "--ranks", "64"], "--pin: 64 ranks need a core each"),
        (["--local", "--loss-bound", "most"], "--loss-bound 'most'"),
        (["--local", "--pattern", "incast", "--compare", "raw-udp"], "pattern incast"),
        ([], "--local, --serve, HOST"),
    ],
)
def test_command__reports_the_error_and_exits_with_2(words: list[str], text: str) -> None:
    done = perf(*words)
    # Whether a transport can run here is not the command line's fault alone.
    assert done.returncode == (1 if "--compare" in words and "raw-udp" in words else 2)
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_command__wants_a_world_size_with_a_rank() -> None:
    done = perf("--pattern", "allreduce", RANK="0")
    assert done.returncode == 2
    assert "WORLD_SIZE" in done.stderr
