"""YAML and JSON that a person wrote: what is wrong in it, and where, in this project's words."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

_JSON = {
    "Expecting property name enclosed in double quotes": "expected a name in double quotes",
    "Extra data": "text after the end",
    "Illegal trailing comma before end of object": "a comma before the closing brace",
    "Illegal trailing comma before end of array": "a comma before the closing bracket",
}
# What libyaml or PyYAML reports -> what is wrong, and whether its place is where the part begins, not where it ends.
_YAML: tuple[tuple[str, str, bool], ...] = (
    ("flow sequence", "this list has no ']', or no comma between two entries", True),
    ("flow mapping", "this mapping has no '}', or no comma between two entries", True),
    ("block mapping", "expected 'key: value', as far in as the keys above", False),
    ("block collection", "expected '- ' and an entry, as far in as the entries above", False),
    ("simple key", "expected ':' after this key", True),
    (
        "mapping values are not allowed",
        "a second ':' in a line, or a line that is further in than the one above",
        False,
    ),
    ("sequence entries are not allowed", "a list begins in a line of its own: '- ' and an entry", False),
    ("scalar found unexpected end", "this quotation mark has no second one", True),
    ("tab character|'\\\\t'", "a tab; YAML takes spaces only", False),
    ("cannot start any token", "a value that begins with this character needs quotation marks", False),
    ("undefined alias", "an alias whose anchor is not above it", False),
    ("scanning an alias|scanning an anchor", "expected a name after '*' or '&'", False),
    ("unknown escape", "an unknown escape sequence after a backslash; in single quotation marks it is text", False),
    ("a single document", "a second document; a file has one", False),
    ("duplicate anchor", "an anchor that is there already", False),
    ("<document start>|node content", "a bracket, brace or comma without a value", False),
    ("block scalar", "expected the end of the line after '|' or '>'", False),
    ("for merging", "'<<' merges mappings only", False),
    ("base64", "a value that is not base64", False),
    ("directive|incompatible YAML", "an unknown directive after '%'", False),
    ("a tag", "a tag that is not complete", False),
)
# libyaml's composer recurses in C for each level, and some releases of it and of PyYAML overflow the stack.
MAX_LEVELS = 100
# Aliases of aliases multiply: a line of 50 bytes repeated ten times can stand for a billion values.
MAX_VALUES_WITH_ALIASES = 1_000_000
_TOO_DEEP = f"nested more than {MAX_LEVELS} levels deep"
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)


class SyntaxProblem(ValueError):
    """Text that is not what it should be. ``kind``: YAML or JSON; ``line`` counts from 1; None: unknown."""

    def __init__(self, kind: str, reason: str, line: int | None) -> None:
        super().__init__(f"not {kind}{f' at line {line}' if line else ''}: {reason}")
        self.kind = kind
        self.reason = reason
        self.line = line


def parse_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        SyntaxProblem: it is none.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        known = _JSON.get(error.msg)
        reason = known or re.sub(r"^Expecting", "expected", error.msg).removesuffix(" at").removesuffix(" starting")
        reason = reason.replace("expected value", "expected a value").replace(" delimiter", "")
        raise SyntaxProblem("JSON", reason[0].lower() + reason[1:], error.lineno) from None
    except RecursionError:
        raise SyntaxProblem("JSON", _TOO_DEEP, _line_too_deep(text)) from None
    except ValueError:  # the interpreter's limit
        raise SyntaxProblem("JSON", "a number with too many digits", None) from None
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_LEVELS):
        parts = itertools.chain.from_iterable(one.values() if isinstance(one, dict) else one for one in level)
        level = [part for part in parts if isinstance(part, dict | list)]
    if level:
        raise SyntaxProblem("JSON", _TOO_DEEP, _line_too_deep(text))
    return value


def _line_too_deep(json_text: str) -> int | None:
    """Line of the first bracket past ``MAX_LEVELS``."""
    level = 0
    for found in _STRING_OR_BRACKET.finditer(json_text):
        if found[0] in "[{":
            level += 1
            if level > MAX_LEVELS:
                return json_text.count("\n", 0, found.start()) + 1
        elif found[0] in "]}":
            level -= 1
    return None


@functools.cache
def _yaml_loader() -> type[Any]:
    """The safe loader, except that deep nesting and a repeated key are errors (by default the last key wins)."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        level = -1

        # The composer, in C or Python, calls these two around each node before it recurses.
        def descend_resolver(self, parent: yaml.Node | None, index: object) -> None:
            self.level += 1
            if parent is not None and self.level > MAX_LEVELS:
                raise yaml.MarkedYAMLError(problem=_TOO_DEEP, problem_mark=parent.start_mark)

        def ascend_resolver(self) -> None:
            self.level -= 1

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            seen: set[Hashable] = set()
            for key_node, _ in node.value:
                if key_node.tag == "tag:yaml.org,2002:merge":
                    continue
                key = self.construct_object(key_node, deep=True)
                problem = None if isinstance(key, Hashable) else "a key that is a list or mapping"
                if problem is None and key in seen:
                    problem = f"key {key!r} is written twice"
                if problem is not None:
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
                seen.add(key)
            return dict(super().construct_mapping(node, deep=deep))

    return Loader


def _check_aliases(root: yaml.Node) -> None:
    """Raise MarkedYAMLError for aliases by which a document contains itself, or is deeper or larger than its text."""
    import yaml

    measured: dict[yaml.Node, tuple[int, int]] = {}  # levels and values, aliases written out
    entered: set[yaml.Node] = set()
    stack = [root]
    while stack:
        node = stack[-1]
        parts = [] if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in parts for part in pair]
        missing = [part for part in parts if part not in measured]
        problem = "an alias inside its own anchor" if any(part in entered for part in missing) else None
        if not missing:
            stack.pop()
            levels = 1 + max((measured[part][0] for part in parts), default=-1)
            values = 1 + sum(measured[part][1] for part in parts)
            measured[node] = levels, values
            if levels > MAX_LEVELS:
                problem = _TOO_DEEP
            elif values > MAX_VALUES_WITH_ALIASES:
                problem = f"more than {MAX_VALUES_WITH_ALIASES} values once its aliases are written out"
        if problem is not None:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        entered.add(node)
        stack += missing


def compose_yaml(text: str) -> yaml.Node | None:
    """The nodes of a YAML text, which know their lines; None if it is none."""
    import yaml

    try:
        return yaml.compose(text, Loader=_yaml_loader())
    except yaml.YAMLError:
        return None


def line_at(root: yaml.Node | None, where: Sequence[str | int]) -> int | None:
    """The first line, from 1, of the deepest part of ``where`` (keys and list positions from the top) that is among the
    nodes; None without nodes."""
    import yaml

    node, line = root, None if root is None else root.start_mark.line + 1
    for step in where:
        if isinstance(node, yaml.MappingNode):
            match = next(((k, v) for k, v in node.value if str(k.value) == str(step)), None)
            if match is None:
                break
            line, node = match[0].start_mark.line + 1, match[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
        else:
            break
    return line


def _yaml_problem(error: yaml.MarkedYAMLError) -> SyntaxProblem:
    """In this project's words and with its column, unless it is one of those above, which have both."""
    mark = error.problem_mark or error.context_mark
    detail = " ".join(" ".join(part for part in (error.context, error.problem) if part).split())
    unknown = re.search(r"could not determine a constructor for the tag '(?:tag:yaml.org,2002:)?(.*)'", detail)
    if "maximum nesting depth" in detail:  # of libyaml, some releases of which read far ahead of the composer
        detail = _TOO_DEEP
    reason = f"unknown tag {unknown[1]!r}" if unknown else detail
    found = next((one for one in _YAML if re.search(one[0], detail)), None)
    if found is not None and not (unknown or detail == _TOO_DEEP or " is written twice" in detail):
        reason = found[1]
        mark = (error.context_mark or mark) if found[2] else mark
        reason += "" if mark is None else f" (column {mark.column + 1})"
    return SyntaxProblem("YAML", reason, mark.line + 1 if mark else None)


def parse_yaml(text: str, constructors: dict[str, Any] | None = None) -> Any:
    """The value of a YAML text, in which no mapping has a key twice. ``constructors``: of further tags.

    Raises:
        SyntaxProblem: it is none.
    """
    import yaml

    class Loader(_yaml_loader()):  # type: ignore[misc]
        """A loader with the constructors of this call."""

    for tag, construct in (constructors or {}).items():
        Loader.add_constructor(tag, construct)
    try:
        loader = Loader(text)
        try:
            root = loader.get_single_node()
            if root is not None and "*" in text:
                _check_aliases(root)
            return None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise _yaml_problem(error) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        code = error.character if isinstance(error.character, int) else ord(str(error.character)[0])
        raise SyntaxProblem("YAML", f"control character U+{code:04X}", line) from None
    except yaml.YAMLError as error:
        raise SyntaxProblem("YAML", " ".join(str(error).split()), None) from None
    except ValueError as error:  # of a date, or the interpreter's limit of digits
        is_number = "digits" in str(error)
        is_date = not is_number and "literal" not in str(error)  # of int() and float(), after a tag
        reason = "a number with too many digits" if is_number else "a value that is not what its tag says"
        reason = f"an impossible date ({error})" if is_date else reason
        raise SyntaxProblem("YAML", reason, None) from None
