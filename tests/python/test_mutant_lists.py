"""The lists of faults that `make mutants` plants: each still fits the code, so that no change silently disarms one.

Which hunters a fault meets, and that of hunts beside each other the first failure in their order is the one reported.
"""

from __future__ import annotations

import re
import shutil
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


def test_unit_tests__those_of_the_faulty_file_go_first_and_all_follow(mutants: ModuleType) -> None:
    fault = mutants.Mutant("name", "src/core/early_buffer.h", "find", "replace")
    first, all_of_them = mutants.unit_tests("test_core", ROOT / "tests/unit/core", fault)
    names = {path.name for path in (ROOT / "tests/unit/core").rglob("*.cc") if re.search(first.test_files, str(path))}
    assert "early_data_limit_test.cc" in names  # by its name
    assert "tables_test.cc" in names  # it includes the header
    assert "timing_wheel_test.cc" not in names
    assert all_of_them.test_files == ""
    assert first.target == all_of_them.target == "test_core"


def test_seen_by__names_a_test_file_which_is_built_first_and_needs_no_swarm(mutants: ModuleType) -> None:
    named = [fault for fault in mutants.read_mutants(ROOT / "tests" / "sim" / "mutants.yaml") if fault.seen_by]
    assert named
    for fault in named:
        first = mutants.hunters_of("tests", fault, 1)[0]
        assert fault.seen_by in first.test_files, fault.name
        if fault.hunter == "tests":
            assert mutants.hunters_of("all", fault, 1)[0] == first


def test_hunters__every_fault_meets_all_tests_of_its_layer(mutants: ModuleType) -> None:
    for name in ("mutants.yaml", "drawn_mutants.yaml"):
        for fault in mutants.read_mutants(ROOT / "tests" / "sim" / name):
            whole = [hunter.target for hunter in mutants.hunters_of("tests", fault, 1) if hunter.test_files == ""]
            expected = mutants.TESTS[str(Path(fault.file).parent)] if fault.hunter != "micro" else {}
            assert whole == list(expected), fault.name
            assert all(any((ROOT / "tests" / folder).rglob("*.cc")) for folder in expected.values())


def test_workshop__is_all_that_the_build_needs_also_for_a_few_test_files(mutants: ModuleType, tmp_path: Path) -> None:
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        pytest.skip("needs cmake and ninja, which the environment of make has")
    fault = mutants.Mutant("name", "src/core/early_buffer.h", "find", "replace")
    workshop = mutants.Workshop(tmp_path, 1)
    for hunter in (mutants.swarm(1), *mutants.unit_tests("test_core", ROOT / "tests/unit/core", fault)):
        workshop.configure(hunter)
        command = ["ninja", "-C", str(tmp_path / "build"), "-t", "query", f"tests/{hunter.target}"]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0, hunter


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
