"""Names of hosts: addresses in numbers without a resolver, and a resolver that never answers."""

from __future__ import annotations

import doctest
import logging
import socket
import threading
from typing import Any

import pytest

from mlt._shared import name_lookup


def test_examples() -> None:
    assert doctest.testmod(name_lookup).failed == 0


def test_look_up__a_name_that_is_unknown_raises_what_the_resolver_raises() -> None:
    with pytest.raises(socket.gaierror):
        name_lookup.look_up("no-such-host.invalid", 80, socket.SOCK_STREAM)


def test_look_up__name_servers_that_do_not_answer_are_named_and_time_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked, over = threading.Event(), threading.Event()

    def getaddrinfo(*_: Any, **__: Any) -> Any:
        asked.set()
        over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "too late")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(name_lookup, "QUIET_SECONDS", 0.05)
    try:
        with caplog.at_level(logging.WARNING, "mlt"), pytest.raises(socket.gaierror, match=r"resolv\.conf.*0\.1 s"):
            name_lookup.look_up("node7", 80, socket.SOCK_STREAM, seconds=0.1)
    finally:
        over.set()
    assert asked.is_set()
    assert "still looking up the address of 'node7'" in caplog.text
