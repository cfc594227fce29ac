"""The removed I/O threads: a context that requests them gets the replacement in an error, before anything is opened."""

from __future__ import annotations

from typing import Any

import pytest

import mlt
from mlt.options.io_threads import refuse


@pytest.mark.parametrize(
    ("count", "cpus", "variables"),
    [
        (None, None, {}),
        (0, None, {}),
        (None, [], {}),
        (None, None, {"MLT_IO_THREADS": " 0 ", "MLT_IO_CPUS": ""}),
    ],
)
def test_refuse__accepts_none_of_them(count: Any, cpus: Any, variables: dict[str, str]) -> None:
    refuse(count, cpus, environ=variables)  # raises nothing


@pytest.mark.parametrize(
    ("count", "cpus", "variables", "words"),
    [
        (2, None, {}, "io_threads is 2"),
        (None, [3], {}, r"io_cpus is \[3\]: .*Leave the option out"),
        (None, None, {"MLT_IO_THREADS": "1"}, "MLT_IO_THREADS is '1': .*use several ranks"),
        (None, None, {"MLT_IO_CPUS": "2-5"}, "MLT_IO_CPUS is '2-5': "),
    ],
)
def test_refuse__names_the_replacement(count: Any, cpus: Any, variables: dict[str, str], words: str) -> None:
    with pytest.raises(mlt.ConfigError, match=words):
        refuse(count, cpus, environ=variables)


def test_context__rejects_io_threads_by_argument_and_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(mlt.ConfigError, match="io_threads is 2: "):
        mlt.Context(0, 1, io_threads=2)
    monkeypatch.setenv("MLT_IO_THREADS", "2")
    with pytest.raises(mlt.ConfigError, match="MLT_IO_THREADS is '2': "):
        mlt.Context(0, 1)
