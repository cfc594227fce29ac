"""The lists of faults that `make mutants` plants: each still fits the code, so that no change silently disarms one.

And the hunts for a fault that run beside each other: the first failure in their order is the one reported.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from checks import until
from loading import load

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return load(ROOT / "tools" / "mutants.py")


@pytest.mark.parametrize("name", ["mutants.yaml", "drawn_mutants.yaml"])
def test_list__applies_to_the_code(name: str, mutants: ModuleType) -> None:
    faults = mutants.read_mutants(ROOT / "tests" / "sim" / name)
    assert len({fault.name for fault in faults}) == len(faults) > 50


def test_swarm__its_hunts_are_all_seeds_once_in_order(mutants: ModuleType) -> None:
    for seeds in (1, 200, 201, 2_000):
        covered = []
        for hunt in mutants.swarm(seeds).hunts:
            options = dict(zip(hunt[::2], hunt[1::2], strict=True))
            first = int(options["--first"])
            covered += range(first, first + int(options["--count"]))
        assert covered == list(range(1, seeds + 1))


def test_first_failure__is_the_first_of_their_order_not_of_time(mutants: ModuleType, tmp_path: Path) -> None:
    later, survivor = tmp_path / "later", tmp_path / "survivor"
    waits = f"until [ -e {later} ] && [ -e {survivor} ]; do sleep 0.02; done; echo text of the first; exit 3"
    commands = [
        ["sh", "-c", "exit 0"],
        ["sh", "-c", waits],
        ["sh", "-c", f"touch {later}; exit 4"],
        ["sh", "-c", f"echo $$ > {survivor}.part; mv {survivor}.part {survivor}; exec sleep 1000"],
    ]
    assert mutants.first_failure(commands, at_once=3, limit_s=60) == (3, "text of the first\n")
    pid = int(survivor.read_text())
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_first_failure__none_where_all_pass_and_a_limit_that_ends_one(mutants: ModuleType) -> None:
    assert mutants.first_failure([["true"]] * 5, at_once=2, limit_s=60) is None
    with pytest.raises(subprocess.TimeoutExpired):
        mutants.first_failure([["sleep", "1000"], ["true"]], at_once=2, limit_s=0.2)
