"""YAML and JSON that people wrote: problems in this project's words, with their lines."""

from __future__ import annotations

import pytest

from mlt._shared.structured_text import SyntaxProblem, parse_json, parse_yaml


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "expected a value"),
        ('{"a":\n1,\n}', None, ""),  # releases of Python differ in line and words
        ('{"a" 1}', 1, "expected ':'"),
        ("[1\n2]", 2, "expected ','"),
        ("{a: 1}", 1, "expected a name in double quotes"),
        ("{}\n}", 2, "text after the end"),
        ('"a', 1, "unterminated string"),
        ("[" * 100_000, None, "nested too deeply"),
        ("9" * 5_000, None, "a number with too many digits"),
    ],
)
def test_parse_json__names_the_problem_and_its_line(text: str, line: int | None, reason: str) -> None:
    if text.startswith("9"):
        try:
            int(text)
        except ValueError:
            pass
        else:
            pytest.skip("this Python has no limit of digits")
    with pytest.raises(SyntaxProblem) as error:
        parse_json(text)
    assert error.value.kind == "JSON"
    assert "Expecting" not in str(error.value)
    if reason:
        assert (error.value.reason, error.value.line) == (reason, line)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "key 'a' is written twice"),
        ("a: 1\n? [b]\n: 2\n", 2, "a key that is a list or mapping"),
        ("a: 1\nb: !!python/name:os.system x\n", 2, "unknown tag 'python/name:os.system'"),
        ("a: 1\nb: !secret x\n", 2, "unknown tag '!secret'"),
        ("a: 1\nb: \x07\n", 2, "control character U+0007"),
        ("a: 2020-13-45\n", None, "an impossible date (month must be in 1..12)"),
        ("[" * 100_000, None, "nested too deeply"),
    ],
)
def test_parse_yaml__names_the_problem_and_its_line(text: str, line: int | None, reason: str) -> None:
    with pytest.raises(SyntaxProblem) as error:
        parse_yaml(text)
    assert error.value.kind == "YAML"
    if "nested" not in reason:  # libyaml has a limit of its own
        assert (error.value.reason, error.value.line) == (reason, line)
    assert "\n" not in str(error.value)


def test_parse__values() -> None:
    assert parse_json('{"a": [1, null]}') == {"a": [1, None]}
    assert parse_yaml("base: &b {a: 1}\nc: {<<: *b, d: 2}\n") == {"base": {"a": 1}, "c": {"a": 1, "d": 2}}
    assert parse_yaml("a: !double 2\n", {"!double": lambda _, node: 2 * int(node.value)}) == {"a": 4}
    with pytest.raises(SyntaxProblem):  # constructors of one call are not those of the next
        parse_yaml("a: !double 2\n")
