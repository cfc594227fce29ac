"""Devices with a shell: copies the files to a folder of the device, where a watchdog rolls back without a confirmation.

The folder is private and stays: ``current`` is the active configuration, ``before`` the previous one, each with its
undo. The watchdog is a sleeping shell on the device. It restores the device even if a wrong configuration cuts the
connection.
"""

from __future__ import annotations

import json
import re
import shlex
from abc import abstractmethod

from mlt.switch_configs.counters import QueueCounters
from mlt.switch_configs.generator import Generated
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.registry import target as find_target
from mlt.switch_push.device import Device, PushError
from mlt.switch_push.shell import Shell

DEVICE_FOLDER = "/var/tmp/mlt-switch"


class ShellDevice(Device):
    """Copies files, runs ``apply`` and ``undo`` scripts as root, arms the watchdog. Subclasses give the commands."""

    reverts_itself = True
    # True: the undo restores the running configuration, including earlier policies of mlt.
    against_running = False

    def __init__(self, shell: Shell, *, name: str) -> None:
        self.title = shell.title
        self._shell = shell
        self._folder = f"{DEVICE_FOLDER}/{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}"
        self._applied: Generated | None = None
        self._sudo = "" if shell.run("id -u").strip() == "0" else "sudo -n "

    @abstractmethod
    def _apply_command(self, folder: str, generated: Generated) -> str:
        """Shell text that activates the files of ``folder``."""

    @abstractmethod
    def _undo_command(self, folder: str) -> str:
        """Shell text that removes the configuration of ``folder``; safe after a partial apply."""

    def _check(self, generated: Generated) -> None:
        """Raise PushError if the device could not be restored afterwards. ``current`` is still the previous
        configuration."""

    def apply(self, generated: Generated, revert_in: float | None) -> None:
        self._prepare()
        self._check(generated)
        for part, files in (("new", generated.apply), ("new", generated.undo)):
            for name, text in files.items():
                self._put(f"{self._folder}/{part}/{name}", text)
        self._put(f"{self._folder}/new/target", f"{generated.target.spec}\n")
        self._put(f"{self._folder}/new/take-back", self._take_back_script())
        self._applied = generated
        if revert_in is not None:
            self._arm(revert_in)
        again = f"{self._folder}/current"
        first = "" if self.against_running else f"if [ -d {again} ]; then {self._undo_command(again)}; fi\n"
        self._root(f"touch {self._folder}/new/touched\n{first}{self._apply_command(self._folder + '/new', generated)}")

    def confirm(self) -> None:
        if self._applied is None:
            return
        folder = self._folder
        self._disarm()
        self._root(
            f"rm -rf {folder}/before; if [ -d {folder}/current ]; then mv {folder}/current {folder}/before; fi; "
            f"mv {folder}/new {folder}/current"
        )
        self._applied = None

    def rollback(self) -> None:
        if self._applied is None:
            return
        self._disarm()
        self._root(f"sh {self._folder}/new/take-back")
        self._applied = None

    def undo(self, generated: Generated) -> None:
        self._prepare()
        folder = self._folder
        if not self._there(f"{folder}/current"):
            raise PushError(
                f"{self.title}: no configuration of mlt is active here; 'mlt switch apply' stores its undo there"
            )
        self._root(f"{self._undo_command(folder + '/current')}\nrm -rf {folder}/current")
        if self._there(f"{folder}/before"):
            again = "" if self.against_running else f"{self._apply_text(folder + '/before')}\n"
            self._root(f"{again}mv {folder}/before {folder}/current")

    @abstractmethod
    def _apply_text(self, folder: str) -> str:
        """``_apply_command`` from the files alone."""

    def close(self) -> None:
        self._shell.close()

    # Scripts on the device

    def _take_back_script(self) -> str:
        """Script that undoes the new files, then restores the previous configuration."""
        folder = self._folder
        again = f"if [ -d {folder}/current ]; then {self._apply_text(folder + '/current')}; fi"
        if self.against_running:
            again = ":"
        return f"set -e\n{self._undo_command(folder + '/new')}\n{again}\nrm -rf {folder}/new\n"

    def _prepare(self) -> None:
        folder = self._folder
        self._root(
            f"mkdir -p -m 755 {DEVICE_FOLDER} && [ -O {DEVICE_FOLDER} ] && [ ! -L {DEVICE_FOLDER} ] "
            f"&& mkdir -p -m 700 {folder} && rm -rf {folder}/new && mkdir {folder}/new"
        )

    def _arm(self, seconds: float) -> None:
        folder = self._folder
        waiting = f"sleep {seconds:.0f}; [ -e {folder}/watchdog ] && sh {folder}/new/take-back; rm -f {folder}/watchdog"
        self._root(f"setsid sh -c {shlex.quote(waiting)} </dev/null >/dev/null 2>&1 & echo $! > {folder}/watchdog")

    def _disarm(self) -> None:
        """End the watchdog: it leads its own session, which is killed together with its sleep."""
        folder = self._folder
        self._root(
            f"if [ -e {folder}/watchdog ]; then kill -- -$(cat {folder}/watchdog) 2>/dev/null || "
            f"kill $(cat {folder}/watchdog) 2>/dev/null; rm -f {folder}/watchdog; fi; true"
        )

    def _there(self, path: str) -> bool:
        return self._root(f"[ -e {path} ] && echo yes || true").strip() == "yes"

    def _put(self, path: str, text: str) -> None:
        self._root(f"cat > {path}", stdin=text)

    def _root(self, script: str, *, stdin: str = "") -> str:
        return self._shell.run(f"{self._sudo}sh -c {shlex.quote(script)}" if self._sudo else script, stdin=stdin)


class LinuxSwitch(ShellDevice):
    """Linux with ``tc``: the target's own scripts. A port's root qdisc must be the system's default, or mlt's."""

    def _apply_command(self, folder: str, generated: Generated) -> str:
        return self._apply_text(folder)

    def _apply_text(self, folder: str) -> str:
        return f"sh {folder}/*.apply.sh"

    def _undo_command(self, folder: str) -> str:
        # Without -e, line by line: after a partial apply, only a part can be undone.
        return f"sed -e '/^set -eu/d' {folder}/*.undo.sh | sh 2>/dev/null || true"

    def _check(self, generated: Generated) -> None:
        ours = self._there(f"{self._folder}/current")
        offload = generated.target.platform.facts.offload
        for port in generated.plan.ports:
            asic = re.search(r" switchid \w+", self._root(f"ip -d link show dev {port} 2>/dev/null || true"))
            if asic and (offload is None or offload.value == "none"):
                raise PushError(
                    f"{self.title}: port {port} is one of a switch ASIC ({asic[0].strip()}), whose forwarded packets "
                    f"bypass the kernel's queues; --target linux@mlxsw writes rules that such a driver offloads"
                )
            try:
                rows = json.loads(self._root(f"tc -j qdisc show dev {port}") or "[]")
            except ValueError:
                raise PushError(f"{self.title}: 'tc -j qdisc show dev {port}' did not print JSON") from None
            roots = [row for row in rows if row.get("root") and str(row.get("handle", "0:")) != "0:"]
            if roots and not ours:
                raise PushError(
                    f"{self.title}: port {port} already has a root qdisc ({roots[0]['kind']} {roots[0]['handle']}), "
                    f"which could not be restored; remove it first: tc qdisc del dev {port} root"
                )

    def preview(self, generated: Generated) -> str:
        now = [self._root(f"tc qdisc show dev {port}").strip() for port in generated.plan.ports]
        there = "\n".join(f"- {line}" for text in now for line in text.splitlines())
        script = next(text for name, text in generated.apply.items() if name.endswith(".apply.sh"))
        wanted = "\n".join(f"+ {line}" for line in script.splitlines() if not line.startswith("#"))
        return f"{there}\n{wanted}"

    def counters(self, plan: Plan) -> list[QueueCounters]:
        if not self._there(f"{self._folder}/current"):
            raise PushError(f"{self.title}: no configuration of mlt is active here")
        spec = self._root(f"cat {self._folder}/current/target").strip()
        command = "tc -s qdisc show"
        if spec.startswith("linux-ebpf"):
            command = 'bpftool map dump pinned "${MLT_BPF:=/sys/fs/bpf/mlt-switch}/maps/counters"'
        return find_target(spec).parse_counters(self._root(command))
