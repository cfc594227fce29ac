"""Numeric addresses."""

from __future__ import annotations

import ipaddress


def is_address(text: str) -> bool:
    """Whether ``text`` is an IPv4 or IPv6 address in numbers."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
