"""Output files: checked without a trace, replaced at once, and left as they were where writing fails."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mlt._shared import output_files, patience
from mlt._shared.output_files import (
    UnwritableError,
    WriteFailedError,
    check_file,
    check_folder,
    write_bytes,
    write_text,
)


def test_write__replaces_the_content_and_keeps_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    path.chmod(0o640)
    with path.open() as reader:
        write_text(path, "new")
        assert reader.read() == "old"  # another file by now
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_write__a_new_file_has_the_mode_of_the_mask_and_its_folders_are_made(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        write_text(tmp_path / "a" / "b" / "out", "new")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "a" / "b" / "out").stat().st_mode) == 0o640


def test_write__follows_symbolic_links(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "target")
    check_file(tmp_path / "link")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "target").read_text() == "new"


def test_write__devices_are_written_directly() -> None:
    check_file(Path("/dev/null"))
    write_text(Path("/dev/null"), "text")
    with pytest.raises(WriteFailedError, match="No space left on device") as raised:
        write_text(Path("/dev/full"), "text")
    assert raised.value.filename == "/dev/full"
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")], ids=repr)
def test_write__that_ends_early_leaves_the_old_file(
    failure: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    path.write_text("old")

    def half(descriptor: int, content: bytes) -> None:
        os.write(descriptor, content[:2])
        raise failure

    monkeypatch.setattr(output_files, "_write_all", half)
    with pytest.raises((KeyboardInterrupt, WriteFailedError)):
        write_bytes(path, b"newer")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_check__leaves_nothing(tmp_path: Path) -> None:
    check_file(tmp_path / "out")
    check_folder(tmp_path / "b" / "c")
    assert list(tmp_path.iterdir()) == []


def test_check__names_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for check, path in (
        (check_file, tmp_path),
        (check_file, tmp_path / "file" / "out"),
        (check_file, tmp_path / "loop"),
        (check_file, tmp_path / "missing" / "out"),
        (check_folder, tmp_path / "file"),
        (check_folder, tmp_path / "file" / "folder"),
    ):
        with pytest.raises(UnwritableError, match=f"^{path}: cannot be written: "):
            check(path)
    with pytest.raises(UnwritableError, match=r"the format \.nope is unknown; use \.png or \.svg$"):
        check_file(tmp_path / "out.nope", suffixes=(".png", ".svg"))
    with pytest.raises(UnwritableError, match=r"^\\udcff: cannot"):
        check_file(Path("\udcff"), suffixes=(".png",))


def test_write__a_named_pipe_without_a_reader_ends_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(output_files, "READER_SECONDS", 0.3)
    monkeypatch.setattr(patience, "QUIET_SECONDS", 0.1)
    check_file(pipe)  # a reader may come later
    with pytest.raises(WriteFailedError, match="no program reads this named pipe") as raised:
        write_text(pipe, "text")
    assert raised.value.filename == str(pipe)
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"still waiting for a reader of {pipe}" in line


def test_write__a_named_pipe_gets_all_once_a_program_reads_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = "0123456789" * 100_000  # more than a pipe holds
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write_text, pipe, text)
        assert pipe.read_text() == text
        written.result(timeout=10)
