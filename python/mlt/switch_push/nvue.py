"""Cumulus through NVUE's REST: a revision, a patch of its root, an apply; back by applying the revision before.

Source: NVIDIA's NVUE API pages: POST /revision, PATCH /?rev=ID, PATCH /revision/ID {"state": "apply"}, GET until it is.
NVUE's timer belongs to its command line, so this process takes the configuration back.
"""

from __future__ import annotations

import base64
import difflib
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from mlt.switch_configs.generator import Generated
from mlt.switch_configs.vendors.cumulus import Cumulus
from mlt.switch_push.device import Device, PushError
from mlt.switch_push.login import Login

PORT = 8765
_WAIT_SECONDS = 120.0
_DONE = {"applied", "applied_and_saved"}
_FAILED = ("fail", "error", "invalid", "ays")


class NvueDevice(Device):
    """HTTPS, verified against the system's authorities or those of ``ca`` in the inventory's options."""

    def __init__(self, login: Login) -> None:
        scheme = str(login.options.get("transport", "https"))
        self.title = login.host
        self._base = f"{scheme}://{login.host}:{login.port or PORT}/nvue_v1"
        credentials = f"{login.user or ''}:{login.password or ''}".encode()
        self._headers = {
            "Authorization": "Basic " + base64.b64encode(credentials).decode("ascii"),
            "Content-Type": "application/json",
        }
        self._tls = ssl.create_default_context(cafile=login.options.get("ca")) if scheme == "https" else None
        self._before: str | None = None

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data=data, method=method, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._tls) as reply:
                return json.loads(reply.read() or b"{}")
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:300]
            raise PushError(
                f"{self.title}: NVUE answers {error.code} to {method} {path.split('?')[0]}: {said}"
            ) from None
        except (OSError, ValueError) as error:
            raise PushError(f"{self.title}: NVUE at port {self._base.split(':')[2].split('/')[0]}: {error}") from None

    def _applied(self) -> str:
        revisions = self._call("GET", "/revision")
        for name, entry in revisions.items():
            if isinstance(entry, dict) and entry.get("state") in _DONE:
                return str(name)
        raise PushError(f"{self.title}: no revision is applied, so there would be no way back; 'nv config apply' first")

    def _patched(self, generated: Generated) -> str:
        (revision,) = self._call("POST", "/revision")
        tree = Cumulus().read_tree(generated.apply)
        self._call("PATCH", f"/?rev={urllib.parse.quote(revision, safe='')}", tree)
        return str(revision)

    def _activate(self, revision: str) -> None:
        at = f"/revision/{urllib.parse.quote(revision, safe='')}"
        self._call("PATCH", at, {"state": "apply", "auto-prompt": {"ays": "ays_yes"}})
        end = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < end:
            entry = self._call("GET", at)
            state = str(entry.get("state", ""))
            if state in _DONE:
                return
            if state.startswith(_FAILED):
                raise PushError(f"{self.title}: revision {revision} is {state}: {json.dumps(entry.get('transition'))}")
            time.sleep(0.2)
        raise PushError(f"{self.title}: revision {revision} is not applied after {_WAIT_SECONDS:g} s")

    def preview(self, generated: Generated) -> str:
        revision = self._patched(generated)
        now, then = (
            json.dumps(self._call("GET", f"/qos?rev={urllib.parse.quote(rev, safe='')}"), indent=1, sort_keys=True)
            for rev in (self._applied(), revision)
        )
        lines = difflib.unified_diff(now.splitlines(), then.splitlines(), "applied", revision, lineterm="", n=2)
        self._call("DELETE", f"/revision/{urllib.parse.quote(revision, safe='')}")
        return "\n".join(lines)

    def apply(self, generated: Generated, revert_in: float | None) -> None:
        before = self._applied()
        revision = self._patched(generated)
        self._before = before
        self._activate(revision)

    def confirm(self) -> None:
        self._before = None

    def rollback(self) -> None:
        # A revision that was refused is not in force: the one before still is.
        if self._before is not None and self._applied() != self._before:
            self._activate(self._before)
        self._before = None
