"""What PROTOCOL.md says in tables, pictures and numbers is what the code does."""

from __future__ import annotations

import re

import pytest
from protocol_document import DOCUMENT, ROOT, clauses, diagram, source_files, table

TEXT = DOCUMENT.read_text()
SOURCES = dict(source_files())
COUNTER_FILES = ("src/core/counter.h", "src/io/control_channel.cc", "src/io/udp_datapath.cc")


def golden(name: str) -> dict[str, dict[str, str]]:
    """event -> phase -> cell, from tests/golden, which the C++ tests keep equal to the constexpr tables."""
    lines = (ROOT / "tests" / "golden" / name).read_text().split("\n\n", 1)[0].splitlines()
    header, *rows = [line.replace("-> ", "->").split() for line in lines]
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}


@pytest.mark.parametrize(
    ("heading", "name"), [("### 15.2 Sender", "sender_states.txt"), ("### 15.3 Receiver", "receiver_states.txt")]
)
def test_states__table_and_picture_are_the_golden_ones(heading: str, name: str) -> None:
    expected = golden(name)
    header, *rows = table(TEXT, heading)
    documented = {
        row[0]: dict(zip(header[2:], (cell.replace("→ ", "->") for cell in row[2:]), strict=True)) for row in rows
    }
    assert documented == expected
    arrows = {
        (phase, cell[2:], event)
        for event, cells in expected.items()
        for phase, cell in cells.items()
        if cell.startswith("->") and cell[2:] != phase
    }
    assert diagram(TEXT, heading) == arrows


def test_counters__every_name_is_a_counter() -> None:
    known = set(re.findall(r"X\((\w+)\)", SOURCES["src/core/counter.h"]))
    for path in COUNTER_FILES[1:]:
        known |= set(re.findall(r'"((?:control|udp)_\w+)"', SOURCES[path]))
    named = set(re.findall(r"`((?:drop|control|udp|stale|early|window|reordered|duplicate)_\w+)`", TEXT))
    assert named - known - {"early_segments", "early_transfers"} == set()
    # Every refusal of a datagram has its place in the document.
    assert {name for name in known if name.startswith("drop_")} <= named


@pytest.mark.parametrize("row", table(TEXT, "## 17 Limits")[1:], ids=lambda row: row[0])
def test_limits__are_the_code_s(row: list[str]) -> None:
    named = re.search(r"`(\w+)` = ([\d,]+)", row[1])
    path = row[2].strip("`")
    assert path in SOURCES
    if named is None:
        return
    code = re.search(rf"\b{named[1]} = (?:std::uint64_t{{(\d+)}}|([\d']+)U?)(?: << (\d+))?;", SOURCES[path])
    assert code is not None, f"{named[1]} is not set in {path}"
    value = int((code[1] or code[2]).replace("'", "")) << int(code[3] or 0)
    assert value == int(named[2].replace(",", ""))


def test_references__name_sections_and_clauses_that_exist() -> None:
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    prose = prose.split("## 20 ")[0]  # there the paper's sections are named, too
    known = {clause.number for clause in clauses(TEXT)} | set(re.findall(r"^#{2,3} (\d+(?:\.\d+)?) ", TEXT, re.M))
    assert set(re.findall(r"\b\d+\.\d+\.\d+\b", TEXT)) - known <= {"4.2.1", "4.2.2", "4.2.3"}
    named = set(re.findall(r"(?:section|of|see|\(|, )\s?(\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)(?=[,;:.)\s|])", prose))
    assert named - known == {"12.5"} & named  # microseconds


def check(message: bytes, covered: int) -> int:
    """Clause 4.3.3, from the document alone."""
    data = message[:covered] + b"\0" * (-covered % 8)
    c = 0x6D6C742D63686563
    for at in range(0, len(data), 8):
        if at == 8:
            continue
        c = (c ^ int.from_bytes(data[at : at + 8], "little")) * 0x9E3779B97F4A7C15 % 2**64
        c ^= c >> 32
    return c


def examples() -> list[bytes]:
    section = TEXT.split("### 4.3 ")[1].split("### 4.4 ")[0]
    return [bytes.fromhex(block) for block in re.findall(r"```\n([0-9a-f \n]+)```", section)]


def test_check__undoes_to_the_cookie() -> None:
    data, abort = examples()
    assert len(data) == 40
    assert len(abort) == 28
    for message in (data, abort):
        field = int.from_bytes(message[8:16], "little")
        assert field ^ (check(message, len(message)) & ~0xFFFF) == 0x1122334455660001


def test_check__notices_every_changed_byte() -> None:
    data, _ = examples()
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 0x40
        field = int.from_bytes(broken[8:16], "little")
        assert field ^ (check(bytes(broken), 40) & ~0xFFFF) != 0x1122334455660001


def offsets(fields: str) -> dict[str, int]:
    return {name.lower(): int(value) for name, value in re.findall(fields, SOURCES["src/wire/packet.h"])}


def test_data_example__has_the_fields_at_packet_h_s_offsets() -> None:
    data, _ = examples()
    at = offsets(r"#define MLT_OFFSET_(\w+) (\d+)")
    words = {"sequence": 7, "generation": 3, "total_bytes": 4_096, "offset": 2_864, "timestamp": 1_000_000, "tag": 42}
    for name, value in words.items():
        assert int.from_bytes(data[at[name] : at[name] + 4], "little") == value, name
    assert data[0] == 0x11
    assert data[at["flags"]] == 0x06
    assert data[at["path_element"]] == 0x07
