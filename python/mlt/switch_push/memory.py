"""What was on a device before an apply that was kept, for devices that keep no undo of ours: QoS alone, no secrets.

One private file a device under ``$XDG_STATE_HOME/mlt/switch``, the latest apply last; ``--undo`` takes it from there,
so it must run on the machine, and as the user, that applied.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from mlt.switch_push.device import PushError
from mlt.switch_push.login import Login


def _folder() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "mlt" / "switch"


class Memory:
    """The kept applies to one device. Raises PushError where its file cannot be read or written."""

    def __init__(self, login: Login, system: str) -> None:
        self._name = login.name or login.host
        port = "" if login.port is None else f"_{login.port}"
        self._file = _folder() / (re.sub(r"[^A-Za-z0-9_.-]", "_", f"{system}_{login.host}{port}") + ".json")

    def keep(self, before: Any, after: Any) -> None:
        """One more apply is in force: ``before`` is what it replaced, ``after`` what the device had then."""
        self._write([*self._read(), {"before": before, "after": after}])

    def latest(self) -> tuple[Any, Any]:
        """(before, after) of the latest apply."""
        entries = self._read()
        if not entries:
            raise PushError(
                f"{self._name}: no apply to {self._name} is known on this machine ({self._file}); run --undo where it "
                "was applied, or enter what 'mlt switch rollback' prints, which deletes what was added"
            )
        return entries[-1]["before"], entries[-1]["after"]

    def drop(self) -> None:
        """The latest apply is undone."""
        self._write(self._read()[:-1])

    def _read(self) -> list[dict[str, Any]]:
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
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
            raise PushError(f"{self._name}: what was before cannot be kept for --undo: {error}") from None
