"""Tables, pictures and numbers of PROTOCOL.md and RECOVERY.md match the code."""

from __future__ import annotations

import hashlib
import hmac
import re
import struct

import pytest
from independent_endpoint import VERSION
from protocol_document import DOCUMENT, PROTOCOL, RECOVERY, ROOT, clauses, diagram, source_files, table

TEXT = DOCUMENT
SOURCES = dict(source_files())
COUNTER_FILES = ("src/core/counter.h", "src/io/control/control_channel.cc", "src/io/udp/udp_datapath.cc")


def golden(name: str) -> dict[str, dict[str, str]]:
    """event -> phase -> cell, from tests/golden, which the C++ tests keep equal to the constexpr tables."""
    lines = (ROOT / "tests" / "golden" / name).read_text().split("\n\n", 1)[0].splitlines()
    header, *rows = [line.replace("-> ", "->").split() for line in lines]
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("### 5.4 Phases of a send", "sender_states.txt"),
        ("### 5.5 Phases of a receive", "receiver_states.txt"),
        ("### 6.10 Phases of a probe", "probe_states.txt"),
        ("### 6.11 Phases of a window", "window_states.txt"),
    ],
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
    named = set(re.findall(r"`((?:drop|control|udp|stale|early|window|reordered|duplicate|paths)_\w+)`", TEXT))
    assert named - known - {"early_segments", "early_transfers"} == set()
    # Every refusal of a datagram has its place in the document.
    assert {name for name in known if name.startswith("drop_")} <= named


UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "": 1}
CODE_UNITS = {"kSecond": 10**9, "kMillisecond": 10**6, "kMicrosecond": 10**3}


# A peer's, until its connection is up: it is not the default of the configuration.
NOT_THE_CONSTANT = {"packets_per_ack": 1.0}


def values_in_code() -> dict[str, set[float]]:
    """name -> what the product sets it to, but zeros, from which locals of the same name start to count."""
    set_to = re.compile(
        r"\b(\w+) = (?:std::uint64_t{(\d+)}|([\d'.]+(?:e\d+)?)U?)?(?: << (\d+))?(?: \* )?(?:base::(\w+))?;"
    )
    found: dict[str, set[float]] = {}
    for path, source in SOURCES.items():
        for match in [] if path.startswith("src/sim/") else set_to.finditer(source):
            plain = float((match[2] or match[3] or "1").replace("'", ""))
            value = plain * 2 ** int(match[4] or 0) * CODE_UNITS.get(match[5] or "", 1)
            if value not in {0, NOT_THE_CONSTANT.get(match[1])}:
                found.setdefault(match[1], set()).add(value)
    return found


IN_CODE = values_in_code()


@pytest.mark.parametrize("row", table(TEXT, "## 17 Limits")[1:], ids=lambda row: row[0])
def test_limits__are_the_code_s(row: list[str]) -> None:
    named = re.search(r"`(\w+)` = ([\d,]+)", row[1])
    if named is not None:
        assert IN_CODE[named[1]] == {int(named[2].replace(",", ""))}


def test_references__name_sections_and_clauses_that_exist() -> None:
    prose = PROTOCOL.split("## 20 ")[0] + RECOVERY  # section 20 names the paper's sections, too
    prose = re.sub(r"```.*?```", "", prose, flags=re.DOTALL)
    known = {clause.number for clause in clauses(TEXT)} | set(re.findall(r"^#{2,3} (R?\d+(?:\.\d+)?) ", TEXT, re.M))
    assert set(re.findall(r"\bR?\d+\.\d+\.\d+\b", TEXT)) - known <= {"4.2.1", "4.2.2", "4.2.3"}
    named = set(re.findall(r"(?:section|of|see|\(|, )\s?(R?\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)(?=[,;:.)\s|])", prose))
    named |= set(re.findall(r"\bR\d+(?:\.\d+)*", TEXT))
    assert named - known <= {"12.5"}  # microseconds


@pytest.mark.parametrize("row", table(TEXT, "### R3.2 Constants")[1:], ids=lambda row: row[0])
def test_constants__are_the_code_s(row: list[str]) -> None:
    named = re.fullmatch(r"`(\w+)` = ([\d,.]+) ?(s|ms|us|)", row[1])
    assert named is not None, row[1]
    assert IN_CODE[named[1]] == {float(named[2].replace(",", "")) * UNITS[named[3]]}


def test_documents__name_no_source_file() -> None:
    assert re.findall(r"`(?:src|tests|python|tools)/[\w/.]+`", TEXT) == []


def check(message: bytes) -> int:
    """Clauses 4.3.2 and 4.3.3, from the document alone: of the bytes that the check covers."""
    data = message + b"\0" * (-len(message) % 8)
    c = 0x6D6C742D63686563
    for at in range(0, len(data), 8):
        if at == 8:
            continue
        c = (c ^ int.from_bytes(data[at : at + 8], "little")) * 0x9E3779B97F4A7C15 % 2**64
        c ^= c >> 32
    return c


def cookie(message: bytes) -> int:
    return int.from_bytes(message[8:16], "little") ^ (check(message) & ~0xFFFF)


def examples(text: str) -> dict[str, bytes]:
    found = re.findall(r"^([A-Z]+)\n((?:[0-9a-f]{2}[ \n])+)", text + "\n", re.MULTILINE)
    return {name: bytes.fromhex(digits) for name, digits in found}


SHOWN = examples(TEXT.split("\n## B ")[1])
FRAMES = {name: SHOWN[name] for name in ("OPEN", "ANSWER", "HELLO", "REFUSE")}
EXAMPLES = {name: SHOWN[name] for name in ("DATA", "ACK", "PROBE", "BITMAP", "STOP", "ABORT", "RETIRE", "PARITY")}
COOKIE = 0x1122334455660001


@pytest.mark.parametrize(("file", "shown"), [("control_examples.txt", FRAMES), ("wire_examples.txt", EXAMPLES)])
def test_examples__are_the_golden_ones(file: str, shown: dict[str, bytes]) -> None:
    assert examples((ROOT / "tests" / "golden" / file).read_text()) == shown


def test_examples__frames_have_the_fields_of_the_diagrams() -> None:
    assert struct.unpack("<IBxxx", FRAMES["OPEN"][:8]) == (40, 1)
    assert struct.unpack("<4sHH32s", FRAMES["OPEN"][8:]) == (b"MLT1", VERSION, 0, bytes(range(0x40, 0x60)))
    assert struct.unpack("<IBxxx", FRAMES["ANSWER"][:8]) == (72, 1)
    assert struct.unpack("<4sHH32s", FRAMES["ANSWER"][8:48]) == (b"MLT1", VERSION, 0, bytes(range(0x80, 0xA0)))
    assert struct.unpack("<IBxxx", FRAMES["HELLO"][:8]) == (128, 6)
    assert struct.unpack("<4sHHHHHHQQQIIII16sHxx16sHxx", FRAMES["HELLO"][8:-32]) == (
        *(b"MLT1", VERSION, 2, 1, 4, 2, 5002),
        *(0x0102030405060708, 0x1111222233334444, COOKIE, 1_432, 2_796_202, 682, 85),
        *(bytes(16), 5001, bytes(10) + b"\xff\xff" + bytes([192, 0, 2, 7]), 5003),
    )
    assert struct.unpack("<IBxxx", FRAMES["REFUSE"][:8]) == (52, 2)
    assert struct.unpack("<BBHQQ", FRAMES["REFUSE"][8:-32]) == (3, 0, 1, 3, 4)


@pytest.mark.parametrize(("name", "role", "kind"), [("ANSWER", 2, 1), ("HELLO", 1, 6), ("REFUSE", 2, 2)])
def test_examples__proofs_are_those_of_the_document(name: str, role: int, kind: int) -> None:
    """Clauses 3.8.3, 3.8.4 and 3.8.12, from the document alone."""
    root = hashlib.sha256(b"mlt secret" + struct.pack("<Q", 32) + bytes(range(32))).digest()
    key = hmac.digest(root, b"mlt control" + struct.pack("<Q", 0x0102030405060708), "sha256")
    payload, proof = FRAMES[name][8:-32], FRAMES[name][-32:]
    openings = FRAMES["OPEN"][8:48] + FRAMES["ANSWER"][8:48]
    covered = b"" if name == "ANSWER" else payload
    assert hmac.digest(key, bytes([role, kind]) + openings + covered, "sha256") == proof


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples__check_undoes_to_the_cookie(name: str) -> None:
    assert cookie(EXAMPLES[name]) == COOKIE


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples__every_changed_byte_is_noticed(name: str) -> None:
    for at in range(len(EXAMPLES[name])):
        broken = bytearray(EXAMPLES[name])
        broken[at] ^= 0x40
        assert cookie(bytes(broken)) != COOKIE, at


# The layouts of sections 4.2 to 4.10 for an independent reader: struct codes behind the prefix, then what stands there.
BLOCK = (7, 6, 1, 1_000_000, 2_500)
OTHER = (5, 5, 0, 900_000, 90_000)
BODIES = {
    "DATA": ("QIIII", (42, 3, 4_096, 2_864, 1_000_000)),
    "ACK": ("5IQIIBBxx5I", (*BLOCK, 42, 3, 0, 1, 0x02, *OTHER)),
    "PROBE": ("QIIIIBxHII", (42, 3, 4_096, 2, 1_200_000, 2, 0b10, 7, 5)),
    "BITMAP": ("5IQIIIIB", (*BLOCK, 42, 3, 1_200_000, 0, 3, 0b101)),
    "STOP": ("5IQIIBxxxII", (*BLOCK, 42, 3, 0, 1, 1_432, 4_096)),
    "ABORT": ("QIBxxxI", (42, 3, 3, 1_328)),
    "RETIRE": ("IIQQ", (262_147, 2, 42, 7)),
    "PARITY": ("QIIHBBI", (42, 3, 4_096, 0, 3, 0, 1_000_000)),
}
PREFIXES = {  # version and type, flags, path and element type, round, sequence
    "DATA": (VERSION % 16 << 4 | 1, 0x06, 0x07, 0, 7),
    "ACK": (VERSION % 16 << 4 | 2, 0x03, 0x00, 0, 1),
    "PROBE": (VERSION % 16 << 4 | 3, 0x02, 0x07, 1, 0),
    "BITMAP": (VERSION % 16 << 4 | 4, 0x00, 0x00, 1, 0),
    "STOP": (VERSION % 16 << 4 | 5, 0x04, 0x07, 0, 0),
    "ABORT": (VERSION % 16 << 4 | 6, 0x00, 0x00, 0, 0),
    "RETIRE": (VERSION % 16 << 4 | 9, 0x01, 0x00, 0, 0),
    "PARITY": (VERSION % 16 << 4 | 10, 0x04, 0x07, 0, 8),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples__have_the_fields_of_the_diagrams(name: str) -> None:
    layout, fields = BODIES[name]
    assert struct.unpack("<BBBBI", EXAMPLES[name][:8]) == PREFIXES[name]
    assert struct.unpack("<" + layout, EXAMPLES[name][16:]) == fields


def glossary(text: str, heading: str) -> dict[str, str]:
    """term -> meaning; a row that defines several terms counts for each."""
    return {term: row[1] for row in table(text, heading)[1:] for term in row[0].split(", ")}


def test_glossaries__agree() -> None:
    ours = glossary((ROOT / "CONTRIBUTING.md").read_text(), "## Glossary")
    protocol = glossary(PROTOCOL, "## 2 Terms (informative)")
    common = ours.keys() & protocol.keys()
    assert {"packet", "batch", "END_OF_ROUND", "declared lost", "loss bound"} <= common
    assert {term: protocol[term] for term in common} == {term: ours[term] for term in common}


@pytest.mark.parametrize("word", ["control datagram", "known lost", "under way", "marker"])
def test_documents__use_the_words_of_the_glossary(word: str) -> None:
    assert [line for line in TEXT.splitlines() if word in line] == []
