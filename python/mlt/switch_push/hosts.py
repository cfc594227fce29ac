"""SWITCH of the command line -> Device: ``testbed:NAME``, ``local``, ``netns:NAME``, or a host on the network."""

from __future__ import annotations

from pathlib import Path

from mlt._shared.patience import speaking
from mlt.switch_configs import registry
from mlt.switch_configs.platforms import parse_spec
from mlt.switch_push import login as logins
from mlt.switch_push.device import Device, PushError
from mlt.switch_push.login import Login

# Systems reached by an API over TLS; all others by SSH.
_OVER_TLS = ("cumulus", "openconfig", "eos", "nxos")


def open_device(host: str, target: str, *, inventory: Path | None = None, known_hosts: Path | None = None) -> Device:
    """The connected device; raises PushError, which names the extra if its library is missing."""
    system = parse_spec(target).system
    kind, _, name = host.partition(":")
    _check_files(host, system, inventory=inventory, known_hosts=known_hosts)
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
    with speaking(lambda: f"still waiting for the reply of {host} ({target})"):
        device = _connected(login, system, known_hosts)
    if device is None:
        registry.target(target)  # an unknown one is none of these
        raise PushError(
            f"mlt can neither push to {system} nor read it; 'mlt switch generate' writes its files, 'mlt switch "
            "verify' names the commands whose output --input takes"
        )
    return device


def _connected(login: Login, system: str, known_hosts: Path | None) -> Device | None:
    """The device at its address; None for a system that mlt cannot reach."""
    if system in ("linux", "linux-ebpf", "sonic"):
        from mlt.switch_push.on_shell import LinuxSwitch
        from mlt.switch_push.shell import SshShell
        from mlt.switch_push.sonic import SonicSwitch

        shell = SshShell(login, known_hosts=_text(known_hosts))
        return SonicSwitch(shell, name="sonic") if system == "sonic" else LinuxSwitch(shell, name="linux")
    if system == "cumulus":
        from mlt.switch_push.nvue import NvueDevice

        return NvueDevice(login)
    if system == "openconfig":
        from mlt.switch_push.gnmi import GnmiDevice

        return GnmiDevice(login)
    if system in ("eos", "nxos", "junos"):
        from mlt.switch_push.by_napalm import NapalmDevice

        return NapalmDevice(login, system, known_hosts=known_hosts)
    return None


def _check_files(host: str, system: str, *, inventory: Path | None, known_hosts: Path | None) -> None:
    """A file that this host's connection does not read is refused, not ignored."""
    if host == "local" or host.partition(":")[0] in ("testbed", "netns"):
        for option, file in (("--inventory", inventory), ("--known-hosts", known_hosts)):
            if file is not None:
                raise PushError(f"{option} {file}: {host} needs no login; leave it out")
    elif known_hosts is not None and system in _OVER_TLS:
        raise PushError(
            f"--known-hosts {known_hosts}: {system} is reached over TLS, which has no SSH host keys; leave it out"
        )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
