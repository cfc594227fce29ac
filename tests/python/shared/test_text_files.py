"""Text files: what was read, and why one cannot be."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from checks import names

from mlt._shared import text_files
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


def test_read_text__a_pipe_is_read_to_its_end_and_one_without_a_writer_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UnreadableError, match="no process writes into this pipe"):
        read_text(pipe)
    reader, writer = os.pipe()  # as a shell's <(command)

    def write() -> None:
        with os.fdopen(writer, "w") as file:
            file.write("a: 1\n" * 50_000)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        assert read_text(f"/dev/fd/{reader}") == "a: 1\n" * 50_000
    finally:
        writing.join()
        os.close(reader)


def test_read_text__what_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MAX_BYTES", 3 << 20)
    with pytest.raises(UnreadableError, match="longer than 3 MiB"):
        read_text("/dev/zero")


def test_read_text__leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(UnreadableError):
            read_text(tmp_path)
    assert set(os.listdir("/proc/self/fd")) - before == set()


def test_reading__other_errors_stay_as_they_are() -> None:
    with pytest.raises(KeyError), reading("file"):
        raise KeyError
