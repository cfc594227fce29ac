"""Why this process ends before its work is done, for its peers: the type of an exception, never its text.

Except for one of mlt's own: the path's MTU is known only at the rank that sends, and its peers wait for its data.
"""

from __future__ import annotations

import re
import sys

# The text of src/engine/path_mtu_errors.cc, which names the path, the sizes and the way out: about 400 characters.
_MTU_MISMATCH = re.compile(r"MTU mismatch: .{1,700}? measures it", re.DOTALL)
_MAX_CAUSES = 10


def reason_of(kind: type[BaseException] | None, error: BaseException | None = None) -> str:
    """ "ended by ValueError" for an exception that leaves a ``with`` block or the program; empty for an orderly end.

    ``sys.exit()`` is orderly with status 0. An error of mlt adds the rank at fault, so that the first cause is found,
    and a path whose MTU is too small, also where it is the cause of another exception.
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
    about = f" about rank {peer}" if isinstance(peer, int) else ""
    return f"ended by {module}{kind.__qualname__}{about}{_mtu_mismatch(error)}"


def blamed(error: BaseException | None) -> int | None:
    """The rank that an error of mlt is about, also if another exception followed from it (``sys.exit`` in ``except``);
    None if there is none."""
    for _ in range(_MAX_CAUSES):
        if error is None:
            break
        peer = getattr(error, "peer", None)
        if type(error).__module__.startswith("mlt.") and isinstance(peer, int):
            return peer
        error = error.__cause__ or error.__context__
    return None


def _mtu_mismatch(error: BaseException | None) -> str:
    for _ in range(_MAX_CAUSES):
        if error is None:
            break
        if type(error).__module__.startswith("mlt."):
            found = _MTU_MISMATCH.search(str(error))
            return f": {found.group()}" if found else ""
        error = error.__cause__
    return ""


def unhandled() -> str:
    """The same for the exception that ends this program; empty unless the interpreter has reported one.

    An interactive session continues after an exception.
    """
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return ""
    return reason_of(getattr(sys, "last_type", None), getattr(sys, "last_value", None))
