"""Every clause of PROTOCOL.md and RECOVERY.md is cited by the code that obeys it, in the clause's own words."""

from __future__ import annotations

import re

import pytest
from protocol_document import DOCUMENT, PROTOCOL, RECOVERY, clauses, problems, quote_is_in, source_files

SMALL = """# A protocol

## 1 Reading (informative)

**1.1.1** No code need cite this.

## 2 Rules

### 2.1 Frames

**2.1.1** Each frame MUST be a length, a `type`, and
the payload.

**2.1.2** A frame that is too long is *malformed*.

| 2.1.9 | a table is no clause |

## R1 Rate

### R1.1 Pacing

**R1.1.1** A sender MUST wait.
"""
FIRST = "// PROTOCOL 2.1.1: Each frame MUST be a length, a type, and the payload.\nwrite(length);\n"
SECOND = "// PROTOCOL 2.1.2: A frame that is too long\nif (length > limit) return;\n" + (
    "// RECOVERY R1.1.1: A sender MUST wait.\nwait();\n"
)


@pytest.fixture
def small() -> str:
    return SMALL.replace("## 1 Reading", "## 1 Reading").replace("**1.1.1**", "### 1.1 Words\n\n**1.1.1**")


def found(document: str, source: str) -> list[str]:
    return problems(document, [("a.cc", source)])


def test_document__agrees_with_the_code() -> None:
    assert problems(DOCUMENT, source_files()) == []


def test_documents__have_their_own_clauses() -> None:
    protocol, recovery = ([clause.number for clause in clauses(text)] for text in (PROTOCOL, RECOVERY))
    assert len(protocol) > 150
    assert len(recovery) > 30
    assert not any(number.startswith("R") for number in protocol)
    assert all(number.startswith("R") for number in recovery)


def test_clauses__each_has_must_should_or_may() -> None:
    keyword = re.compile(r"\b(MUST|SHOULD|MAY)\b")
    assert [
        clause.number for clause in clauses(DOCUMENT) if not clause.informative and not keyword.search(clause.text)
    ] == []


def test_problems__none_when_all_is_cited(small: str) -> None:
    assert found(small, FIRST + SECOND) == []


def test_clauses__text_over_lines_without_markdown(small: str) -> None:
    parsed = {clause.number: clause for clause in clauses(small)}
    assert parsed["2.1.1"].text == "Each frame MUST be a length, a type, and the payload."
    assert parsed["1.1.1"].informative
    assert not parsed["2.1.1"].informative
    assert set(parsed) == {"1.1.1", "2.1.1", "2.1.2", "R1.1.1"}


def test_problems__uncited_clause(small: str) -> None:
    assert found(small, FIRST) == [
        "no line of code cites clause 2.1.2: A frame that is too long is *malformed*.",
        "no line of code cites clause R1.1.1: A sender MUST wait.",
    ]


def test_problems__citation_of_a_clause_that_does_not_exist(small: str) -> None:
    assert found(small, FIRST + SECOND + "// PROTOCOL 2.1.3: anything at all\nx();\n") == [
        "a.cc:7: there is no clause 2.1.3"
    ]


@pytest.mark.parametrize(
    "quote",
    [
        "Each frame MAY be a length",  # another word
        "the payload ... Each frame MUST be",  # another order
        "frame MUST be a leng",  # half a word
        "...",  # nothing
        "a type",  # next to nothing
    ],
)
def test_problems__quote_that_is_not_in_the_clause(small: str, quote: str) -> None:
    wrong = found(small, FIRST.replace("Each frame MUST be a length, a type, and the payload.", quote) + SECOND)
    assert len(wrong) == 1
    assert "not the words of 2.1.1" in wrong[0]


def test_problems__quote_rots_when_the_clause_changes(small: str) -> None:
    assert len(found(small.replace("and\nthe payload", "and\na checksum"), FIRST + SECOND)) == 1


def test_problems__citation_above_nothing(small: str) -> None:
    assert "no line of code" in found(small, SECOND + FIRST.replace("write(length);\n", ""))[0]
    assert "no line of code" in found(small, SECOND + FIRST.replace("write(length);", ""))[0]


@pytest.mark.parametrize(
    "comment",
    [
        "// protocol 2.1.2: too long",
        "/* PROTOCOL 2.1.2: x */",
        "// PROTOCOL.md 2.1.2",
        "// RECOVERY 2.1.2: A frame that is too long",  # the other document's
        "// PROTOCOL R1.1.1: A sender MUST wait.",
        "// recovery R1.1.1",
    ],
)
def test_problems__comment_that_is_nearly_a_citation(small: str, comment: str) -> None:
    assert "not of the form" in found(small, FIRST + comment + "\nx();\n")[0]


def test_problems__clause_twice_or_misplaced(small: str) -> None:
    assert found(small.replace("2.1.2", "2.1.1"), "") == ["clause 2.1.1 is there twice"]
    assert found(small.replace("2.1.2", "2.2.2"), "") == ["clause 2.2.2 stands in section 2.1"]


def test_quote_is_in__ellipsis_and_continuation(small: str) -> None:
    assert quote_is_in("Each frame MUST be ... the payload.", "Each frame MUST be a length, a type, and the payload.")
    split = FIRST.replace("a type, and", "a type,\n//     and")
    assert found(small, split + SECOND) == []
