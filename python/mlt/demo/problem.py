"""The demo's errors."""

from __future__ import annotations


class DemoError(RuntimeError):
    """The demo cannot continue; the message names the object, the cause and the fix."""


class BadSettingError(DemoError, ValueError):
    """An option or variable of the demo is wrong; nothing was started."""
