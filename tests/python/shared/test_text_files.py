"""Text files: what was read, and why one cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from checks import names

from mlt._shared.text_files import UnreadableError, read_text, reading


def test_read_text__utf_8(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes("µs\n".encode())
    assert read_text(file) == "µs\n"


def test_read_text__names_the_file_and_the_cause(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"abc\xd0\xff")
    for path, cause in ((binary, "not UTF-8 text"), (tmp_path, "Is a directory"), (tmp_path / "no", "No such file")):
        with pytest.raises(UnreadableError, match=names(f"{path}: cannot be read: {cause}")) as error:
            read_text(path)
        assert error.value.reason.startswith(cause)
    with pytest.raises(UnreadableError, match=names("byte 3")):
        read_text(binary)


def test_reading__other_errors_stay_as_they_are() -> None:
    with pytest.raises(KeyError), reading("file"):
        raise KeyError
