"""EOS, NX-OS and Junos through NAPALM: candidate, comparison, and the commit timer if the driver has one.

By default the drivers accept any certificate and host key. Here Junos's host key must be known and certificates must be
signed, unless the inventory's options contain ``enforce_verification: false`` (EOS) or ``ssl_verify: false`` (NX-OS).
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import tempfile
from pathlib import Path
from typing import Any

from mlt.switch_configs.counters import QueueCounters, merge
from mlt.switch_configs.generator import Generated
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.registry import target as find_target
from mlt.switch_configs.target import Target, code_lines
from mlt.switch_configs.vendors.junos import PREFIX
from mlt.switch_push.device import NO_ADDRESS, Device, PushError, need
from mlt.switch_push.login import Login
from mlt.switch_push.memory import Memory
from mlt.switch_push.statements import Statement, lost, statements, written

DRIVERS = {"eos": "eos", "nxos": "nxos", "junos": "junos"}
_TIMERS = ("eos", "junos")
_ENABLE = {
    "eos": "management api http-commands, no shutdown",
    "nxos": "feature nxapi",
    "junos": "set system services netconf ssh",
}
_VERIFY = {"eos": "enforce_verification", "nxos": "ssl_verify"}


class NapalmDevice(Device):
    """A merge candidate of the target's text without its comments. Undo also restores statements that apply
    replaced."""

    def __init__(self, login: Login, system: str, *, known_hosts: Path | None = None) -> None:
        napalm: Any = need("napalm", f"target {system}")
        # pyeapi logs a traceback of the errors it raises; without a handler Python prints that to the terminal.
        logging.getLogger("pyeapi").addHandler(logging.NullHandler())
        self.title = login.name or login.host
        self._system = system
        self._memory = Memory(login, system)
        self._before: list[Statement] = []
        self._after: list[Statement] = []
        self._waiting = self._active = False
        self.reverts_itself = system in _TIMERS
        options = dict(login.options)
        if login.port is not None:
            options.setdefault("port", login.port)
        if login.key_file is not None:
            options.setdefault("key_file", login.key_file)
        if system in _VERIFY:
            options.setdefault(_VERIFY[system], True)
        with contextlib.ExitStack() as opened:
            if system == "junos" and known_hosts is not None:
                file = opened.enter_context(tempfile.NamedTemporaryFile("w", suffix=".ssh_config"))
                file.write(f"Host *\n  UserKnownHostsFile {known_hosts.resolve()}\n")
                file.flush()
                options["ssh_config_file"] = file.name
            self._driver: Any = napalm.get_network_driver(DRIVERS[system])(
                login.host, login.user or "", login.password or "", timeout=60, optional_args=options
            )
            if system == "junos":
                self._driver.device._hostkey_verify = True  # not a driver option; default: any key
            self._do("cannot connect", self._driver.open)

    def _do(self, what: str, call: Any, *arguments: Any, **named: Any) -> Any:
        """Call the driver; raises PushError for NAPALM's errors and those of the four libraries below it."""
        try:
            return call(*arguments, **named)
        except Exception as error:
            raise PushError(
                f"{self.title}: {what}: {error or type(error).__name__}{_advice(self._system, error)}"
            ) from None

    def _load(self, lines: list[str], *, commit: bool) -> None:
        # NX-API runs each request from exec mode; the comparison treats every line as configuration.
        first = ["configure terminal"] if commit and self._system == "nxos" else []
        text = "\n".join([*first, *lines]) + "\n"
        self._do("rejected the candidate", self._driver.load_merge_candidate, config=text)

    def _statements(self, target: Target) -> list[Statement]:
        form = {"format": "set"} if self._system == "junos" else {}
        found = self._do("cannot read the configuration", self._driver.get_config, retrieve="running", **form)
        return statements(target, str(found["running"]))

    def preview(self, generated: Generated) -> str:
        self._load(_lines(generated.apply, generated.target), commit=False)
        diff = self._do("cannot compare", self._driver.compare_config)
        self._do("cannot discard the candidate", self._driver.discard_config)
        return str(diff)

    def apply(self, generated: Generated, revert_in: float | None) -> None:
        self._before = self._statements(generated.target)
        self._load(_lines(generated.apply, generated.target), commit=True)
        if revert_in is None or not self.reverts_itself:
            self._do("cannot commit", self._driver.commit_config)
        else:
            # Junos's commit timer is in minutes.
            seconds = math.ceil(revert_in / 60) * 60 if self._system == "junos" else math.ceil(revert_in)
            self._do("cannot commit for a time", self._driver.commit_config, revert_in=seconds)
            self._waiting = True
        self._active = True
        self._after = self._statements(generated.target)

    def confirm(self) -> None:
        self._memory.keep(self._before, self._after)
        if self._waiting:
            try:
                self._do("cannot confirm", self._driver.confirm_commit)
            except PushError:
                self._memory.drop()
                raise
        self._waiting = self._active = False

    def rollback(self) -> None:
        if self._active:
            self._do("cannot roll back", self._driver.rollback)
        else:
            self._do("cannot discard the candidate", self._driver.discard_config)
        self._waiting = self._active = False

    def undo(self, generated: Generated) -> None:
        before, after = ([tuple(one) for one in part] for part in self._memory.latest())
        lines = _lines(generated.undo, generated.target)
        gone = lost(before, after)
        if self._system == "junos":
            # An entry without statements would stay. Delete the ports' entries; foreign statements are written again.
            entries = tuple(f"{PREFIX}interfaces {port} " for port in generated.plan.ports)
            since = lost(self._statements(generated.target), after)
            gone = [one for one in gone if not one[0].startswith(entries)]
            gone += [one for one in (*before, *since) if one[0].startswith(entries)]
            whole = [entry.replace("set ", "delete ", 1).rstrip() for entry in entries]
            lines = [*whole, *(line for line in lines if not line.startswith(tuple(f"{each} " for each in whole)))]
        self._load([*lines, *written(gone)], commit=True)
        self._do("cannot commit the undo", self._driver.commit_config)
        self._memory.drop()
        if missing := lost(before, self._statements(generated.target)):
            raise PushError(
                f"{self.title}: undone, but {len(missing)} previous statements are missing: {' / '.join(missing[0])}"
            )

    def counters(self, plan: Plan) -> list[QueueCounters]:
        target = find_target(self._system)
        rows: list[QueueCounters] = []
        for command in target.asked_for_counters(plan):
            plain, _, as_json = command.partition(" | ")
            form = {"encoding": "json"} if as_json else {}
            output = self._do(f"cannot read counters ({plain})", self._driver.cli, [plain], **form)[plain]
            rows += target.parse_counters(json.dumps(output) if as_json else f"{plain}\n{output}")
        if not rows:
            raise PushError(f"{self.title}: {command!r} printed no queue counters")
        return merge(rows)

    def close(self) -> None:
        self._do("cannot close", self._driver.close)


def _lines(files: dict[str, str], target: Target) -> list[str]:
    return [line for text in files.values() for _, line in code_lines(text, target.comment)]


def _advice(system: str, error: BaseException | None) -> str:
    """Advice to the user, from the errors below the driver's: it reports "refused" for unknown host keys too."""
    causes = ""
    while error is not None:
        causes += f"{type(error).__name__} {error} ".lower()
        error = error.__cause__ or error.__context__
    if "gaierror" in causes:
        return NO_ADDRESS
    if "unknownhost" in causes:
        return "; the host key is not known: ssh-keyscan -p PORT HOST, --known-hosts FILE"
    if "certificate" in causes:
        return "; its certificate is not signed by an authority that this host trusts"
    if "connectionrefused" in causes:
        return f"; no program listens there: {_ENABLE[system]}, or another port (HOST:PORT)"
    return ""
