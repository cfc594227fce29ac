"""The file of a flight recorder: what is read is what was written, and nothing else passes for one."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from mlt._shared.flight_record import Call, Record


def record() -> Record:
    call = Call(
        call="all_reduce", group="0", number=3, bytes=40, types=["float32"], began=1.5, seconds=None,
        state="in progress", error=None,
    )  # fmt: skip
    return Record(rank=1, world_size=2, host="a", pid=7, written=2.5, calls=[call])


def test_record__survives_its_file() -> None:
    assert Record.model_validate_json(record().model_dump_json()) == record()


@pytest.mark.parametrize(
    ("old", "new"),
    [('"in progress"', '"waiting"'), ('"format_version":1', '"format_version":2'), ('"pid":7', '"pid":7,"more":0')],
)
def test_record__another_format_is_rejected(old: str, new: str) -> None:
    text = record().model_dump_json()
    assert old in text
    with pytest.raises(ValidationError):
        Record.model_validate_json(text.replace(old, new))
