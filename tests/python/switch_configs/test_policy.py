"""The policy file: errors and their facts, and the values that the transport reads from it."""

from __future__ import annotations

import re

import pytest
from mlt.switch_configs.errors import PolicyError
from mlt.switch_configs.policy import dump, expand_ports, json_schema, load, parse
from switch_lab import EXAMPLE, example, small, text


def test_load__gives_the_transport_its_code_points() -> None:
    policy = load(EXAMPLE)
    assert policy.class_to_dscp() == (46, 40, 32, 24, 16, 8)
    assert policy.control_dscp == 48
    assert policy.control_dscp not in policy.class_to_dscp()


def test_dump__reads_back_equal() -> None:
    assert parse(dump(example())) == example()


def test_digest__ignores_words_and_order_but_no_number() -> None:
    policy = small()
    reworded = parse("description: other words\n" + text())
    assert policy.digest() == reworded.digest()
    assert policy.digest() != small(s1="32769").digest()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (text(control="{dscp: 48, wred: {min_threshold_bytes: 1500}}"), "control.wred: unknown key"),
        (text(dscp1="64"), "data[0].dscp"),
        (text(s1="-1"), "data[0].wred.min_threshold_bytes"),
        (text(queues="9"), "switch.queues"),
        (text(extra="queue: 3"), "queue: unknown key"),
        (text(extra="accept: {onyx: {fair: ' '}}"), "write the reason"),
        (text(extra='accept: {onyx: {fair: "x\\nreload"}}'), "one line of plain ASCII"),
        ("a: [", "not YAML"),
        ("- 1", "expected a mapping"),
        (text(extra="default: {sharing: fair}"), "written twice"),
        (text(s1="32768bit"), "data[0].wred.min_threshold_bytes"),
    ],
)
def test_parse__rejects_and_names_the_place(source: str, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse(source, source="p.yaml")
    assert words in str(caught.value)
    assert all(re.match("p.yaml:[0-9]+: ", line) for line in str(caught.value).splitlines())


def test_parse__errors_have_the_lines_of_the_file() -> None:
    lines = text(s1="fast", extra="rounding_tolerance_percent: [a]\nunknown: 1").splitlines()
    with pytest.raises(PolicyError) as caught:
        parse("\n".join(lines), source="p.yaml")
    places = [line.split(": ")[0] for line in str(caught.value).splitlines()]
    expected = [next(at for at, line in enumerate(lines, 1) if word in line) for word in ("fast", "[a]", "unknown")]
    assert places == [f"p.yaml:{at}" for at in expected]


@pytest.mark.parametrize("written", ["5", "5%", "'5 %'", "'5'", "5.0"])
def test_parse__percentages_take_their_unit(written: str) -> None:
    assert parse(text(extra=f"rounding_tolerance_percent: {written}")).rounding_tolerance_percent == 5
    if written != "5.0":
        assert small(probability=written).data[0].wred.max_drop_probability_percent == 5


@pytest.mark.parametrize("written", ["0.05 x", "50%", "%", "-1%", "5%%"])
def test_parse__percentages_have_no_other_unit(written: str) -> None:
    with pytest.raises(PolicyError, match="rounding_tolerance_percent: expected"):
        parse(text(extra=f"rounding_tolerance_percent: '{written}'"))


def test_load__a_missing_file_is_a_policy_error() -> None:
    with pytest.raises(PolicyError, match="cannot be read"):
        load(EXAMPLE.with_name("nowhere.yaml"))


def test_expand_ports__ranges_names_and_rejections() -> None:
    assert expand_ports((1, "3-5", "swp9")) == ("1", "3", "4", "5", "swp9")
    for bad in (("5-3",), ("1", "1-2"), ("a b",), ("$(reboot)",)):
        with pytest.raises(ValueError, match=r"port"):
            expand_ports(bad)


def test_json_schema__names_every_field() -> None:
    properties = json_schema()["properties"]
    assert {"switch", "control", "data", "default", "accept"} <= set(properties)
