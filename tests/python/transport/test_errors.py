"""The exceptions: one class per kind of failure, with rank and kind attached, and at home in Python's own hierarchy."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from checks import names

import mlt
from mlt import errors
from mlt._shared.ports import free_port


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


def _listen_on_the_port_of(context: mlt.Context) -> None:
    options = mlt._core.Options()
    options.ranks, options.host, options.udp_port = 1, "127.0.0.1", context.engine.udp_port
    mlt._core.Engine(options)


# Built without its constructor (src/bindings/bind_error.cc).
@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("unknown_peer", lambda context: context.engine.rate_bits_per_second(7)),
        ("unknown_operation", lambda context: context.engine.wait(99, -1)),
        ("config", lambda context: context.engine.use_services([], 1)),
        ("closed", lambda context: (context.engine.close(), context.barrier())),
        ("port_in_use", _listen_on_the_port_of),
    ],
)
def test_native_error__is_what_its_constructor_makes(kind: str, call: Callable[[mlt.Context], object]) -> None:
    with mlt.Context(0, 1, master_addr="127.0.0.1", rendezvous_port=free_port()) as context:
        with pytest.raises(errors.MltError) as caught:
            call(context)
        error = caught.value
    text = str(error)
    assert text
    expected = errors.from_code(kind, text, error.peer if error.peer is not None else -1)
    assert type(error) is type(expected)
    assert vars(error) == vars(expected)
    assert (error.args, str(error), repr(error)) == (expected.args, str(expected), repr(expected))
    assert getattr(error, "errno", None) is getattr(expected, "errno", None) is None
    assert pickle.loads(pickle.dumps(error)).args == expected.args


def test_package__offers_every_error() -> None:
    assert set(errors.__all__) <= set(mlt.__all__)
    for name in mlt.__all__:
        assert getattr(mlt, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mlt.nonsense  # noqa: B018


@pytest.mark.parametrize(
    ("environ", "error", "named"),
    [
        ({"MLT_SPIN_US": "long"}, mlt.ConfigError, "MLT_SPIN_US is 'long'"),
        ({"MLT_HOST": "192.0.2.77"}, mlt.ConfigError, "MLT_HOST"),
        ({"RANK": "1", "MLT_CONNECT_TIMEOUT": "1ms"}, mlt.RendezvousError, "no rendezvous with rank 0"),
        ({"WORLD_SIZE": "x"}, mlt.ConfigError, "WORLD_SIZE is 'x'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_context__of_a_wrong_environment_ends_in_a_short_traceback_with_one_cause(
    environ: dict[str, str], error: type[mlt.MltError], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in {**place, **environ}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(error, match=names(named)) as raised:
        mlt.Context()
    assert [Path(frame.filename).name for frame in traceback.extract_tb(raised.tb)] == ["test_errors.py", "context.py"]
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
