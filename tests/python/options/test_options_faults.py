"""``mlt.Faults``: accepted and rejected values, and that every field reaches the native library."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import mlt

EVERY = mlt.Faults(
    drop=0.1, duplicate=0.2, reorder=0.3, corrupt=0.4, delay_us=5.5, jitter_us=1.25, seed=2**63, control=False
)


def test_faults__reach_the_native_library() -> None:
    native = EVERY.to_native()
    assert (native.drop, native.duplicate, native.reorder, native.corrupt) == (0.1, 0.2, 0.3, 0.4)
    assert (native.delay_ns, native.jitter_ns, native.seed, native.control) == (5_500, 1_250, 2**63, False)


@pytest.mark.parametrize(
    "fault",
    [
        *({name: value} for name in ("drop", "duplicate", "reorder", "corrupt") for value in (-0.1, 1.1, float("nan"))),
        *({name: value} for name in ("delay_us", "jitter_us") for value in (-1.0, float("inf"), float("nan"))),
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_faults__out_of_range_are_named(fault: dict[str, Any]) -> None:
    with pytest.raises(mlt.ConfigError, match=rf"Faults\.{next(iter(fault))} is "):
        mlt.Faults(**fault)


def test_parse__reads_every_field() -> None:
    text = ", ".join(f"{field.name}={getattr(EVERY, field.name)}" for field in dataclasses.fields(EVERY))
    assert mlt.Faults.parse(text) == EVERY
    assert mlt.Faults.parse("") == mlt.Faults()


@pytest.mark.parametrize("text", ["drop", "drop=much", "loss=0.1", "seed=1.5", "control=perhaps", "drop=0.1;seed=2"])
def test_parse__rejects_unknown_fields(text: str) -> None:
    with pytest.raises(mlt.ConfigError, match="faults"):
        mlt.Faults.parse(text)
