"""The QoS of a device before each confirmed apply, for devices that cannot store mlt's undo. Contains no secrets.

One private file per device under ``$XDG_STATE_HOME/mlt/switch``, the latest apply last. ``--undo`` reads it, so it must
run on the host, and as the user, of the apply.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from mlt._shared.os_errors import cause_of
from mlt._shared.structured_text import parse_json
from mlt.switch_push.device import PushError
from mlt.switch_push.login import Login


def _folder() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "mlt" / "switch"


class Memory:
    """The confirmed applies to one device. Raises PushError if its file cannot be read or written."""

    def __init__(self, login: Login, system: str) -> None:
        self._name = login.name or login.host
        port = "" if login.port is None else f"_{login.port}"
        self._file = _folder() / (re.sub(r"[^A-Za-z0-9_.-]", "_", f"{system}_{login.host}{port}") + ".json")

    def keep(self, before: Any, after: Any) -> None:
        """Add an apply: ``before`` is the replaced configuration, ``after`` the new one, as read from the device."""
        self._write([*self._read(), {"before": before, "after": after}])

    def latest(self) -> tuple[Any, Any]:
        """(before, after) of the latest apply."""
        entries = self._read()
        if not entries:
            raise PushError(
                f"{self._name}: no apply to {self._name} is known on this host ({self._file}); run --undo where it "
                "was applied, or enter what 'mlt switch rollback' prints, which deletes what was added"
            )
        return entries[-1]["before"], entries[-1]["after"]

    def drop(self) -> None:
        """Remove the latest apply, after its undo."""
        self._write(self._read()[:-1])

    def _read(self) -> list[dict[str, Any]]:
        try:
            found = parse_json(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise PushError(f"{self._name}: {cause_of(error)}") from None
        except ValueError as error:
            raise PushError(f"{self._name}: {self._file}: {error}") from None
        return list(found)

    def _write(self, entries: list[dict[str, Any]]) -> None:
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = self._file.with_suffix(".new")
            new.touch(mode=0o600)
            new.write_text(json.dumps(entries) + "\n", encoding="utf-8")
            new.replace(self._file)
        except OSError as error:
            cause = cause_of(error)
            raise PushError(f"{self._name}: cannot save the previous configuration for --undo: {cause}") from None
