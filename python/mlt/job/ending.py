"""Why this process ends before its work is done, for its peers: the type of an exception, never its text."""

from __future__ import annotations

import sys


def reason_of(kind: type[BaseException] | None, error: BaseException | None = None) -> str:
    """ "ended by ValueError" for an exception that leaves a ``with`` block or the program; empty for an orderly end.

    ``sys.exit()`` is orderly with status 0. An error of mlt adds the rank at fault, so that the first cause is found.
    """
    if kind is None or issubclass(kind, GeneratorExit):
        return ""
    if issubclass(kind, SystemExit):
        status = getattr(error, "code", None)
        if status is None or status == 0:
            return ""
        return f"ended by sys.exit({status})" if isinstance(status, int) else "ended by sys.exit() with a message"
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    peer = getattr(error, "peer", None) if kind.__module__.startswith("mlt.") else None
    return f"ended by {module}{kind.__qualname__}" + (f" about rank {peer}" if isinstance(peer, int) else "")


def unhandled() -> str:
    """The same for the exception that ends this program; empty unless the interpreter has reported one.

    An interactive session goes on after an exception.
    """
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return ""
    return reason_of(getattr(sys, "last_type", None), getattr(sys, "last_value", None))
