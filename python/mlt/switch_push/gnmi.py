"""OpenConfig over gNMI (pygnmi): Set to apply, Set of the previous QoS tree to restore, Subscribe for counters."""

from __future__ import annotations

import difflib
import json
import socket
from collections.abc import Iterator
from typing import Any

from mlt._shared.os_errors import cause_of
from mlt.switch_configs.counters import QueueCounters, merge
from mlt.switch_configs.generator import Generated
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.telemetry import read_openconfig
from mlt.switch_push.device import NO_ADDRESS, Device, PushError, need
from mlt.switch_push.login import Login
from mlt.switch_push.memory import Memory

PORT = 57400
_QOS = "/qos"
_MODULE = "openconfig-qos:"
_QUEUES = "/qos/interfaces/interface/output/queues/queue/state"


class GnmiDevice(Device):
    """TLS, unless the inventory's options contain ``transport: insecure``; their ``ca`` is the CA certificate file."""

    def __init__(self, login: Login) -> None:
        client: Any = need("pygnmi.client", "target openconfig")
        self.title = login.name or login.host
        self._memory = Memory(login, "openconfig")
        self._before: dict[str, Any] | None = None
        self._connection: Any = client.gNMIclient(
            target=(login.host, login.port or PORT),
            username=login.user or "",
            password=login.password or "",
            insecure=login.options.get("transport") == "insecure",
            path_root=login.options.get("ca"),
            gnmi_timeout=20,
            no_qos_marking=True,
        )
        _reach(self.title, login.host, login.port or PORT)
        self._do("cannot connect", self._connection.connect, timeout=20)

    def _do(self, what: str, call: Any, *arguments: Any, **named: Any) -> Any:
        """Call pygnmi; raises PushError for its own errors and grpc's."""
        try:
            return call(*arguments, **named)
        except Exception as error:
            details = getattr(error, "details", None)
            text = details() if callable(details) else error
            raise PushError(f"{self.title}: gNMI {what}: {text or type(error).__name__}") from None

    def _get(self) -> dict[str, Any]:
        reply = self._do("Get /qos", self._connection.get, path=[_QOS], datatype="config", encoding="json_ietf")
        found: dict[str, Any] = {}
        for notification in reply.get("notification", []):
            for update in notification.get("update", []) or []:
                if isinstance(update.get("val"), dict):
                    found |= update["val"].get(f"{_MODULE}qos", update["val"])
        return found

    def _set(self, **what: Any) -> None:
        self._do("Set", self._connection.set, encoding="json_ietf", **what)

    def preview(self, generated: Generated) -> str:
        now, wanted = _plain(self._get()), _tree(generated)
        before, after = (
            json.dumps(body, indent=1, sort_keys=True).splitlines() for body in (now, _merged(now, wanted))
        )
        return "\n".join(difflib.unified_diff(before, after, "/qos now", "/qos then", lineterm="", n=2))

    def apply(self, generated: Generated, revert_in: float | None) -> None:
        before = self._get()
        self._before = before
        self._set(update=[(_QOS, {_MODULE + key: value for key, value in _tree(generated).items()})])

    def confirm(self) -> None:
        if self._before is not None:
            self._memory.keep(_plain(self._before), _plain(self._get()))
        self._before = None

    def rollback(self) -> None:
        if self._before is not None:
            self._put_back(_plain(self._before))
            self._before = None

    def undo(self, generated: Generated) -> None:
        before, after = self._memory.latest()
        now = _plain(self._get())
        if changed := sorted(_differing(after, now)):
            raise PushError(
                f"{self.title}: {len(changed)} parts of /qos changed since the latest apply ({changed[0]}): "
                "restoring the previous configuration would lose that; 'mlt switch rollback' deletes mlt's part alone"
            )
        self._put_back(before)
        self._memory.drop()

    def _put_back(self, before: dict[str, Any]) -> None:
        if before:
            self._set(replace=[(_QOS, {_MODULE + key: value for key, value in before.items()})])
        else:
            self._set(delete=[_QOS])

    def counters(self, plan: Plan) -> list[QueueCounters]:
        wanted = {"subscription": [{"path": _QUEUES}], "mode": "once", "encoding": "json_ietf"}
        rows = []
        for reply in self._do("Subscribe", lambda: list(self._connection.subscribe2(subscribe=wanted))):
            if "update" in reply:
                rows += read_openconfig(reply["update"])
        if not rows:
            raise PushError(f"{self.title}: gNMI Subscribe to {_QUEUES} gave no counters")
        return merge(rows)

    def close(self) -> None:
        self._connection.close()


def _reach(title: str, host: str, port: int) -> None:
    """Test the TCP connection first: pygnmi reports every failure as a missing certificate."""
    try:
        socket.create_connection((host, port), timeout=20).close()
    except OSError as error:
        fix = NO_ADDRESS
        if not isinstance(error, socket.gaierror):
            fix = f"; enable gNMI on the device at port {port}, or name its port (HOST:PORT)"
        raise PushError(f"{title}: gNMI cannot connect: {cause_of(error)}{fix}") from None


def _tree(generated: Generated) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(generated.apply["openconfig.json"])[f"{_MODULE}qos"]
    return found


def _plain(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree without module names on the topmost keys."""
    return {key.removeprefix(_MODULE): value for key, value in tree.items()}


def _merged(now: Any, wanted: Any) -> Any:
    """Result of an update of ``now``: containers merge, lists merge by key, leaves are replaced."""
    if isinstance(now, dict) and isinstance(wanted, dict):
        return {**now, **{key: _merged(now.get(key), value) for key, value in wanted.items()}}
    if isinstance(now, list) and isinstance(wanted, list) and all(isinstance(one, dict) for one in (*now, *wanted)):
        merged = {_key(one): one for one in now}
        for one in wanted:
            merged[_key(one)] = _merged(merged.get(_key(one)), one)
        return list(merged.values())
    return wanted


def _differing(left: Any, right: Any, path: str = "/qos") -> Iterator[str]:
    """Paths at which two trees differ; list entries are matched by key, in any order."""
    if isinstance(left, list) and isinstance(right, list) and all(isinstance(one, dict) for one in (*left, *right)):
        left, right = ({_key(one): one for one in side} for side in (left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        for key in {**left, **right}:
            yield from _differing(left.get(key), right.get(key), f"{path}/{key}")
    elif left != right:
        yield path


def _key(entry: dict[str, Any]) -> Any:
    return next(
        (entry[name] for name in ("name", "id", "interface-id", "type", "sequence") if name in entry), repr(entry)
    )
