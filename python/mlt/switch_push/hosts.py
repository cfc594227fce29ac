"""HOST of the command line -> Device: ``testbed:NAME``, ``local``, ``netns:NAME``, or a host on the network."""

from __future__ import annotations

from pathlib import Path

from mlt.switch_configs.platforms import parse_spec
from mlt.switch_push import login as logins
from mlt.switch_push.device import Device, PushError

PUSHED = ("linux", "linux-ebpf")


def open_device(host: str, target: str, *, inventory: Path | None = None, known_hosts: Path | None = None) -> Device:
    """The device, connected; raises PushError, and names the extra where its library is missing."""
    system = parse_spec(target).system
    kind, _, name = host.partition(":")
    if kind == "testbed" and name:
        from mlt.switch_push.testbed import TestbedSwitch

        return TestbedSwitch(name)
    if host == "local" or (kind == "netns" and name):
        if system not in ("linux", "linux-ebpf"):
            raise PushError(f"{host} is Linux; use --target linux, not {target}")
        from mlt.switch_push.on_shell import LinuxSwitch
        from mlt.switch_push.shell import LocalShell

        return LinuxSwitch(LocalShell(name or None), name=host)
    login = logins.find(host, inventory=inventory)
    if system in ("linux", "linux-ebpf"):
        from mlt.switch_push.on_shell import LinuxSwitch
        from mlt.switch_push.shell import SshShell

        return LinuxSwitch(SshShell(login, known_hosts=_text(known_hosts)), name="linux")
    raise PushError(f"nothing pushes to {system} yet; 'mlt switch generate' writes the files, there are {PUSHED}")


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
