"""The QoS of a device's configuration as statements: undo writes the statements that an apply replaced."""

from __future__ import annotations

from collections.abc import Iterable

from mlt.switch_configs.target import Target, code_lines
from mlt.switch_configs.vendors.junos import PREFIX

# From the section down to the line.
Statement = tuple[str, ...]


def statements(target: Target, text: str) -> list[Statement]:
    """Every QoS statement of a running configuration; Junos's in ``set`` form."""
    if target.name == "junos":
        return [(line,) for _, line in code_lines(text, target.comment) if line.startswith(PREFIX)]
    found: list[Statement] = []
    path: list[tuple[int, str]] = []
    for _, line in code_lines(text, target.comment):
        depth, words = len(line) - len(line.lstrip()), line.strip()
        path = [step for step in path if step[0] < depth]
        path.append((depth, words))
        here = tuple(step[1] for step in path)
        if here[0].startswith("interface "):
            wanted = len(here) > 1 and target.qos_inside.match(here[1]) is not None
        else:
            wanted = target.qos_sections.match(here[0]) is not None
        if wanted:
            found.append(here)
    return found


def lost(before: Iterable[Statement], after: Iterable[Statement]) -> list[Statement]:
    """Statements of ``before`` that are not in ``after``, in the order of ``before``."""
    there = set(after)
    return [one for one in before if one not in there]


def written(found: Iterable[Statement]) -> list[str]:
    """The lines that make these statements, sections first."""
    lines: list[str] = []
    above: Statement = ()
    for one in found:
        shared = 0
        while shared < min(len(above), len(one) - 1) and above[shared] == one[shared]:
            shared += 1
        lines += ["  " * depth + step for depth, step in enumerate(one) if depth >= shared]
        above = one
    return lines
