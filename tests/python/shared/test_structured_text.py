"""YAML and JSON that people wrote: problems in this project's words, with their lines."""

from __future__ import annotations

import pytest
import yaml

from mlt._shared.structured_text import MAX_LEVELS, SyntaxProblem, _yaml_loader, compose_yaml, parse_json, parse_yaml

TOO_DEEP = "nested more than 100 levels deep"


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
        ("[" * 100_000, 1, TOO_DEEP),
        ('{"a": [\n"]]",\n' + '{"]}": ' * 99 + "1" + "}" * 99 + "]}", 3, TOO_DEEP),
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
        ("a: 1\nb: " + "[" * 100_000, 2, TOO_DEEP),
        ("a: 1\nb: " + "{a: " * 100_000, 2, TOO_DEEP),
        ("a: 1\nb:\n  " + "- " * 100_000, 3, TOO_DEEP),
        ("? " * 100_000, 1, TOO_DEEP),
        ("\n".join(" " * level + "a:" for level in range(1_000)), 101, TOO_DEEP),
        ("a: 1\nb: &b\n- *b\n", 2, "an alias inside its own anchor"),
        ("- &a0 [1]\n" + "".join(f"- &a{n} [*a{n - 1}]\n" for n in range(1, 2_000)), 101, TOO_DEEP),
        (
            "- &a0 1\n" + "".join(f"- &a{n} [{f'*a{n - 1},' * 10}]\n" for n in range(1, 12)),
            7,
            "more than 1000000 values",
        ),
        ("- &a0 {b: 1}\n" + "".join(f"- &a{n} {{<<: [{f'*a{n - 1},' * 10}]}}\n" for n in range(1, 30)), 7, "more than"),
    ],
)
def test_parse_yaml__names_the_problem_and_its_line(text: str, line: int | None, reason: str) -> None:
    with pytest.raises(SyntaxProblem) as error:
        parse_yaml(text)
    assert (error.value.kind, error.value.line) == ("YAML", line)
    assert error.value.reason.startswith(reason) if reason.startswith("more") else error.value.reason == reason
    assert "\n" not in str(error.value)


# A text, where its problem is and words of ours: both of the loader in C and of the one in Python.
LIBRARY_PROBLEMS = [
    ("a: 1\nhosts: [1\nfoo: 1\n", 2, 8, "this list has no ']'"),
    ("hosts: {a: 1\nfoo: 2\n", 1, 8, "this mapping has no '}'"),
    ("a:\n  b: 1\n c: 2\n", 3, 2, "expected 'key: value'"),
    ("- 1\n2: 3\n", 2, 1, "expected '- '"),
    ("hosts: 4\nrate 5\nloss: 1", 2, 1, "expected ':'"),
    ("a: b: c", 1, 5, "a second ':'"),
    ("a: - b", 1, 4, "a list begins in a line of its own"),
    ('a: "x\n', 1, 4, "no second one"),
    ("a: @x", 1, 4, "needs quotation marks"),
    ("a: *x", 1, 4, "an alias whose anchor is not above it"),
    ("a: &", 1, 5, "expected a name"),
    ("a: 1\n---\nb: 1", 2, 1, "a second document"),
    ("a: &b 1\nc: &b 2\n", 2, 4, "an anchor that is there already"),
    ("a: ]", 1, 4, "without a value"),
    ("a: |3x\n", 1, 6, "expected the end of the line"),
    ("<<: 1", 1, 5, "merges mappings only"),
]


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
@pytest.mark.parametrize(("text", "line", "column", "reason"), LIBRARY_PROBLEMS)
def test_parse_yaml__says_what_the_library_found_in_our_words(
    text: str, line: int, column: int, reason: str, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if loader == "SafeLoader":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    _yaml_loader.cache_clear()
    try:
        with pytest.raises(SyntaxProblem) as error:
            parse_yaml(text)
    finally:
        _yaml_loader.cache_clear()
    assert error.value.line == line
    assert reason in error.value.reason
    assert error.value.reason.endswith(f" (column {column})")
    assert not any(word in error.value.reason for word in ("while ", "found", "token", "scalar", "sequence"))


def nested(levels: int) -> str:
    return "[" * levels + "1" + "]" * levels


def test_parse__accepts_levels_up_to_the_limit() -> None:
    for parse in (parse_json, parse_yaml, compose_yaml):
        assert parse(nested(MAX_LEVELS)) is not None
    for parse in (parse_json, parse_yaml):
        with pytest.raises(SyntaxProblem):
            parse(nested(MAX_LEVELS + 1))
        assert parse(f"[{','.join(['[]'] * 1_000)}]") == [[]] * 1_000  # a sibling is no level
    assert compose_yaml(nested(100_000)) is None


def test_parse_yaml__python_loader_has_the_same_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)  # PyYAML built without libyaml
    _yaml_loader.cache_clear()
    try:
        assert issubclass(_yaml_loader(), yaml.SafeLoader)
        with pytest.raises(SyntaxProblem, match=TOO_DEEP):
            parse_yaml(nested(MAX_LEVELS + 1))
        assert parse_yaml(nested(MAX_LEVELS)) is not None
    finally:
        _yaml_loader.cache_clear()


def test_parse_yaml__aliases_within_the_limits() -> None:
    assert parse_yaml("a: &a [1, 2]\nb: [*a, *a]\nc: [*a]\n") == {"a": [1, 2], "b": [[1, 2]] * 2, "c": [[1, 2]]}
    assert parse_yaml("# *\n") is None


def test_parse__values() -> None:
    assert parse_json('{"a": [1, null]}') == {"a": [1, None]}
    assert parse_yaml("base: &b {a: 1}\nc: {<<: *b, d: 2}\n") == {"base": {"a": 1}, "c": {"a": 1, "d": 2}}
    assert parse_yaml("a: !double 2\n", {"!double": lambda _, node: 2 * int(node.value)}) == {"a": 4}
    with pytest.raises(SyntaxProblem):  # constructors of one call are not those of the next
        parse_yaml("a: !double 2\n")
