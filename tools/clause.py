"""Prints a clause of PROTOCOL.md or RECOVERY.md, the code that quotes it, and the tests and mutants that check it.

    python tools/clause.py 7.1.4        # a clause
    python tools/clause.py R2.3         # all clauses of a section

A test is listed if it names the clause, or its section, as PROTOCOL or RECOVERY; a mutant, if it changes the code just
below a quote. Other tests may check a clause without naming it: those of the file that quotes it are listed last.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python" / "protocol"))

from protocol_document import PROTOCOL, RECOVERY, Citation, Clause, citations, clauses, source_files  # noqa: E402

NUMBER = re.compile(r"R?\d+(\.\d+){0,2}")
# Code further below a quote belongs to another statement.
LINES_BELOW = 6
_NAMED = re.compile(r"PROTOCOL|RECOVERY|[Cc]lause")
_TEST_FILES = (".cc", ".h", ".py", ".txt")
# Checks of the documents themselves: examples of clauses are no tests of them.
_NO_TESTS = {"test_clauses.py", "protocol_document.py", "test_clause.py"}


def document_of(number: str) -> tuple[str, str]:
    """Name and text of the document that has the number."""
    return ("RECOVERY.md", RECOVERY) if number.startswith("R") else ("PROTOCOL.md", PROTOCOL)


def wanted(number: str) -> list[Clause]:
    """The clause of that number, or those of the section."""
    _, text = document_of(number)
    return [clause for clause in clauses(text) if f"{clause.number}.".startswith(f"{number}.")]


def similar(number: str) -> list[str]:
    """Numbers of the innermost section that exists, for an error."""
    while "." in number:
        number = number.rpartition(".")[0]
        if found := wanted(number):
            return [clause.number for clause in found]
    _, text = document_of(number)
    return list(dict.fromkeys(clause.number.split(".")[0] for clause in clauses(text)))


def line_of(clause: Clause) -> int:
    _, text = document_of(clause.number)
    start = f"**{clause.number}** "
    return next(at for at, line in enumerate(text.splitlines(), 1) if line.startswith(start))


def quotes(clause: Clause) -> list[Citation]:
    return [cited for name, text in source_files() for cited in citations(name, text) if cited.number == clause.number]


def tests_that_name(number: str) -> Iterator[tuple[str, str]]:
    """(place, line) below tests/ that names the number after the word of a document, on its line or the one above."""
    exact = re.compile(rf"(?<![\w.]){re.escape(number)}(?!\.?\d)")
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.suffix not in _TEST_FILES or path.name in _NO_TESTS or not path.is_file():
            continue
        above = ""
        for at, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if exact.search(line) and _NAMED.search(above + line):
                yield f"{path.relative_to(ROOT)}:{at}", line.strip()
            above = line


def mutants_at(found: list[Citation]) -> Iterator[str]:
    """Names of the mutants that change a line from a quote to ``LINES_BELOW`` below it."""
    for mutant in yaml.safe_load((ROOT / "tests/sim/mutants.yaml").read_text(encoding="utf-8")):
        text = (ROOT / mutant["file"]).read_text(encoding="utf-8")
        first = text[: text.find(mutant["find"])].count("\n") + 1
        last = first + mutant["find"].count("\n")
        for cited in found:
            file, _, at = cited.where.rpartition(":")
            if file == mutant["file"] and first <= int(at) + LINES_BELOW and last >= int(at):
                yield f"{mutant['name']} ({mutant['file']}:{first})"
                break


def tests_of_files(found: list[Citation]) -> list[str]:
    """Test files that bear the name of a file with a quote."""
    files = dict.fromkeys(Path(cited.where.rpartition(":")[0]) for cited in found)
    tests = (ROOT / "tests" / "unit" / file.parent.relative_to("src") / f"{file.stem}_test.cc" for file in files)
    return [str(test.relative_to(ROOT)) for test in tests if test.is_file()]


def show(clause: Clause) -> None:
    name, _ = document_of(clause.number)
    print(f"{name}:{line_of(clause)}: {clause.number}{' (informative)' if clause.informative else ''}")
    print(f"    {clause.text}")
    found = quotes(clause)
    _list("quoted in", [f"{cited.where}: {cited.obeyed_by}" for cited in found])
    _list("named by tests", [f"{place}: {line}" for place, line in tests_that_name(clause.number)])
    section = clause.number.rpartition(".")[0]
    _list(f"tests that name section {section}", [f"{place}: {line}" for place, line in tests_that_name(section)])
    _list("mutants", list(mutants_at(found)))
    _list("tests of these files", tests_of_files(found))


def _list(title: str, entries: list[str]) -> None:
    if entries:
        print(f"  {title}:")
        for entry in entries:
            print(f"    {entry}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", help="a clause or section: 7.1.4, R2.3")
    number: str = parser.parse_args().number.rstrip(".")
    if not NUMBER.fullmatch(number):
        print(f"error: {number!r} is no number of a clause (7.1.4) or section (R2.3)", file=sys.stderr)
        return 2
    found = wanted(number)
    if not found:
        print(f"error: {document_of(number)[0]} has no clause {number}; it has {', '.join(similar(number))}",
              file=sys.stderr)  # fmt: skip
        return 1
    for clause in found:
        show(clause)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
