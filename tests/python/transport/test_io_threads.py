"""``io_threads=``, ``io_cpus=`` and their variables: what they mean, what is refused, and a job over them."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transport_jobs import free_port

import mlt
from mlt.io_threads import IoThreads, resolve


def test_resolve__arguments_before_variables() -> None:
    variables = {"MLT_IO_THREADS": "3", "MLT_IO_CPUS": "0,2-3"}
    assert resolve(None, None, environ={}) == IoThreads()
    assert resolve(None, None, environ={"MLT_IO_THREADS": " 2 "}) == IoThreads(count=2)
    assert resolve(None, None, environ={"MLT_IO_CPUS": "4-6"}) == IoThreads(count=3, cpus=(4, 5, 6))
    assert resolve(None, None, environ=variables) == IoThreads(count=3, cpus=(0, 2, 3))
    assert resolve(1, None, environ=variables) == IoThreads(count=1)
    assert resolve(0, None, environ=variables) == IoThreads()
    assert resolve(None, [5, 5], environ=variables) == IoThreads(count=2, cpus=(5, 5))


@pytest.mark.parametrize(
    ("count", "cpus", "words"),
    [
        (-1, None, "io_threads is -1; give 0 to 16"),
        (17, None, "io_threads is 17; give 0 to 16"),
        ("2", None, "io_threads is '2'"),
        (True, None, "io_threads is True"),
        (2, [1], "io_threads is 2 and io_cpus names 1 CPUs; give one for each thread"),
        (1, [-3], "io_cpus names CPU -3"),
        (1, ["3"], "io_cpus names CPU '3'"),
    ],
)
def test_resolve__refuses_bad_arguments(count: Any, cpus: Any, words: str) -> None:
    with pytest.raises(mlt.ConfigError, match=words):
        resolve(count, cpus, environ={})


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"MLT_IO_THREADS": "two"}, "MLT_IO_THREADS is 'two'; it is a number of threads"),
        ({"MLT_IO_THREADS": "99"}, "MLT_IO_THREADS is 99; give 0 to 16"),
        ({"MLT_IO_CPUS": "1,x"}, "MLT_IO_CPUS is '1,x'; it is a list of CPUs such as 3,5 or 2-5"),
        ({"MLT_IO_CPUS": "5-2"}, "MLT_IO_CPUS is '5-2'"),
        ({"MLT_IO_THREADS": "3", "MLT_IO_CPUS": "1"}, "MLT_IO_THREADS is 3 and MLT_IO_CPUS names 1 CPUs"),
    ],
)
def test_resolve__refuses_bad_variables(variables: dict[str, str], words: str) -> None:
    with pytest.raises(mlt.ConfigError, match=words):
        resolve(None, None, environ=variables)


def own_threads() -> list[str]:
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return sorted(name for name in names if name.startswith("mlt-io-"))


def alone(**options: Any) -> mlt.Context:
    """A job of one rank: it opens its sockets and threads like any other."""
    return mlt.Context(0, 1, master_addr="127.0.0.1", rendezvous_port=free_port(), host="127.0.0.1", **options)


def test_context__opens_threads_by_argument_or_variable_and_none_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    with alone(paths=4):
        assert own_threads() == []
    with alone(paths=4, io_threads=2):
        assert own_threads() == ["mlt-io-0", "mlt-io-1"]
    assert own_threads() == []
    monkeypatch.setenv("MLT_IO_CPUS", str(min(os.sched_getaffinity(0))))
    with alone():
        assert own_threads() == ["mlt-io-0"]
    assert own_threads() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"io_threads": 2}, "rank 0: io_threads is 2, and there is 1 path: each thread serves one at least"),
        ({"paths": 2, "io_threads": 4}, "io_threads is 4, and there are 2 paths"),
        ({"io_cpus": [9_999]}, r"I/O thread 0 can't run on CPU 9999: this process may use .*; give io_cpus from these"),
        ({"io_threads": 1, "datapath": "xdp"}, "io_threads is for 'udp'"),
    ],
)
def test_context__refuses_threads_without_paths_cpus_or_sockets(options: dict[str, Any], words: str) -> None:
    with pytest.raises(mlt.ConfigError, match=words):
        alone(**options)
    assert own_threads() == []


@pytest.mark.parametrize("faults", [mlt.Faults(), mlt.Faults(drop=0.02, seed=3)])
def test_context__a_job_over_four_paths_and_two_threads(faults: mlt.Faults) -> None:
    """Ranks may differ: the third has no threads."""
    ranks, port = 3, free_port()
    counters: dict[int, dict[str, int]] = {}
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            with mlt.Context(
                rank,
                ranks,
                master_addr="127.0.0.1",
                rendezvous_port=port,
                host="127.0.0.1",
                paths=4,
                io_threads=0 if rank == 2 else 2,
                faults=faults,
                operation_timeout=20,
            ) as context:
                for turn in range(5):
                    tensor = np.arange(300_000, dtype=np.float32) * (rank + 1 + turn)
                    context.all_reduce(tensor, average=False)
                    expected = np.arange(300_000, dtype=np.float32) * float(6 + 3 * turn)
                    np.testing.assert_allclose(tensor, expected, rtol=1e-6)
                counters[rank] = context.counters()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    for rank in (0, 1):
        assert counters[rank]["io_threads"] == 2
        assert all(counters[rank][f"udp_path{path}_runs_sent"] > 0 for path in range(4))
        assert (counters[rank].get("fault_dropped", 0) > 0) == (faults.drop > 0)
    assert "io_threads" not in counters[2]
    assert own_threads() == []
