"""EOS, NX-OS and Junos through NAPALM: its candidate, its comparison, its commit timer where the driver has one."""

from __future__ import annotations

import math
from typing import Any

from mlt.switch_configs.generator import Generated
from mlt.switch_configs.target import code_lines
from mlt.switch_push.device import Device, PushError, need
from mlt.switch_push.login import Login

DRIVERS = {"eos": "eos", "nxos": "nxos", "junos": "junos"}
_TIMERS = ("eos", "junos")


class NapalmDevice(Device):
    """A merge candidate of the target's text without its comments."""

    def __init__(self, login: Login, system: str) -> None:
        napalm: Any = need("napalm", f"target {system}")
        self.title = login.host
        self._system = system
        self._waiting = self._active = False
        self.reverts_itself = system in _TIMERS
        options = dict(login.options)
        if login.port is not None:
            options.setdefault("port", login.port)
        if login.key_file is not None:
            options.setdefault("key_file", login.key_file)
        self._driver: Any = napalm.get_network_driver(DRIVERS[system])(
            login.host, login.user or "", login.password or "", timeout=60, optional_args=options
        )
        self._do("cannot connect", self._driver.open)

    def _do(self, what: str, call: Any, *arguments: Any, **named: Any) -> Any:
        """Drivers raise NAPALM's errors and those of the four libraries below them."""
        try:
            return call(*arguments, **named)
        except Exception as error:
            raise PushError(f"{self.title}: {what}: {error or type(error).__name__}") from None

    def _load(self, files: dict[str, str], comment: str) -> None:
        lines = [line for text in files.values() for _, line in code_lines(text, comment)]
        self._do("refuses the candidate", self._driver.load_merge_candidate, config="\n".join(lines) + "\n")

    def preview(self, generated: Generated) -> str:
        self._load(generated.apply, generated.target.comment)
        diff = self._do("cannot compare", self._driver.compare_config)
        self._do("cannot discard the candidate", self._driver.discard_config)
        return str(diff)

    def apply(self, generated: Generated, revert_in: float | None) -> None:
        self._load(generated.apply, generated.target.comment)
        if revert_in is None or not self.reverts_itself:
            self._do("cannot commit", self._driver.commit_config)
        else:
            # Junos counts minutes.
            seconds = math.ceil(revert_in / 60) * 60 if self._system == "junos" else math.ceil(revert_in)
            self._do("cannot commit for a time", self._driver.commit_config, revert_in=seconds)
            self._waiting = True
        self._active = True

    def confirm(self) -> None:
        if self._waiting:
            self._do("cannot confirm", self._driver.confirm_commit)
        self._waiting = self._active = False

    def rollback(self) -> None:
        if self._active:
            self._do("cannot roll back", self._driver.rollback)
        else:
            self._do("cannot discard the candidate", self._driver.discard_config)
        self._waiting = self._active = False

    def undo(self, generated: Generated) -> None:
        self._load(generated.undo, generated.target.comment)
        self._do("cannot commit the undo", self._driver.commit_config)

    def close(self) -> None:
        self._do("cannot close", self._driver.close)
