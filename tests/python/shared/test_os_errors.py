"""The system's text of a failure, without Python's number."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from mlt._shared.os_errors import cause_of


def test_cause_of__names_files_and_cause(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as error:
        tmp_path.read_text()
    assert cause_of(error.value) == f"{tmp_path}: Is a directory"
    with pytest.raises(FileNotFoundError) as missing:
        (tmp_path / "a").rename(tmp_path / "b" / "c")
    assert cause_of(missing.value) == f"{tmp_path}/a to {tmp_path}/b/c: No such file or directory"


def test_cause_of__has_no_numbers() -> None:
    assert cause_of(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")) == "Connection refused"
    assert cause_of(socket.gaierror(socket.EAI_AGAIN, "Temporary failure")) == "Temporary failure"
    assert cause_of(RuntimeError("SSH: [Errno 111] refused, [Errno -3] again")) == "SSH: refused, again"
    assert cause_of(TimeoutError()) == "TimeoutError"
