"""Units in files: parsed to bits per second, bytes and seconds."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from mlt.planners._shared.quantities import BitsPerSecond, Bytes, Seconds, format_rate, format_size, format_time


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (BitsPerSecond, "25 Gbit/s", 25e9),
        (BitsPerSecond, "25Gbps", 25e9),
        (BitsPerSecond, 1e9, 1e9),
        (BitsPerSecond, "1e9", 1e9),
        (Bytes, "97 MB", 97e6),
        (Bytes, "4 MiB", 4 * 2**20),
        (Seconds, "5 us", 5e-6),
        (Seconds, 0, 0.0),
    ],
)
def test_quantity__reads_units(kind: object, text: object, value: float) -> None:
    assert TypeAdapter(kind).validate_python(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (BitsPerSecond, "25 GB"),  # a size is not a rate
        (BitsPerSecond, "fast"),
        (BitsPerSecond, 0),
        (BitsPerSecond, -1),
        (BitsPerSecond, True),
        (BitsPerSecond, float("nan")),
        (BitsPerSecond, "1.2.3 Gbit/s"),
        (Bytes, "97 mb"),
        (Seconds, "-1 s"),
        (Seconds, None),
    ],
)
def test_quantity__refuses_and_says_what_was_expected(kind: object, text: object) -> None:
    with pytest.raises(ValidationError, match="expected a "):
        TypeAdapter(kind).validate_python(text)


def test_format__picks_the_unit() -> None:
    assert format_rate(12.5e9) == "12.5 Gbit/s"
    assert format_size(97e6) == "97 MB"
    assert format_time(0.42) == "420 ms"
    assert format_time(float("inf")) == "never"
