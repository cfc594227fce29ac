"""Cumulus through NVUE's REST API: apply is a revision, a patch of its root, and its apply; rollback is a revision with
the previous QoS.

Source: NVIDIA, Cumulus Linux 5.9 user guide, NVUE API (basic authentication, port 8765): POST /revision; GET of
/?rev=applied&filled=false; GET of a path with ?rev=operational; PATCH /?rev=ID with a tree from the root; DELETE of a
path with ?rev=ID; PATCH /revision/ID {"state": "apply", "auto-prompt": {"ays": "ays_yes"}} and GET until it is
"applied". UNCONFIRMED, not found there: DELETE /revision/ID, which a preview uses; the path (that of ``nv show``) and
form of the counters; the states of a failed apply. NVUE's timer belongs to its command line, so this process rolls the
configuration back. Before 5.9 an applied revision is not saved: 'nv config save'.
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
from collections.abc import Iterable
from typing import Any

from mlt._shared.os_errors import cause_of
from mlt.switch_configs.counters import QueueCounters
from mlt.switch_configs.generator import Generated
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.vendors.cumulus import Cumulus, queue_counters
from mlt.switch_push.device import NO_ADDRESS, Device, PushError
from mlt.switch_push.login import Login
from mlt.switch_push.memory import Memory

PORT = 8765
_WAIT_SECONDS = 120.0
_DONE = {"applied", "applied_and_saved"}
_FAILED = ("fail", "error", "invalid", "ays")
# Path in the tree (without its slash) -> its value; {} where the tree has nothing.
Parts = dict[str, Any]


class NvueDevice(Device):
    """HTTPS, verified against the system's CAs or those of ``ca`` in the inventory's options."""

    def __init__(self, login: Login) -> None:
        scheme = str(login.options.get("transport", "https"))
        self.title = login.name or login.host
        self._base = f"{scheme}://{login.host}:{login.port or PORT}/nvue_v1"
        credentials = f"{login.user or ''}:{login.password or ''}".encode()
        self._headers = {
            "Authorization": "Basic " + base64.b64encode(credentials).decode("ascii"),
            "Content-Type": "application/json",
        }
        self._tls = ssl.create_default_context(cafile=login.options.get("ca")) if scheme == "https" else None
        self._memory = Memory(login, "cumulus")
        self._before: Parts | None = None

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data=data, method=method, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._tls) as reply:
                return json.loads(reply.read() or b"{}")
        except urllib.error.HTTPError as error:
            reply_text = error.read().decode(errors="replace")[:300]
            raise PushError(
                f"{self.title}: NVUE replied {error.code} to {method} {path.split('?')[0]}: {reply_text}"
            ) from None
        except (OSError, ValueError) as error:
            way_out = "the REST API must be on (on the switch: nv show system api); HOST:PORT names another port"
            if "not known" in str(error):
                way_out = NO_ADDRESS.removeprefix("; ")
            elif "certificate" in str(error).lower():
                way_out = "the inventory's optional_args: ca names the authority that signed it"
            port = self._base.split(":")[2].split("/")[0]
            raise PushError(f"{self.title}: NVUE at port {port}: {cause_of(error)}; {way_out}") from None

    def _tree(self, revision: str) -> dict[str, Any]:
        found: dict[str, Any] = self._call("GET", f"/?rev={_quoted(revision)}&filled=false")
        return found

    def _before_of(self, generated: Generated) -> Parts:
        """The current QoS of the switch and of the ports; the whole subtree of a port without configuration."""
        tree = self._tree("applied")
        known = tree.get("interface", {})
        ports = generated.plan.ports
        return _parts(tree, ["qos", *(f"interface/{port}" + ("/qos" if port in known else "") for port in ports)])

    def _revision(self) -> str:
        (revision,) = self._call("POST", "/revision")
        return str(revision)

    def _put_back(self, parts: Parts) -> None:
        """Apply a revision with these parts restored; the rest of the tree stays as it is now."""
        revision = self._revision()
        tree: dict[str, Any] = {}
        for path, value in parts.items():
            self._call("DELETE", f"/{urllib.parse.quote(path)}?rev={_quoted(revision)}", {})
            if value:
                at = tree
                *above, last = path.split("/")
                for word in above:
                    at = at.setdefault(word, {})
                at[last] = value
        if tree:
            self._call("PATCH", f"/?rev={_quoted(revision)}", tree)
        self._activate(revision)

    def _patched(self, generated: Generated) -> str:
        revision = self._revision()
        self._call("PATCH", f"/?rev={_quoted(revision)}", Cumulus().read_tree(generated.apply))
        return revision

    def _activate(self, revision: str) -> None:
        at = f"/revision/{_quoted(revision)}"
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
        paths = ["qos", *(f"interface/{port}/qos" for port in generated.plan.ports)]
        now, then = (
            json.dumps(_parts(self._tree(rev), paths), indent=1, sort_keys=True).splitlines()
            for rev in ("applied", revision)
        )
        lines = list(difflib.unified_diff(now, then, "applied", revision, lineterm="", n=2))
        try:
            self._call("DELETE", f"/revision/{_quoted(revision)}")
        except PushError:
            lines.append(f"revision {revision} stays on the switch, pending and not applied")
        return "\n".join(lines)

    def apply(self, generated: Generated, revert_in: float | None) -> None:
        before = self._before_of(generated)
        revision = self._patched(generated)
        self._before = before
        self._activate(revision)

    def confirm(self) -> None:
        if self._before is not None:
            self._memory.keep(self._before, self._now(self._before))
        self._before = None

    def counters(self, plan: Plan) -> list[QueueCounters]:
        rows = []
        for port in plan.ports:
            at = f"/interface/{_quoted(port)}/counters/qos/egress-queue-stats?rev=operational"
            for queue, values in self._call("GET", at).items():
                # NVUE's table gives discards in bytes; its JSON omits the unit.
                texts = {
                    name: f"{value} B" if "buffer-discards" in name else str(value) for name, value in values.items()
                }
                rows.append(queue_counters(port, queue, texts))
        return rows

    def rollback(self) -> None:
        # A rejected revision is not active: the previous configuration still is.
        if self._before is not None and self._now(self._before) != self._before:
            self._put_back(self._before)
        self._before = None

    def undo(self, generated: Generated) -> None:
        before, after = self._memory.latest()
        now = self._now(before)
        if changed := [path for path in before if now[path] != after[path]]:
            raise PushError(
                f"{self.title}: {', '.join(changed)} changed since the latest apply: restoring the previous "
                "configuration would lose that; 'mlt switch rollback' prints how to remove mlt's part alone"
            )
        self._put_back(before)
        self._memory.drop()

    def _now(self, parts: Parts) -> Parts:
        return _parts(self._tree("applied"), parts)


def _parts(tree: dict[str, Any], paths: Iterable[str]) -> Parts:
    found: Parts = {}
    for path in paths:
        at: Any = tree
        for word in path.split("/"):
            at = at.get(word, {}) if isinstance(at, dict) else {}
        found[path] = at
    return found


def _quoted(revision: str) -> str:
    return urllib.parse.quote(revision, safe="")
