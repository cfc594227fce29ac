"""The lists of a context's options agree: Python, the bindings and their types, C++, C, and the pages of docs/.

``mlt.Options`` (src/mlt.h) is the list that the native ones are compared with, ``ContextArguments`` that of Python.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from mlt.context import _FORMS, Context, ContextArguments
from mlt.options import limits, times
from mlt.options.arguments import LimitArguments, TimeArguments

ROOT = Path(__file__).resolve().parents[3]
ARGUMENTS = set(ContextArguments.__annotations__)
# What Python names or measures otherwise -> its native names.
NATIVE_NAMES = {
    "line_rate_gbps": {"line_rate_bits_per_second"},
    "qos_policy": {"data_dscp", "control_dscp"},
    **{name: {f"{name}_ns"} for name in times.VARIABLES},
}
# Of the rendezvous, which Python has before it opens an engine; and those that were removed.
NOT_NATIVE = {"master_addr", "rendezvous_port", "interface", "connect_timeout", "io_threads", "io_cpus"}
# Native options that Python does not offer: they follow from the job, or suit tests.
NOT_PYTHON = {"rank", "ranks", "insecure", "udp_port", "control_port", "receive_buffer_bytes"}
# Options that have no variable of their own name.
WITHOUT_VARIABLE = {"faults", "segment_bytes", "line_rate_gbps", "busy_poll_us", "master_addr"}


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def struct(path: str, head: str) -> dict[str, str]:
    """Fields of a C or C++ struct -> its initial values, which are empty in C."""
    body = text_of(path).partition(head)[2].partition("\n}")[0]
    body = re.sub(r"//.*|/\*.*?\*/", "", body, flags=re.DOTALL if head.startswith("typedef") else 0)
    return {name: value or "" for name, value in re.findall(r"[\w>*]\s+(\w+)(?: = ([^;]+))?;", body)}


NATIVE = struct("src/mlt.h", "struct Options {")


def test_arguments__are_those_of_the_native_library_and_the_other_way_round() -> None:
    assert {"rank", "secret", "max_tags", "faults"} <= set(NATIVE)
    offered = set().union(*(NATIVE_NAMES.get(name, {name}) for name in ARGUMENTS - NOT_NATIVE))
    assert offered | NOT_PYTHON == set(NATIVE)


def test_bindings__offer_every_option_and_so_do_their_types() -> None:
    bound = re.findall(r'def_\w+\("(\w+)"', text_of("src/bindings/bind_options.cc"))
    assert sorted(bound) == sorted(NATIVE)
    tree = ast.parse(text_of("python/mlt/_core/__init__.pyi"))
    (options,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Options")
    typed = [ast.unparse(node.target) for node in options.body if isinstance(node, ast.AnnAssign)]
    assert typed == list(NATIVE)


def test_c_api__has_every_option_of_one_path_without_faults_and_sets_each() -> None:
    fields = set(struct("src/mlt_c.h", "typedef struct mlt_options {")) - {"size", "reserved", "secret_bytes"}
    assert fields == set(NATIVE) - {"paths", "data_dscp", "control_dscp", "faults"}
    source = text_of("src/c/context.cc")
    assert set(re.findall(r"\boptions\.(\w+)(?:\.assign\(| = )", source)) == fields
    given = set(re.findall(r"\bgiven\.(\w+) = ", source)) - {"size"}
    not_zero = {name for name in fields if NATIVE[name] not in ("0", "false")} - {"secret", "host", "datapath"}
    assert not_zero <= given <= fields


@pytest.mark.parametrize("name", sorted(ARGUMENTS | {"services"}))
def test_context__documents_every_argument(name: str) -> None:
    inherited = {"job", "master_addr", "rendezvous_port"}  # JobConfig has them
    assert name in inherited or f"``{name}``" in (Context.__doc__ or "")


def test_context__has_a_form_for_arguments_that_it_takes_only() -> None:
    assert set(_FORMS) <= ARGUMENTS


def rows(page: str, *, first: str) -> list[list[str]]:
    """The cells of a table of a page of docs/, found by its first head cell and second."""
    table = text_of(page).partition(first)[2].partition("\n\n")[0]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in table.strip().splitlines()[1:]]


def number(text: str) -> int:
    """``131'072``, ``131,072``, ``1U << 24``."""
    base, _, shift = re.sub(r"[',U]", "", text).partition(" << ")
    return int(base) << int(shift or 0)


def test_limits__are_the_same_in_every_list() -> None:
    assert set(limits.VARIABLES) == set(LimitArguments.__annotations__)
    checks = re.findall(r'check\("(\w+)", options\.\1, 1, ([^)]+)\);', text_of("src/engine/options_check.cc"))
    largest = re.findall(r"kMaxOperationsLimit = ([\d']+)", text_of("src/engine/options_check.h"))[0]
    ranges = {name: number(largest if text == "kMaxOperationsLimit" else text) for name, text in checks}
    assert ranges == {name: maximum for name, (_, maximum) in limits.VARIABLES.items()}
    page = rows("docs/limits.md", first="| argument | variable | default | range | what it limits |")
    found = {row[0]: (row[1], number(row[2]), number(row[3].removeprefix("1 to "))) for row in page}
    assert found == {
        name: (variable, number(NATIVE[name]), maximum) for name, (variable, maximum) in limits.VARIABLES.items()
    }


def test_times__are_the_same_in_every_list() -> None:
    assert set(times.VARIABLES) == set(TimeArguments.__annotations__)
    page = rows("docs/limits.md", first="| argument | variable | default | what it limits |")
    found = {name: (variable, int(default.removesuffix(" s"))) for name, variable, default, _ in page}
    seconds = {name: number(NATIVE[f"{name}_ns"]) / 1e9 for name in times.VARIABLES if f"{name}_ns" in NATIVE}
    seconds["connect_timeout"] = times.CONNECT_SECONDS
    assert found == {name: (variable, seconds[name]) for name, variable in times.VARIABLES.items()}


def test_variables__have_the_names_of_the_arguments() -> None:
    for name, variable in {**times.VARIABLES, **{one: text for one, (text, _) in limits.VARIABLES.items()}}.items():
        assert variable == f"MLT_{name.upper()}"
    page = text_of("docs/variables.md")
    limits_and_times = page.partition("## Limits and times")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `MLT_(\w+)`", limits_and_times, re.MULTILINE)
    assert {name.lower() for name in listed} == {*times.VARIABLES, *limits.VARIABLES}
    for name in ARGUMENTS - WITHOUT_VARIABLE:
        assert f"`MLT_{'JOB_' if name == 'secret' else ''}{name.upper()}`" in page
