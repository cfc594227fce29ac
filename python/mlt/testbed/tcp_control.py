"""TCP's congestion control in namespaces.

A namespace starts with that of the host. It may choose another one only among those that the host allows everybody,
so the host's list has it as long as the choice takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mlt.testbed import namespaces
from mlt.testbed.errors import TestbedError

_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def set_control(paths: Iterable[Path], name: str) -> None:
    """Use ``name`` for new connections in these namespaces. Raises TestbedError if the kernel has no such algorithm."""
    try:
        with _allowed(name):
            for path in paths:
                namespaces.inside(path, lambda: _CONTROL.write_text(name, encoding="ascii"))
    except OSError as error:
        raise TestbedError(
            f"TCP cannot use congestion control {name!r}: {error.strerror}; 'modprobe tcp_{name}' may load it"
        ) from error


@contextmanager
def _allowed(name: str) -> Iterator[None]:
    before = _ALLOWED.read_text(encoding="ascii")
    if name in before.split():
        yield
        return
    _ALLOWED.write_text(f"{before.strip()} {name}", encoding="ascii")
    try:
        yield
    finally:
        _ALLOWED.write_text(before, encoding="ascii")
