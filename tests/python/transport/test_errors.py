"""The exceptions: one class per kind of failure, with rank and kind attached, and at home in Python's own hierarchy."""

from __future__ import annotations

import pickle

import pytest

import mlt
from mlt import errors


@pytest.mark.parametrize("code", list(errors.ErrorCode))
def test_from_code__gives_every_kind_its_class(code: errors.ErrorCode) -> None:
    error = errors.from_code(code.value, "rank 1: it broke", 3)
    assert type(error).default_code is code
    assert (error.code, error.peer, str(error)) == (code, 3, "rank 1: it broke")
    assert errors.from_code(code.value, "", -1).peer is None


@pytest.mark.parametrize("code", list(errors.ErrorCode))
def test_errors__survive_a_process_boundary(code: errors.ErrorCode) -> None:
    error = errors.from_code(code.value, "rank 1: it broke", 3)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.code, copy.peer, str(copy)) == (type(error), code, 3, "rank 1: it broke")
    if isinstance(copy, mlt.TransferError):
        assert copy.completion is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("size_mismatch", mlt.SizeMismatchError),
        ("type_mismatch", mlt.TypeMismatchError),
        ("peer_failed", mlt.PeerFailedError),
        ("timed_out", mlt.OperationTimeoutError),
        ("cancelled", mlt.CancelledError),
    ],
)
def test_from_status__is_a_transfer_error(status: str, kind: type[mlt.TransferError]) -> None:
    error = errors.from_status(status, "it broke", 2)
    assert type(error) is kind
    assert isinstance(error, mlt.TransferError)
    assert error.peer == 2


def test_errors__are_what_python_programs_expect() -> None:
    assert issubclass(mlt.ConfigError, ValueError)
    assert issubclass(mlt.InvalidBufferError, ValueError)
    assert issubclass(mlt.PortInUseError, OSError)
    assert issubclass(mlt.OperationTimeoutError, TimeoutError)
    assert issubclass(mlt.WaitTimeoutError, TimeoutError)
    assert not issubclass(mlt.WaitTimeoutError, mlt.TransferError)


def test_package__offers_every_error() -> None:
    assert set(errors.__all__) <= set(mlt.__all__)
    for name in mlt.__all__:
        assert getattr(mlt, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mlt.nonsense  # noqa: B018
