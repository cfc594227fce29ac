"""One grammar of rates, sizes, times and losses: the same spellings through every entry point that reads one."""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click
import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st
from mlt.switch_configs import policy as policies
from pydantic import TypeAdapter

import mlt
from mlt._shared import units
from mlt._shared.units import LOSS, RATE, SIZE, TIME, Quantity
from mlt.cli import perf as perf_command
from mlt.cli.unit_option import UnitOption
from mlt.planners.cluster import parse_cluster
from mlt.planners.cluster._file import Link
from mlt.planners.plan import parse_plan
from mlt.testbed import topology

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = ("demo", "doctor", "launch", "perf", "plan", "plan_routing", "plan_topology", "serve", "switch", "testbed")

# All of them mean the same; within the limits of every entry point.
SPELLINGS: dict[str, tuple[float, tuple[object, ...]]] = {
    "rate": (
        200e6,
        ("200mbit", "200 Mbit/s", "200Mbps", "0.2gbit", "0.2 Gbit/s", "200000 kbit", "2e8", "200000000", 200_000_000),
    ),
    "size": (262_144, ("256KiB", "256 kib", "0.25MiB", "262.144 kB", "262144B", "262144", 262_144)),
    "time": (1.5, ("1.5s", "1500 ms", "1500000us", "0.025min", "1.5", 1.5)),
    "loss": (0.01, ("1%", "1 %", "0.01", "1e-2", 0.01)),
}
WRONG: dict[str, tuple[object, ...]] = {
    "rate": ("fast", "200MBps", "200 MB", "-1mbit", "1.2.3 mbit", "mbit", "", True, math.nan, math.inf),
    "size": ("big", "97 Mb", "10 mbit", "-1KB", "KiB", "", True, math.nan),
    "time": ("soon", "-1s", "5 minutes", "ms", "", True, math.inf),
    "loss": ("some", "101%", "1", "-1%", "1%%", "", True, math.nan),
}


def in_topology(field: str) -> Callable[[object], float]:
    return lambda given: getattr(topology.make(yaml.safe_load(yaml.safe_dump({"hosts": 2, field: given}))), field)


def in_policy(section: str, field: str) -> Callable[[object], float]:
    def read(given: object) -> float:
        raw = yaml.safe_load((ROOT / "examples/switch/paper-testbed.yaml").read_text())
        raw[section][field] = given
        return float(getattr(policies.parse(yaml.safe_dump(raw)).switch, field))

    return read


def in_cluster(section: str, field: str) -> Callable[[object], float]:
    def read(given: object) -> float:
        raw: dict[str, list[dict[str, object]]] = {
            "hosts": [{"name": "a", "bandwidth": 1e9}, {"name": "b", "bandwidth": 1e9}],
            "links": [{"a": "a", "b": "b", "bandwidth": 1e9}],
            "jobs": [{"name": "j", "workers": ["a"], "model_size": 1}],
        }
        raw[section][0][field] = given
        return float(getattr(getattr(parse_cluster(yaml.safe_dump(raw)), section)[0], field))

    return read


def in_plan(field: str) -> Callable[[object], float]:
    def read(given: object) -> float:
        section = {"method": "best", "clusters": [], "shares": [], "rate": 1e9, "time": 1.0}
        queue = {"queue": 0, "red_min_bytes": 1, "red_max_bytes": 1}
        raw: dict[str, Any] = {"cluster": "lab", "cluster_digest": "", "jobs": [{"job": "j", "aggregation": section}]}
        raw["thresholds"] = [queue]
        (section if field in section else queue)[field] = given
        plan = parse_plan(json.dumps(raw))
        return float(getattr(plan.jobs[0].aggregation if field in section else plan.thresholds[0], field))

    return read


def in_faults(name: str) -> Callable[[object], float]:
    return lambda given: getattr(mlt.Faults.parse(f"{name}={given}"), name)


def in_perf_list(option: str, quantity: Quantity) -> Callable[[object], float]:
    return lambda given: perf_command._quantities(option, f" {given},", quantity)[0]


def in_option(kind: UnitOption) -> Callable[[object], float]:
    def read(given: object) -> float:
        by_click, by_typer = (_result(take, str(given)) for take in (lambda text: kind.convert(text, None, None), kind))
        assert by_click == by_typer
        if isinstance(by_click, str):
            raise ValueError(by_click)
        return by_click

    return read


def _result(take: Callable[[str], float], text: str) -> float | str:
    try:
        return take(text)
    except (click.UsageError, typer.BadParameter) as error:
        return str(error)


def unit_options(app: Any, name: str) -> Iterator[tuple[str, UnitOption]]:
    if isinstance(app, typer.Typer):
        for group in app.registered_groups:
            yield from unit_options(group.typer_instance, f"{name} {group.name}")
        for command in app.registered_commands:
            function = command.callback
            assert function is not None
            where = (
                name
                if len(app.registered_commands) == 1 and not app.registered_groups
                else (f"{name} {command.name or function.__name__}")
            )
            for word, hint in get_type_hints(function, include_extras=True).items():
                # Before Python 3.11 a default of None makes an Optional of it.
                annotated = (one for one in (hint, *get_args(hint)) if hasattr(one, "__metadata__"))
                for info in next((one.__metadata__ for one in annotated), ()):
                    if isinstance(getattr(info, "parser", None), UnitOption):
                        yield f"{where} --{word.replace('_', '-')}", info.parser
    elif isinstance(app, click.Group):
        for word, one in app.commands.items():
            yield from unit_options(one, f"{name} {word}")
    else:
        for option in app.params:
            if isinstance(option.type, UnitOption):
                yield f"{name} {option.opts[0]}", option.type


OPTIONS = {
    where: kind
    for name in COMMANDS
    for where, kind in unit_options(importlib.import_module(f"mlt.cli.{name}").app, name)
}
ENTRIES: list[tuple[str, str, Callable[[object], float]]] = [
    ("testbed file rate", "rate", in_topology("rate")),
    ("testbed file buffer", "size", in_topology("buffer")),
    ("testbed file delay", "time", in_topology("delay")),
    ("testbed file loss", "loss", in_topology("loss")),
    ("policy rate", "rate", in_policy("switch", "link_rate_bits_per_second")),
    ("policy size", "size", in_policy("switch", "shared_buffer_bytes")),
    ("cluster host", "rate", in_cluster("hosts", "bandwidth")),
    ("cluster link", "rate", in_cluster("links", "bandwidth")),
    ("cluster delay", "time", in_cluster("links", "delay")),
    ("cluster job", "size", in_cluster("jobs", "model_size")),
    ("cluster compute", "time", in_cluster("jobs", "compute_time")),
    ("plan rate", "rate", in_plan("rate")),
    ("plan time", "time", in_plan("time")),
    ("plan threshold", "size", in_plan("red_min_bytes")),
    ("faults", "loss", in_faults("drop")),
    ("perf --size", "size", in_perf_list("--size", SIZE)),
    ("perf --loss-bound", "loss", in_perf_list("--loss-bound", LOSS)),
    *((where, kind.name, in_option(kind)) for where, kind in OPTIONS.items()),
]


@pytest.mark.parametrize(("where", "kind", "read"), ENTRIES, ids=[where for where, _, _ in ENTRIES])
def test_every_entry__takes_every_spelling(where: str, kind: str, read: Callable[[object], float]) -> None:
    value, spellings = SPELLINGS[kind]
    assert [read(one) for one in spellings] == pytest.approx([value] * len(spellings)), where


@pytest.mark.parametrize(("where", "kind", "read"), ENTRIES, ids=[where for where, _, _ in ENTRIES])
def test_every_entry__rejects_with_the_value_and_examples(
    where: str, kind: str, read: Callable[[object], float]
) -> None:
    wrong = WRONG[kind][0]
    with pytest.raises(Exception) as caught:  # noqa: PT011  # each entry has an error of its own
        read(wrong)
    assert not isinstance(caught.value, (KeyError, AttributeError, TypeError))
    text = getattr(caught.value, "format_message", lambda: str(caught.value))()
    assert re.search(f"'?{wrong}'?", text), where
    assert f"expected a {kind} such as" in text, where


def test_options__none_is_left_out() -> None:
    assert len(OPTIONS) >= 21
    for where in (
        "perf --rate",
        "plan_topology build psnet --rate",
        "switch policy --rate",
        "launch --grace",
    ):
        assert where in OPTIONS


@pytest.mark.parametrize("quantity", [RATE, SIZE, TIME, LOSS], ids=lambda quantity: quantity.kind)
def test_read__rejects(quantity: Quantity) -> None:
    for wrong in WRONG[quantity.kind]:
        with pytest.raises(ValueError, match=f"expected a {quantity.kind}"):
            quantity.read(wrong, maximum=1.0 if quantity is LOSS else math.inf)


def test_read__a_bare_number_counts_in_the_base_that_is_asked_for() -> None:
    assert TIME.read("50", base="us", maximum=1) == 50
    assert TIME.read("50us", base="us", maximum=1) == 50
    assert TIME.read(5.5, base="us") == 5.5
    assert TIME.read("2ms", base="us") == 2_000
    with pytest.raises(ValueError, match="between"):
        TIME.read("2s", base="us", maximum=1)


@pytest.mark.parametrize(
    ("quantity", "text", "hint"),
    [
        (RATE, "200", "counts bit/s: write 200mbit"),
        (SIZE, "3", "counts bytes: write 256KiB"),
        (TIME, "2", "counts microseconds: "),
    ],
)
def test_read__a_number_alone_that_is_out_of_range_says_what_it_counts(quantity: Any, text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        quantity.read(text, minimum=8_000, maximum=9_000, base="us" if quantity is TIME else "")


@given(st.floats(1, 1e15))
def test_formats__read_back(number: float) -> None:
    assert RATE.read(units.format_rate(number)) == pytest.approx(number, rel=1e-3)
    assert TIME.read(units.format_time(number / 1e9)) == pytest.approx(number / 1e9, rel=1e-3)
    assert SIZE.read(units.format_size(round(number))) == pytest.approx(round(number), rel=1e-3)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (65_536, "64 KiB"), (10**6, "1 MB"), (25 << 20, "25 MiB"), (64 * 10**6, "64 MB"), (1004, "1.004 KB"),
        (97.5e6, "97.5 MB"), (262_145, "262145 B"), (0, "0 B"), (1_234_567_890, "1.235 GB"),
    ],
)  # fmt: skip
def test_format_size__takes_the_unit_that_comes_out_whole(size: float, text: str) -> None:
    assert units.format_size(size) == text


def test_formats__pick_the_unit() -> None:
    assert (units.format_rate(12.5e9), units.format_rate(200e6)) == ("12.5 Gbit/s", "200 Mbit/s")
    assert (units.format_time(0.42), units.format_time(math.inf), units.format_time(0)) == ("420 ms", "never", "0 s")
    assert (units.format_loss(0.01), units.format_loss(1 / 3)) == ("1%", "33.3333%")


def test_schema__contains_the_grammar() -> None:
    schema: dict[str, Any] = TypeAdapter(Link).json_schema()["properties"]["bandwidth"]
    (pattern,) = (one["pattern"] for one in schema["anyOf"] if one["type"] == "string")
    assert all(re.search(pattern, str(one)) for one in SPELLINGS["rate"][1])
    assert not re.search(pattern, "200MBps")
