"""A shell on the device: local, in a network namespace of this host, or over SSH."""

from __future__ import annotations

import logging
import shlex
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from mlt._shared.os_errors import cause_of
from mlt._shared.text_files import UnreadableError, reading
from mlt.errors import ErrorCode
from mlt.switch_push.device import PushError, need
from mlt.switch_push.login import Login

_TIMEOUT = 120.0


class Shell(ABC):
    """Runs one ``sh -c`` at a time."""

    title: str

    @abstractmethod
    def run(self, command: str, *, stdin: str = "") -> str:
        """Standard output; raises PushError with the error output if the command exits with a code other than 0."""

    def close(self) -> None:  # noqa: B027 (a local shell has nothing to end)
        """End the connection."""

    def _checked(self, command: str, code: int, out: str, err: str) -> str:
        if code != 0:
            output = " ".join((err.strip() or out.strip()).splitlines()[-4:])
            raise PushError(
                f"{self.title}: '{command.splitlines()[0][:120]}' ended with {code}: {output or 'no output'}"
            )
        return out


class LocalShell(Shell):
    """This host, or one of its network namespaces (a name of ``ip netns``, or a path)."""

    def __init__(self, namespace: str | None = None) -> None:
        self.title = "this host" if namespace is None else f"namespace {namespace}"
        self._enter: list[str] = []
        if namespace is not None:
            path = namespace if "/" in namespace else f"/run/netns/{namespace}"
            if not Path(path).exists():
                raise PushError(f"no network namespace {namespace!r}; 'ip netns' lists them")
            # Not "ip netns exec": that mounts a new /sys and hides the bpffs.
            self._enter = ["nsenter", f"--net={path}"]

    def run(self, command: str, *, stdin: str = "") -> str:
        try:
            done = subprocess.run(
                [*self._enter, "sh", "-c", command],
                input=stdin,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PushError(f"{self.title}: {cause_of(error)}") from None
        return self._checked(command, done.returncode, done.stdout, done.stderr)


class SshShell(Shell):
    """A shell over SSH (paramiko). The host key must be known; credentials are neither written nor logged."""

    def __init__(self, login: Login, *, known_hosts: str | None = None) -> None:
        paramiko: Any = need("paramiko", f"SSH to {login.host}")
        # It logs a traceback of the errors it raises; without a handler Python prints that to the terminal.
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        self.title = login.name or login.host
        self._client = paramiko.SSHClient()
        self._client.load_system_host_keys()
        if known_hosts is not None:
            try:
                with reading(known_hosts):
                    self._client.load_host_keys(known_hosts)
            except UnreadableError as error:
                raise PushError(f"--known-hosts {error}", code=ErrorCode.CONFIG) from None
            except paramiko.hostkeys.InvalidHostKey as error:
                raise PushError(
                    f"--known-hosts {known_hosts}: not a file of host keys, as ssh-keyscan prints",
                    code=ErrorCode.CONFIG,
                ) from error
        self._client.set_missing_host_key_policy(paramiko.RejectPolicy())
        try:
            self._client.connect(
                login.host,
                port=login.port or 22,
                username=login.user,
                password=login.password,
                key_filename=login.key_file,
                timeout=15,
                allow_agent=login.password is None,
                look_for_keys=login.password is None and login.key_file is None,
            )
        except (OSError, EOFError, paramiko.SSHException) as error:
            cause = "it closed the connection" if isinstance(error, EOFError) else cause_of(error)
            raise PushError(
                f"SSH to {login.host} port {login.port or 22} failed: {cause}; unknown host keys are "
                "rejected (ssh-keyscan, --known-hosts FILE), the login comes from MLT_SWITCH_USER, "
                "MLT_SWITCH_PASSWORD, MLT_SWITCH_KEY or --inventory"
            ) from None

    def run(self, command: str, *, stdin: str = "") -> str:
        try:
            to, out, err = self._client.exec_command(f"sh -c {shlex.quote(command)}", timeout=_TIMEOUT)
            if stdin:
                to.write(stdin)
            to.channel.shutdown_write()
            text, errors = out.read().decode(errors="replace"), err.read().decode(errors="replace")
            code = int(out.channel.recv_exit_status())
        except Exception as error:  # paramiko raises OSError, SSHException, EOFError, socket.timeout
            raise PushError(f"{self.title}: the SSH connection failed: {cause_of(error)}") from None
        return self._checked(command, code, text, errors)

    def close(self) -> None:
        self._client.close()
