"""Errors of a rejected file name its line and the expected value."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlt.planners._shared.documents import InputError, parse_document, read_document, suggest
from mlt.planners.cluster import Cluster

GOOD = """\
name: lab
hosts:
  - {name: h0, bandwidth: 10 Gbit/s}
  - name: h1
    bandwidth: 10 Gbit/s
    cpu_cores: 4
switches:
  - {name: leaf0, pipelines: 2}
links:
  - {a: h0, b: leaf0, bandwidth: 10 Gbit/s}
  - {a: h1, b: leaf0, bandwidth: 10 Gbit/s}
jobs:
  - {name: j, workers: [h0], servers: [h1], model_size: 97 MB}
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("cpu_cores: 4", "cpu_core: 4", 6, "did you mean 'cpu_cores'"),
        ("cpu_cores: 4", "cpu_cores: many", 6, "expected a number"),
        ("pipelines: 2", "pipelines: 0", 8, "more than 0"),
        ("name: h1", "name: h0", 4, "already used by hosts[0]"),
        ("servers: [h1]", "servers: [h7]", 13, "no host is named 'h7'"),
        ("servers: [h1]", "servers: [h0]", 13, "is a worker of this job too"),
        (", model_size: 97 MB", "", 13, "'model_size' is missing"),
        ("b: leaf0, bandwidth: 10 Gbit/s}\njobs", "b: leaf9, bandwidth: 10 Gbit/s}\njobs", 11, "did you mean 'leaf0'"),
        ("name: lab", "name: lab\nname: lab2", 2, "written twice"),
        ("hosts:", "hosts: [", 3, "not YAML"),
        ("name: lab", "version: 2", 1, "expected 1"),
        ("97 MB", "97 Mb", 13, "such as 256KiB or '97 MB'"),
    ],
)
def test_parse_document__names_line_and_expectation(old: str, new: str, line: int, words: str) -> None:
    assert old in GOOD
    with pytest.raises(InputError) as caught:
        parse_document(Cluster, GOOD.replace(old, new, 1), source="lab.yaml")
    text = str(caught.value)
    assert text.startswith(f"lab.yaml:{line}: ") or f"\nlab.yaml:{line}: " in text
    assert words in text


def test_parse_document__reports_every_problem_at_once() -> None:
    bad = GOOD.replace("[h0]", "[h8]").replace("[h1]", "[h9]").replace("b: leaf0", "b: leaf1")
    with pytest.raises(InputError) as caught:
        parse_document(Cluster, bad, source="lab.yaml")
    assert [problem.line for problem in caught.value.problems] == [10, 11, 13, 13]


def test_parse_document__top_must_be_a_mapping() -> None:
    with pytest.raises(InputError, match="expected a mapping"):
        parse_document(Cluster, "- 1\n", source="lab.yaml")


def test_read_document__unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_document(Cluster, tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        read_document(Cluster, tmp_path / "binary.yaml")


def test_read_document__json_syntax_has_a_line(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text('{"name": "lab",\n "hosts": [}\n')
    with pytest.raises(InputError, match=r"cluster\.json:2: not JSON"):
        read_document(Cluster, path)


def test_suggest__lists_names_when_none_is_near() -> None:
    assert suggest("zzz", ["a", "b"]) == "expected one of a, b"
    assert suggest("x", []) == "none is defined"


def test_read_document__json_indented_by_tabs_is_still_explained(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text('{\n\t"hosts": [\n\t\t{"name": "h0", "bandwidth": "fast"}\n\t]\n}\n')
    with pytest.raises(InputError, match="such as 200mbit or '200 Mbit/s'"):
        read_document(Cluster, path)
