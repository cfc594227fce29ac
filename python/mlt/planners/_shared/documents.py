"""Reads user-written files (YAML, JSON); errors name the file, the line and the expected value.

Absent on purpose: anything about clusters or plans. A pydantic model defines a document's content. This module maps its
validation errors, and a model's own cross-reference checks (``Problem``), to lines of the file.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from mlt._shared.field_errors import expectation, given
from mlt._shared.structured_text import SyntaxProblem, compose_yaml, line_at, parse_json, parse_yaml
from mlt._shared.text_files import UnreadableError, read_text

Location = tuple[str | int, ...]
M = TypeVar("M", bound="Document")


class Document(BaseModel):
    """Base of every model in a cluster or plan file: rejects unknown keys; immutable."""

    # Before release 2.10 pydantic warns of fields named model_*.
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One error of a document: its location (keys and list positions from the top) and the expected value."""

    where: Location
    message: str
    line: int | None = None  # counted from 1; None when the document did not come from a file

    def text(self, source: str | None) -> str:
        place = f"{source}:{self.line}: " if source and self.line else f"{source}: " if source else ""
        path = format_location(self.where)
        return f"{place}{path}: {self.message}" if path else f"{place}{self.message}"


class InputError(Exception):
    """A file or document is invalid; ``problems`` lists every error, in line order."""

    def __init__(self, problems: Sequence[Problem], *, source: str | None = None) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line or 0))
        self.source = source
        super().__init__("\n".join(problem.text(source) for problem in self.problems))


def format_location(where: Location) -> str:
    """``("jobs", 0, "workers", 3)`` as ``jobs[0].workers[3]``."""
    out = ""
    for step in where:
        out += f"[{step}]" if isinstance(step, int) else f".{step}" if out else str(step)
    return out


def suggest(name: str, known: Sequence[str]) -> str:
    """Text with the expected names in place of ``name``: the most similar known names, else the first few."""
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = ", ".join(sorted(known)[:8])
    return f"expected one of {shown}{', ...' if len(known) > 8 else ''}" if known else "none is defined"


def _explain(error: dict[str, Any], model: type[BaseModel]) -> Problem:
    where: Location = tuple(error["loc"])
    kind = error["type"]
    message = expectation(error)
    if kind == "extra_forbidden":
        fields = _fields_at(model, where[:-1])
        message = f"unknown key {where[-1]!r}; {suggest(str(where[-1]), fields)}"
    elif kind == "missing":
        message = f"the key {where[-1]!r} is missing"
        where = where[:-1]
    else:
        message += given(error.get("input"))
    return Problem(where=where, message=message)


def _fields_at(model: type[BaseModel], where: Location) -> list[str]:
    """Field names of the sub-model at ``where``, found by walking the annotations."""
    current: type[BaseModel] = model
    for step in where:
        if isinstance(step, int) or step not in current.model_fields:
            continue
        found = _model_in(current.model_fields[step].annotation)
        if found is not None:
            current = found
    return [field.alias or name for name, field in current.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_in(argument)
        if found is not None:
            return found
    return None


def _parse(text: str, *, as_json: bool, source: str) -> Any:
    try:
        return parse_json(text) if as_json else parse_yaml(text)
    except SyntaxProblem as error:
        problem = Problem(where=(), message=f"not {error.kind}: {error.reason}", line=error.line)
        raise InputError([problem], source=source) from None


def parse_document(
    model: type[M], text: str, *, source: str, as_json: bool = False, others: Mapping[str, str] | None = None
) -> M:
    """Read ``text`` as ``model``. ``others``: a key that only another kind of file has -> what is wrong then.

    Raises:
        InputError: every problem found, each with its line in ``source``.
    """
    data = _parse(text, as_json=as_json, source=source)
    if not isinstance(data, dict):
        raise InputError([Problem(where=(), message="expected a mapping of keys at the top", line=1)], source=source)
    if (mistaken := next((text for key, text in (others or {}).items() if key in data), None)) is not None:
        raise InputError([Problem(where=(), message=mistaken, line=1)], source=source)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [_explain(dict(item), model) for item in error.errors()]
    except InputError as error:
        problems = list(error.problems)
    # JSON is YAML, so one walk over YAML nodes finds the line in both; only invalid files need it. JSON may be indented
    # by tabs, which YAML forbids: then the problem is reported without a line.
    root = compose_yaml(text)
    located = [Problem(where=p.where, message=p.message, line=line_at(root, p.where)) for p in problems]
    raise InputError(located, source=source)


def read_document(model: type[M], path: Path | str, *, others: Mapping[str, str] | None = None) -> M:
    """Read the file at ``path`` as ``model``; a name ending in ``.json`` is JSON, any other YAML. ``others`` as for
    ``parse_document``.

    Raises:
        InputError: the file cannot be read, or is invalid.
    """
    path = Path(path)
    try:
        text = read_text(path)
    except UnreadableError as error:
        raise InputError([Problem(where=(), message=f"cannot be read: {error.reason}")], source=str(path)) from None
    return parse_document(model, text, source=str(path), as_json=path.suffix == ".json", others=others)
