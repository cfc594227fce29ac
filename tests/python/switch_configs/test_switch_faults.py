"""The fault table: at least ten seeded faults per target, none of them past our own check."""

from __future__ import annotations

from collections import Counter

import pytest
from mlt.switch_configs.errors import MissingToolError, SwitchConfigError
from mlt.switch_configs.generator import generate
from mlt.switch_configs.registry import targets
from mlt.switch_configs.validators import validators
from switch_faults import FAULTS, Fault, caught_by_us, examine, inject, main
from switch_lab import EXAMPLE, example_for


def test_faults__ten_or_more_per_target() -> None:
    assert set(FAULTS) == set(targets())
    assert min(len(faults) for faults in FAULTS.values()) >= 10
    for faults in FAULTS.values():
        assert max(Counter(fault.what for fault in faults).values()) == 1


@pytest.mark.parametrize("name", list(targets()))
def test_check__our_check_catches_every_fault(name: str) -> None:
    try:
        rows = list(examine(example_for(name, buffers="write"), name, outside=()))
    except MissingToolError as error:
        pytest.skip(str(error))
    assert [row.what for row in rows if not row.ours] == []


@pytest.mark.parametrize("name", list(targets()))
def test_check__a_text_without_fault_is_not_caught(name: str) -> None:
    try:
        generated = generate(example_for(name), name, ports=("1",))
    except MissingToolError as error:
        pytest.skip(str(error))
    assert not caught_by_us(generated, generated.apply)


def test_inject__a_fault_that_fits_nothing_is_an_error() -> None:
    with pytest.raises(SwitchConfigError, match="fits no line"):
        inject({"a.txt": "x\n"}, Fault("none", "y", "z"), comment="#")


@pytest.mark.parametrize("validator", validators(), ids=lambda v: v.name)
def test_validators__accept_what_we_write_and_object_to_some_faults(validator: object) -> None:
    from mlt.switch_configs.validators import Validator

    assert isinstance(validator, Validator)
    if reason := validator.missing():
        pytest.skip(reason)
    for name in validator.targets:
        generated = generate(example_for(name), name, ports=("1", "2"))
        assert validator.problems_of(generated, generated.apply) == []
    # Structure and undo do not see these faults; the others must, or they check nothing.
    if validator.name in ("netutils", "hier-config", "ocbindings"):
        return
    rows = [
        row
        for name in validator.targets
        for row in examine(example_for(name, buffers="write"), name, outside=(validator,))
    ]
    assert sum(row.caught_by[validator.name] for row in rows) >= 4


def test_main__skips_a_target_that_rejects_the_policy_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(EXAMPLE), "-t", "os10", "-t", "junos"]) == 0
    printed = capsys.readouterr().out
    assert "mlt: 13 of 13" in printed
    assert "skipped junos: refuses the policy" in printed


def test_main__names_a_target_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(EXAMPLE), "-t", "acme"]) == 2
    assert "acme" in capsys.readouterr().err
