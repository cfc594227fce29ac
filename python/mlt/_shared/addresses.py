"""Numeric addresses, and hosts with ports."""

from __future__ import annotations

import ipaddress

from mlt._shared.units import whole_number
from mlt.errors import ConfigError


def is_address(text: str) -> bool:
    """Whether ``text`` is an IPv4 or IPv6 address in numbers."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_host(text: str) -> bool:
    """Whether ``text`` may be the name or the address of a host; a resolver raises UnicodeError for other text."""
    try:
        return bool(text.encode("idna")) and "\0" not in text
    except UnicodeError:
        return False


def without_brackets(text: str) -> str:
    """``[::1]`` as ``::1``, anything else as it is."""
    inner = text[1:-1]
    return inner if text == f"[{inner}]" and ":" in inner else text


def parse_target(target: str, default_port: int) -> tuple[str, int]:
    """ "host", "host:port", "::1", "[::1]:port". Raises ConfigError."""
    host, port = target, str(default_port)
    if target.startswith("["):
        host, closed, rest = target[1:].partition("]")
        if rest or not closed:
            port = rest.removeprefix(":") if rest.startswith(":") else ""
    elif target.count(":") == 1:
        host, _, port = target.partition(":")
    elif ":" in target and not is_address(target):
        host = ""
    number = whole_number(port)
    if not is_host(host) or number is None or not 1 <= number <= 65_535:
        raise ConfigError(f"{target!r} is not HOST or HOST:PORT; write 10.0.0.2, node2:29600 or [fd00::2]:29600")
    return host, number
