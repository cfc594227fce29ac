"""Draw faults for `make mutants` from the sources themselves: one small change of one line each, seeded.

Reads C++ by lines and tokens, not by grammar. Comments, strings, preprocessor lines, assertions and declarations stay
unchanged; tools/mutants.py reports mutants that do not compile. Entries have the format of tests/sim/mutants.yaml;
`find` is the line, preceded by earlier lines if the line alone is not unique.

    python tools/draw_mutants.py --seed 13 --count 65 --out tests/sim/drawn_mutants.yaml
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
# Folder and its share of the mutants.
FOLDERS = (("src/core", 0.7), ("src/wire", 0.12), ("src/collective", 0.18))
# One operator: name, pattern, replacement.
OPERATORS: tuple[tuple[str, str, str], ...] = (
    ("less-or-equal", r" < (?![^;]*>[({ ])", " <= "),
    ("less", r" <= ", " < "),
    ("greater-or-equal", r" > (?=[\w(])", " >= "),
    ("greater", r" >= ", " > "),
    ("not-equal", r" == ", " != "),
    ("equal", r" != ", " == "),
    ("or", r" && ", " || "),
    ("and", r" \|\| ", " && "),
    ("minus", r" \+ (?=[\w(])", " - "),
    ("plus", r"(?<=[\w)]) - (?=[\w(])", " + "),
    ("max", r"\bstd::min\b", "std::max"),
    ("min", r"\bstd::max\b", "std::min"),
    ("one-more", r"(?<=[ (])1(?=[;,) ])", "2"),
    ("one-for-none", r"(?<=[ (])0(?=[;,) ])", "1"),
    ("false", r"\btrue\b(?=;|\))", "false"),
    ("true", r"\bfalse\b(?=;|\))", "true"),
    ("decrement", r"(?<=^ {2})\+\+(?=\w)|(?<=^ {4})\+\+(?=\w)|(?<=\) )\+\+(?=\w[^()]*;$)", "--"),
    ("take-away", r" \+= ", " -= "),
    ("add", r" -= ", " += "),
)
CONDITION = re.compile(r"^(\s*(?:\} else )?if \()(.*)(\) (?:\{|return\b.*;|continue;|break;))$")
STATEMENT = re.compile(
    r"^\s+(?!return\b|break|continue|using\b|const\b|auto\b|static\b|goto\b|case\b|default\b)"
    r"[\w.\->\[\]():, *!&<]+(?: [-+|&]?= [^;]+|\([^;]*\));$"
)
DECLARATION = re.compile(
    r"^\s*(?:[\w:<>,*&]+ )+[\w\[\]]+(?: = [^;]+)?;$|^\s*(?:template|struct|class|enum|inline|"
    r"constexpr|friend|explicit|virtual)\b"
)
LEFT_ALONE = re.compile(r"^\s*(?://|/\*|\*|#|\}|X\()|MLT_CHECK|static_assert|counters\.add|operator|\"")


@dataclass(frozen=True)
class Candidate:
    """A line that may be changed, and its replacement."""

    path: Path
    line: int
    operator: str
    changed: str


def changes_of(line: str) -> Iterator[tuple[str, str]]:
    """Every operator's results on one line: operator name, and the changed line."""
    if LEFT_ALONE.search(line) or not line.rstrip().endswith((";", "{", "&&", "||", ",")):
        return
    code = line.split("  //")[0].rstrip()
    if condition := CONDITION.match(code):
        before, what, after = condition.groups()
        if ";" not in what:
            yield "negated", f"{before}!({what}){after}"
    for name, pattern, replacement in OPERATORS:
        for match in re.finditer(pattern, code):
            yield name, code[: match.start()] + replacement + code[match.end() :]
    if STATEMENT.match(code) and not DECLARATION.match(code):
        yield "deleted", ""


def inside_functions(lines: list[str]) -> list[bool]:
    """For each line, whether it is in a function's body, by indentation and clang-format's style."""
    inside, depth = [], 0
    for line in lines:
        inside.append(depth > 0)
        if re.match(
            r"^ {0,4}[\w~:<>&*,\[\] ]+\(.*\)?.*(?:const |noexcept )?\{$", line
        ) and not line.lstrip().startswith(
            ("if", "for", "while", "switch", "namespace", "struct", "class", "enum", "}")
        ):
            depth += 1
        elif depth and re.match(r"^ {0,4}\}$", line):
            depth -= 1
    return inside


def candidates_of(path: Path) -> list[Candidate]:
    """Every change that may be made to one file."""
    lines = path.read_text().splitlines()
    inside = inside_functions(lines)
    return [
        Candidate(path, number, operator, changed)
        for number, line in enumerate(lines)
        if inside[number]
        for operator, changed in changes_of(line)
    ]


def entry_of(candidate: Candidate) -> dict[str, str] | None:
    """A candidate as an entry of the list; None if no few lines around it are unique."""
    text = candidate.path.read_text()
    lines = text.splitlines()
    for more in range(6):
        first = max(0, candidate.line - more)
        find = "\n".join(lines[first : candidate.line + 1]) + "\n"
        if text.count(find) == 1 and (first == 0 or text.count("\n" + find) == 1):
            replace = "".join(line + "\n" for line in lines[first : candidate.line]) + candidate.changed + "\n"
            name = f"{candidate.path.stem.replace('_', '-')}-{candidate.line + 1}-{candidate.operator}"
            return {"name": name, "file": str(candidate.path.relative_to(ROOT)), "find": find, "replace": replace}
    return None


def draw(seed: int, count: int) -> list[dict[str, str]]:
    """`count` entries, no two of one line."""
    chooser = random.Random(seed)
    entries: list[dict[str, str]] = []
    for folder, share in FOLDERS:
        files = sorted((ROOT / folder).glob("*.cc")) + sorted((ROOT / folder).glob("*.h"))
        candidates = [candidate for path in files for candidate in candidates_of(path)]
        # Frequent operators must not displace the rare ones.
        by_operator: dict[str, list[Candidate]] = {}
        for candidate in candidates:
            by_operator.setdefault(candidate.operator, []).append(candidate)
        used: set[tuple[Path, int]] = set()
        wanted = round(count * share)
        while wanted > 0 and by_operator:
            operator = chooser.choices(list(by_operator), [len(p) ** 0.5 for p in by_operator.values()])[0]
            candidate = by_operator[operator].pop(chooser.randrange(len(by_operator[operator])))
            if not by_operator[operator]:
                del by_operator[operator]
            entry = None if (candidate.path, candidate.line) in used else entry_of(candidate)
            if entry is None:
                continue
            used.add((candidate.path, candidate.line))
            entries.append(entry)
            wanted -= 1
    return entries


DRAWN = ROOT / "tests/sim/drawn_mutants.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="seed of the choice (default: %(default)s)")
    parser.add_argument("--count", type=int, default=65, help="number of mutants (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=DRAWN, help="file to write (default: %(default)s)")
    options = parser.parse_args()
    entries = draw(options.seed, options.count)
    head = f"# Drawn by tools/draw_mutants.py --seed {options.seed} --count {options.count}.\n"
    options.out.write_text(head + yaml.safe_dump(entries, sort_keys=False, width=200, allow_unicode=True))
    print(f"{len(entries)} faults in {options.out}")


if __name__ == "__main__":
    main()
