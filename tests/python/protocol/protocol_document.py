"""PROTOCOL.md, RECOVERY.md and the comments that cite them, as data: clauses, citations, tables.

Pure text: nothing here imports mlt, so that a broken build does not hide a broken document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROTOCOL = (ROOT / "PROTOCOL.md").read_text()
RECOVERY = (ROOT / "RECOVERY.md").read_text()
DOCUMENT = PROTOCOL + "\n" + RECOVERY

_HEADING = re.compile(r"^(#{2,3}) (?P<number>R?\d+(?:\.\d+)?|[A-Z]) (?P<title>.+)$")
_CLAUSE = re.compile(r"^\*\*(?P<number>R?\d+\.\d+\.\d+)\*\* (?P<text>.+)$")
# A number that starts with R is of RECOVERY.md, every other of PROTOCOL.md.
_CITATION = re.compile(r"^\s*// (?:PROTOCOL (?=\d)|RECOVERY (?=R))(?P<number>R?\d+\.\d+\.\d+): (?P<quote>\S.*)$")
_CONTINUATION = re.compile(r"^\s*//     (?P<quote>\S.*)$")
# Whatever looks like a citation must be one: a form of its own would escape the checks.
_NEARLY = re.compile(r"(protocol|recovery)(\.md)?[\s:,]*(clause|section)?[\s:,]*R?\d+\.\d", re.IGNORECASE)
_SHORTEST_QUOTE = 12


@dataclass(frozen=True, slots=True)
class Clause:
    number: str
    text: str
    informative: bool = False


@dataclass(frozen=True, slots=True)
class Citation:
    where: str  # "src/core/sender.cc:12"
    number: str
    quote: str
    obeyed_by: str  # the line of code below; empty if there is none


def _plain(text: str) -> str:
    """Without the marks of Markdown, with single spaces."""
    return " ".join(text.replace("**", "").replace("`", "").split())


def clauses(document: str) -> list[Clause]:
    """Every clause in order. Raises ValueError on a number that is used twice or stands in another section."""
    found: list[Clause] = []
    section, informative = "", {2: False, 3: False}
    paragraph: list[str] = []
    number = ""
    fenced = False

    def close() -> None:
        if number:
            found.append(Clause(number, _plain(" ".join(paragraph)), any(informative.values())))

    for line in [*document.splitlines(), ""]:
        if line.startswith("```"):
            fenced = not fenced
        heading = None if fenced else _HEADING.match(line)
        start = None if fenced else _CLAUSE.match(line)
        if heading or start or not line.strip() or line.startswith(("```", "|")):
            close()
            number = ""
        if heading:
            level = len(heading[1])
            section = heading["number"]
            informative[level] = heading["title"].endswith("(informative)")
            if level == 2:
                informative[3] = False
        elif start:
            number, paragraph = start["number"], [start["text"]]
            if number.rsplit(".", 1)[0] != section:
                raise ValueError(f"clause {number} stands in section {section}")
            if any(clause.number == number for clause in found):
                raise ValueError(f"clause {number} is there twice")
        elif number:
            paragraph.append(line)
    return found


def citations(name: str, source: str) -> Iterator[Citation]:
    """Citations in the text of one source file. Raises ValueError on a comment that is nearly one."""
    lines = source.splitlines()
    at = 0
    while at < len(lines):
        match = _CITATION.match(lines[at])
        where = f"{name}:{at + 1}"
        if match is None:
            if _NEARLY.search(lines[at]):
                raise ValueError(
                    f"{where}: not of the form '// PROTOCOL 1.2.3: words of the clause': {lines[at].strip()}"
                )
            at += 1
            continue
        quote = match["quote"]
        at += 1
        while at < len(lines) and (more := _CONTINUATION.match(lines[at])):
            quote += " " + more["quote"]
            at += 1
        below = at
        while below < len(lines) and lines[below].lstrip().startswith("//"):
            below += 1
        yield Citation(where, match["number"], quote.strip(), lines[below].strip() if below < len(lines) else "")


def quote_is_in(quote: str, text: str) -> bool:
    """True if the pieces between ellipses stand in `text`, in this order, whole words, and say something."""
    pieces = [piece.strip() for piece in _plain(quote).split("...") if piece.strip()]
    if sum(len(piece) for piece in pieces) < min(_SHORTEST_QUOTE, len(text)):
        return False
    at = 0
    for piece in pieces:
        match = re.compile(r"(?<!\w)" + re.escape(piece) + r"(?!\w)").search(text, at)
        if match is None:
            return False
        at = match.end()
    return True


def problems(document: str, sources: Iterable[tuple[str, str]]) -> list[str]:
    """The differences between the document and the sources, (name, text) each: empty if there are none."""
    try:
        known = {clause.number: clause for clause in clauses(document)}
    except ValueError as error:
        return [str(error)]
    wrong: list[str] = []
    cited: set[str] = set()
    for name, text in sources:
        try:
            found = list(citations(name, text))
        except ValueError as error:
            wrong.append(str(error))
            continue
        for citation in found:
            cited.add(citation.number)
            clause = known.get(citation.number)
            if clause is None:
                wrong.append(f"{citation.where}: there is no clause {citation.number}")
            elif not quote_is_in(citation.quote, clause.text):
                wrong.append(
                    f"{citation.where}: not the words of {clause.number}: '{citation.quote}'\n    {clause.text}"
                )
            if not citation.obeyed_by:
                wrong.append(f"{citation.where}: no line of code stands below the citation of {citation.number}")
    wrong += [
        f"no line of code cites clause {clause.number}: {clause.text}"
        for clause in known.values()
        if not clause.informative and clause.number not in cited
    ]
    return wrong


def source_files() -> list[tuple[str, str]]:
    """(path, text) of every C and C++ file of the product."""
    paths = sorted(path for path in (ROOT / "src").rglob("*") if path.suffix in {".h", ".cc", ".c"})
    return [(path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths]


def table(document: str, after: str) -> list[list[str]]:
    """Cells of the first table behind the line `after`, header first, without its rule."""
    lines = document.splitlines()
    rows: list[list[str]] = []
    for line in lines[lines.index(after) + 1 :]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
        elif rows:
            break
    return [rows[0], *rows[2:]]


def diagram(document: str, after: str) -> set[tuple[str, str, str]]:
    """(from, to, event) of the first Mermaid state diagram behind the line `after`."""
    block = document.split(after + "\n", 1)[1].split("```mermaid", 1)[1].split("```", 1)[0]
    arrows = re.findall(r"^\s*(\w+) --> (\w+) : (.+)$", block, re.MULTILINE)
    return {(start, end, event) for start, end, events in arrows for event in events.split(", ")}
