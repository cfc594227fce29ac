"""Logins of devices: from the environment, or from an inventory of Ansible (YAML) or NAPALM's users (nornir hosts).

Secrets are read but never written: no option takes a password, and a Login's text omits it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlt._shared.addresses import is_host
from mlt._shared.structured_text import SyntaxProblem, parse_yaml
from mlt._shared.text_files import UnreadableError, read_text
from mlt.errors import ErrorCode
from mlt.switch_push.device import PushError

USER, PASSWORD, KEY = "MLT_SWITCH_USER", "MLT_SWITCH_PASSWORD", "MLT_SWITCH_KEY"


@dataclass(frozen=True, kw_only=True)
class Login:
    """An address and its credentials. ``name``: as the user wrote it; ``options``: other options of the inventory, for
    the driver."""

    host: str
    name: str = ""
    port: int | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    key_file: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def _refuse_vault(loader: Any, node: Any) -> None:
    raise PushError(
        f"the inventory's line {node.start_mark.line + 1} is encrypted (!vault); decrypt it into the environment: "
        f"{PASSWORD}=$(ansible-vault view ...)"
    )


def find(host: str, *, inventory: Path | None = None, environ: Mapping[str, str] | None = None) -> Login:
    """The login for ``host`` (``[user@]name[:port]``); the inventory takes precedence over the environment.

    Raises:
        PushError: the inventory cannot be read, is not an inventory, or lacks the host.
    """
    environ = os.environ if environ is None else environ
    user, _, rest = host.rpartition("@")
    name, port = rest, None
    if rest.startswith("["):
        name, _, after = rest[1:].partition("]")
        port = after.lstrip(":") or None
    elif rest.count(":") == 1:
        name, _, port = rest.partition(":")
    if port is not None and not port.isdigit():
        raise PushError(f"host {host!r}: the port is not a number")
    if not is_host(name):
        raise _wrong(f"host {host!r} is not the name of a host")
    known: Mapping[str, Any] = {} if inventory is None else _entry(inventory, name)
    number = known.get("port") or (int(port) if port else None)
    return Login(
        host=str(known.get("host") or name),
        name=name,
        port=None if number is None else int(number),
        user=user or known.get("user") or environ.get(USER),
        password=known.get("password") or environ.get(PASSWORD),
        key_file=known.get("key_file") or environ.get(KEY),
        options=known.get("options", {}),
    )


def _entry(inventory: Path, name: str) -> Mapping[str, Any]:
    try:
        raw = parse_yaml(read_text(inventory), {"!vault": _refuse_vault})
    except UnreadableError as error:
        raise _wrong(f"inventory {error}") from None
    except SyntaxProblem as error:
        raise _wrong(
            f"inventory {inventory}: {error}; an INI inventory becomes YAML with 'ansible-inventory --list --yaml'"
        ) from None
    try:
        hosts = list(_hosts(raw, {}))
    except (AttributeError, TypeError):  # a list or a number where a mapping must be
        raise _wrong(f"inventory {inventory}: neither Ansible's YAML (all: hosts: ...) nor nornir's hosts") from None
    found = [entry for host, entry in hosts if host == name]
    if not found:
        names = sorted({host for host, _ in hosts})
        raise _wrong(f"inventory {inventory} has no host {name!r}; it has: {', '.join(names) or 'none'}")
    merged: dict[str, Any] = {}
    for entry in found:
        merged |= entry
    return _read(merged)


def _wrong(text: str) -> PushError:
    return PushError(text, code=ErrorCode.CONFIG)


def _hosts(group: Mapping[str, Any], above: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every host with its variables: Ansible's groups, or nornir's flat hosts."""
    if not {"hosts", "children", "vars"} & set(group):
        for name, entry in group.items():
            if isinstance(entry, dict):
                nested = {"hosts", "children", "vars"} & set(entry)
                yield from _hosts(entry, above) if nested else iter([(str(name), {**above, **entry})])
        return
    own = {**above, **(group.get("vars") or {})}
    for name, entry in (group.get("hosts") or {}).items():
        yield str(name), {**own, **(entry or {})}
    for child in (group.get("children") or {}).values():
        yield from _hosts(child or {}, own)


def _read(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options of an entry: Ansible's names take precedence over nornir's and NAPALM's."""
    options = entry.get("optional_args") or entry.get("connection_options", {}).get("napalm", {}).get("extras", {}).get(
        "optional_args", {}
    )

    def first(*names: str) -> Any:
        return next((entry[name] for name in names if entry.get(name) is not None), None)

    found = {
        "host": first("ansible_host", "hostname"),
        "port": first("ansible_port", "ansible_httpapi_port", "port"),
        "user": first("ansible_user", "username"),
        "password": first("ansible_password", "ansible_ssh_pass", "password"),
        "key_file": first("ansible_ssh_private_key_file", "key_file"),
        "options": dict(options or {}),
    }
    for name in ("user", "password"):
        if isinstance(found[name], str) and "{{" in found[name]:
            raise PushError(f"the inventory's {name} is a template; Ansible renders those: put it into the environment")
    return found
