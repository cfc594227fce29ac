"""tools/clause.py: a clause, the code that quotes it, and what checks it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from checks import assert_names
from protocol_document import DOCUMENT, clauses

ROOT = Path(__file__).resolve().parents[3]


def clause(*words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, ROOT / "tools" / "clause.py", *words]
    return subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)


def line_of(file: str, text: str) -> int:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return next(at for at, line in enumerate(lines, 1) if text in line)


def test_clause__its_text_quotes_mutants_and_tests() -> None:
    done = clause("7.1.4")
    assert done.returncode == 0, done.stderr
    quote = line_of("src/core/placement.cc", "// PROTOCOL 7.1.4: ")
    assert_names(
        done.stdout,
        f"PROTOCOL.md:{line_of('PROTOCOL.md', '**7.1.4** ')}: 7.1.4",
        "A receiver MUST NOT write a segment again that has arrived before (duplicate_segments).",
        f"src/core/placement.cc:{quote}: if (received_.test(segment)) return false;",
        "duplicate-counted-twice (src/core/placement.cc:",
        "tests/unit/core/placement_test.cc",
    )


def test_clause__tests_that_name_it() -> None:
    test = "tests/sim/scenarios/late_connection_test.cc"
    assert_names(clause("4.4.6").stdout, "named by tests", f"{test}:{line_of(test, 'PROTOCOL 4.4.6')}: ")
    assert "late_connection_test" not in clause("4.4.5").stdout


def test_clause__a_section_has_all_its_clauses() -> None:
    numbers = [one.number for one in clauses(DOCUMENT) if one.number.startswith("R2.3.")]
    found = clause("R2.3").stdout
    assert len(numbers) > 3
    assert_names(found, "RECOVERY.md:", *(f": {number}\n" for number in numbers))
    assert ": R2.4.1\n" not in found


@pytest.mark.parametrize(
    ("number", "code", "facts"),
    [
        ("7.1.99", 1, ("PROTOCOL.md", "7.1.99", "7.1.1, 7.1.2")),
        ("R77.1", 1, ("RECOVERY.md", "R77.1", "R1, R2")),
        ("7.1.x", 2, ("'7.1.x'", "7.1.4", "R2.3")),
    ],
)
def test_clause__an_unknown_number_is_an_error_with_those_that_exist(
    number: str, code: int, facts: tuple[str, ...]
) -> None:
    done = clause(number)
    assert done.returncode == code
    assert_names(done.stderr, *facts)
    assert done.stdout == ""
