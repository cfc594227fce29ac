"""The order of a push, logins, and the watchdog of devices with a shell; the last with real shells of this host."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from checks import assert_names, names, until
from mlt.switch_configs.generator import Generated, generate
from push_lab import SECRET, small

from mlt._shared.extras import how_to_install
from mlt.switch_push import login, on_shell, session
from mlt.switch_push.device import Device, PushError, need
from mlt.switch_push.on_shell import LinuxSwitch, ShellDevice
from mlt.switch_push.shell import LocalShell, Shell


class Recorder(Device):
    title = "recorder"

    def __init__(self, *, fails: str = "") -> None:
        self.calls: list[str] = []
        self.fails = fails

    def _do(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails:
            raise PushError(f"{name} failed")

    def preview(self, generated: Generated) -> str:
        return "diff"

    def apply(self, generated: Generated, revert_in: float | None) -> None:
        self._do("apply" if revert_in is None else f"apply for {revert_in:g}")
        self._do("applied")

    def confirm(self) -> None:
        self._do("confirm")

    def rollback(self) -> None:
        self._do("rollback")


def run(device: Device, *, confirm: float | None, kept: bool = True) -> bool:
    return session.push(device, generate(small(), "linux"), confirm=confirm, keep=lambda _: kept, say=lambda _: None)


def test_push__confirms_or_takes_back() -> None:
    device = Recorder()
    assert run(device, confirm=None)
    assert device.calls == ["apply", "applied", "confirm"]
    device = Recorder()
    assert run(device, confirm=60)
    assert device.calls == ["apply for 75", "applied", "confirm"]
    device = Recorder()
    assert not run(device, confirm=60, kept=False)
    assert device.calls == ["apply for 75", "applied", "rollback"]


@pytest.mark.parametrize("reverts_itself", [False, True])
def test_push__says_once_when_it_is_undone_and_by_whom(reverts_itself: bool) -> None:
    device, said = Recorder(), list[str]()
    device.reverts_itself = reverts_itself
    session.push(device, generate(small(), "linux"), confirm=300, keep=lambda _: True, say=said.append)
    (line,) = said
    assert_names(line, "recorder", "applied", "300 s", "unless confirmed", "this command takes it back", "killed")
    assert ("the device itself" in line, "in force" in line) == (reverts_itself, not reverts_itself)


def test_push__rolls_back_failed_and_interrupted_pushes() -> None:
    device = Recorder(fails="applied")
    with pytest.raises(PushError, match=names("restored", "applied failed")):
        run(device, confirm=None)
    assert device.calls[-1] == "rollback"
    device = Recorder()

    def interrupt(_: float) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.push(device, generate(small(), "linux"), confirm=1, keep=interrupt, say=lambda _: None)
    assert device.calls[-1] == "rollback"
    with pytest.raises(PushError, match="rollback failed"):
        run(Recorder(fails="rollback"), confirm=1, kept=False)
    # A confirmation that fails leaves nothing half kept.
    device = Recorder(fails="confirm")
    with pytest.raises(PushError, match="confirm failed"):
        run(device, confirm=1)
    assert device.calls[-1] == "rollback"


def test_command_says__tries_until_the_time_is_over(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    decide = session.command_says(f"test -e {flag} || {{ touch {flag}; false; }}")
    assert decide(5)
    start = time.monotonic()
    assert not session.command_says("false")(1.2)
    assert not session.command_says("sleep 30")(0.5)
    assert time.monotonic() - start < 10


INVENTORIES = {
    "ansible": f"""
all:
  vars: {{ansible_user: admin}}
  children:
    leaves:
      vars: {{ansible_password: {SECRET}}}
      hosts:
        leaf1: {{ansible_host: 192.0.2.1, ansible_port: 2222}}
        leaf2:
""",
    "nornir": f"""
leaf1: {{hostname: 192.0.2.1, port: 2222, username: admin, password: {SECRET}}}
leaf2: {{username: admin, password: {SECRET}, optional_args: {{transport: http}}}}
""",
}


@pytest.mark.parametrize("kind", list(INVENTORIES))
def test_login__from_inventories(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "inventory.yaml"
    file.write_text(INVENTORIES[kind], encoding="utf-8")
    found = login.find("leaf1", inventory=file, environ={})
    assert (found.host, found.port, found.user, found.password) == ("192.0.2.1", 2222, "admin", SECRET)
    other = login.find("leaf2", inventory=file, environ={})
    assert (other.host, other.user, other.password) == ("leaf2", "admin", SECRET)
    assert other.options == ({"transport": "http"} if kind == "nornir" else {})
    assert SECRET not in repr(found)
    with pytest.raises(PushError, match=names("'spine'", "leaf1, leaf2")):
        login.find("spine", inventory=file, environ={})


def test_login__from_the_environment_and_the_host_itself() -> None:
    environ = {login.USER: "someone", login.PASSWORD: SECRET, login.KEY: "/key"}
    found = login.find("root@sw1:830", environ=environ)
    assert (found.host, found.port, found.user, found.password) == ("sw1", 830, "root", SECRET)
    assert login.find("[2001:db8::1]:22", environ={}).host == "2001:db8::1"
    assert login.find("2001:db8::1", environ=environ).user == "someone"
    with pytest.raises(PushError, match="not a number"):
        login.find("sw1:ssh", environ={})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[leaves]\nleaf1 ansible_host=1\n", "ansible-inventory --list --yaml"),
        ("- leaf1\n", "neither"),
        ("all: {hosts: {leaf1: {ansible_password: !vault abc}}}\n", "encrypted"),
        ("all: {hosts: {leaf1: {ansible_password: '{{ secret }}'}}}\n", "template"),
    ],
)
def test_login__rejects_unreadable_files(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "inventory"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(PushError, match=words):
        login.find("leaf1", inventory=file, environ={})


def test_need__names_the_extra() -> None:
    with pytest.raises(PushError, match=names("needs nosuchlibrary", how_to_install("switch-push"))):
        need("nosuchlibrary.client", "SSH")


class FileSwitch(ShellDevice):
    """A device whose configuration is a file: the shell, the folder and the watchdog are the real ones."""

    def __init__(self, state: Path, name: str) -> None:
        super().__init__(LocalShell(), name=name)
        self.state = state

    def _apply_command(self, folder: str, generated: Generated) -> str:
        return self._apply_text(folder)

    def _apply_text(self, folder: str) -> str:
        return f"cat {folder}/linux.apply.sh > {self.state}; test ! -e {self.state}.refuses"

    def _undo_command(self, folder: str) -> str:
        return f"rm -f {self.state}"

    def preview(self, generated: Generated) -> str:
        return ""


def has_ended(pid: int) -> bool:
    """Whether no such process runs; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileSwitch:
    monkeypatch.setattr(on_shell, "DEVICE_FOLDER", str(tmp_path / "mlt-switch"))
    return FileSwitch(tmp_path / "state", "test")


def test_shell_device__keeps_replaces_and_restores(switch: FileSwitch) -> None:
    first, second = generate(small(), "linux"), generate(small(s1="43008"), "linux")
    assert session.push(switch, first, confirm=None, keep=lambda _: True, say=lambda _: None)
    assert "min 36864" in switch.state.read_text()
    assert not session.push(switch, second, confirm=30, keep=lambda _: False, say=lambda _: None)
    assert "min 36864" in switch.state.read_text()
    assert session.push(switch, second, confirm=30, keep=lambda _: True, say=lambda _: None)
    assert "min 43008" in switch.state.read_text()
    switch.undo(second)
    assert "min 36864" in switch.state.read_text()
    switch.undo(first)
    assert not switch.state.exists()
    with pytest.raises(PushError, match="no configuration of mlt is active"):
        switch.undo(first)


def test_shell_device__a_failed_apply_is_taken_back(switch: FileSwitch, tmp_path: Path) -> None:
    (tmp_path / "state.refuses").touch()
    with pytest.raises(PushError, match="restored"):
        session.push(switch, generate(small(), "linux"), confirm=None, keep=lambda _: True, say=lambda _: None)
    assert not switch.state.exists()


def test_shell_device__the_watchdog_restores_when_we_are_gone(switch: FileSwitch) -> None:
    switch.apply(generate(small(), "linux"), 1.0)  # without a confirmation: as if this process had died
    assert switch.state.exists()
    until(lambda: not switch.state.exists(), 15, every=0.1)


def test_shell_device__the_watchdog_is_gone_once_confirmed(switch: FileSwitch) -> None:
    switch.apply(generate(small(), "linux"), 600.0)
    watchdog = int((Path(switch._folder) / "watchdog").read_text())
    switch.confirm()
    until(lambda: has_ended(watchdog))
    assert switch.state.exists()
    switch.undo(generate(small(), "linux"))


class Switchdev(Shell):
    """A host whose ports belong to a switch ASIC: emulated."""

    title = "leaf1"

    def __init__(self) -> None:
        self.ran: list[str] = []

    def run(self, command: str, *, stdin: str = "") -> str:
        self.ran.append(command)
        if command == "id -u":
            return "0"
        if command.startswith("ip -d link"):
            return "9: swp2: <BROADCAST,UP> mtu 1500\n    addrgenmode eui64 portname p2 switchid e41d2dabcdef\n"
        return "[]" if command.startswith("tc -j") else ""


def test_linux__ports_of_a_switch_asic_are_not_given_queues_that_forwarded_packets_bypass() -> None:
    shell = Switchdev()
    with pytest.raises(PushError, match=r"switchid e41d2dabcdef.*--target linux@mlxsw"):
        LinuxSwitch(shell, name="linux").apply(generate(small(), "linux"), None)
    assert not any("apply.sh" in command for command in shell.ran)
    LinuxSwitch(shell, name="linux").apply(generate(small(), "linux@mlxsw"), None)
    assert any("linux.apply.sh" in command for command in shell.ran)
