"""The demo's one error type."""

from __future__ import annotations


class DemoError(RuntimeError):
    """The demo cannot continue; the message names the object, the cause and the fix."""
