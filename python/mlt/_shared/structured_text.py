"""YAML and JSON that a person wrote: what is wrong in it, and where, in this project's words."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from typing import Any

_JSON = {
    "Expecting property name enclosed in double quotes": "expected a name in double quotes",
    "Extra data": "text after the end",
    "Illegal trailing comma before end of object": "a comma before the closing brace",
    "Illegal trailing comma before end of array": "a comma before the closing bracket",
}
_TOO_DEEP = "nested too deeply"


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
        return json.loads(text)
    except json.JSONDecodeError as error:
        known = _JSON.get(error.msg)
        reason = known or re.sub(r"^Expecting", "expected", error.msg).removesuffix(" at").removesuffix(" starting")
        reason = reason.replace("expected value", "expected a value").replace(" delimiter", "")
        raise SyntaxProblem("JSON", reason[0].lower() + reason[1:], error.lineno) from None
    except RecursionError:
        raise SyntaxProblem("JSON", _TOO_DEEP, None) from None
    except ValueError:  # the interpreter's limit
        raise SyntaxProblem("JSON", "a number with too many digits", None) from None


def parse_yaml(text: str, constructors: dict[str, Any] | None = None) -> Any:
    """The value of a YAML text, in which no mapping has a key twice. ``constructors``: of further tags.

    Raises:
        SyntaxProblem: it is none.
    """
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """The safe loader, except that a repeated key is an error (by default the last one wins silently)."""

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

    for tag, construct in (constructors or {}).items():
        Loader.add_constructor(tag, construct)
    try:
        return yaml.load(text, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        detail = " ".join(part for part in (error.context, error.problem) if part)
        unknown = re.search(r"could not determine a constructor for the tag '(?:tag:yaml.org,2002:)?(.*)'", detail)
        reason = f"unknown tag {unknown[1]!r}" if unknown else " ".join(detail.split())
        raise SyntaxProblem("YAML", reason, mark.line + 1 if mark else None) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        code = error.character if isinstance(error.character, int) else ord(str(error.character)[0])
        raise SyntaxProblem("YAML", f"control character U+{code:04X}", line) from None
    except yaml.YAMLError as error:
        raise SyntaxProblem("YAML", " ".join(str(error).split()), None) from None
    except RecursionError:
        raise SyntaxProblem("YAML", _TOO_DEEP, None) from None
    except ValueError as error:  # of a date, or the interpreter's limit of digits
        is_number = "digits" in str(error)
        reason = "a number with too many digits" if is_number else f"an impossible date ({error})"
        raise SyntaxProblem("YAML", reason, None) from None
