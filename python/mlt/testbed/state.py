"""Testbed state on disk: other processes find the testbed, and nothing outlives its owner unnoticed.

One JSON file per testbed, written before its first namespace and removed after its last. A testbed of ``run`` or of a
Python program belongs to that process; if the process has ended, the next command removes the testbed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mlt._shared import variables
from mlt._shared.json_lines import object_of
from mlt.testbed.errors import TestbedError

VERSION = 1
ROOT_DIRECTORY = Path("/run/mlt-testbed")


@dataclass(kw_only=True)
class State:
    """``owner``: [pid, start time] of the owning process, None for ``up``. ``user``: who made it (``user()``), None
    if that was not recorded. ``tables``: name -> kernel number.
    ``secret``: secret of the jobs on the testbed, so only its user may read the file. ``policies``: earlier policy
    files (None: no policy), oldest first."""

    name: str
    owner: list[int] | None
    topology: dict[str, Any]
    namespaces: dict[str, str]
    tables: dict[str, int] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    secret: str = field(default="", repr=False)
    ready: bool = False
    policies: list[str | None] = field(default_factory=list)
    user: int | None = None
    version: int = VERSION

    @property
    def paths(self) -> list[Path]:
        return [Path(path) for path in self.namespaces.values()]

    def is_abandoned(self) -> bool:
        """Whether the owning process has ended."""
        return self.owner is not None and (start_time(self.owner[0]) != self.owner[1])


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which ``pid`` started; distinguishes processes that reuse a pid."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def owner() -> list[int]:
    """This process, as ``State.owner``."""
    return [os.getpid(), start_time(os.getpid()) or 0]


def user() -> int:
    """The user at the terminal: under sudo, the caller of sudo."""
    caller = variables.integer(os.environ, "SUDO_UID") if os.geteuid() == 0 else None
    return os.getuid() if caller is None else caller


def directory() -> Path:
    """/run/mlt-testbed for root; XDG_RUNTIME_DIR/mlt-testbed for others, or a folder of their own in /tmp.

    Raises TestbedError if another user owns it or may write to it: its content is trusted.
    """
    folder = ROOT_DIRECTORY
    if os.geteuid() != 0:
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        # Not below another folder in /tmp: the owner of that folder could replace ours.
        folder = Path(runtime) / "mlt-testbed" if runtime else Path(f"/tmp/mlt-testbed-{os.getuid()}")
    try:
        found = folder.lstat()
    except OSError:  # it does not exist yet, or its user reports why
        return folder
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise TestbedError(
            f"{folder} is not this user's alone (another's, a link, or others may write to it): remove it, or set "
            "XDG_RUNTIME_DIR to a folder of your own"
        )
    return folder


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def write(state: State) -> None:
    """Replace the file atomically."""
    folder = directory()
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    scratch = folder / f".{state.name}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        scratch.unlink()
    with open(scratch, "x", encoding="utf-8", opener=_private) as file:
        json.dump(asdict(state), file, indent=1)
    os.replace(scratch, folder / f"{state.name}.json")


def create(state: State) -> None:
    """Write the file; raises TestbedError if the name is in use."""
    folder = directory()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        with open(folder / f"{state.name}.json", "x", encoding="utf-8", opener=_private) as file:
            json.dump(asdict(state), file, indent=1)
    except FileExistsError:
        raise TestbedError(
            f"a testbed named {state.name!r} already exists: 'mlt testbed down --name {state.name}' removes it, "
            "or choose another --name"
        ) from None
    except OSError as error:
        raise TestbedError(f"{folder}: {error.strerror}; set XDG_RUNTIME_DIR to a folder you may write to") from None


def read(name: str) -> State:
    """Read one testbed's state; raises TestbedError with the known names if it is missing."""
    for state in all_states():
        if state.name == name:
            return state
    if os.geteuid() != 0 and (ROOT_DIRECTORY / f"{name}.json").exists():
        raise TestbedError(f"testbed {name!r} belongs to root: use sudo")
    names = ", ".join(state.name for state in all_states())
    there = f"there are: {names}" if names else "no testbed exists; 'mlt testbed up' makes one"
    raise TestbedError(f"no testbed named {name!r}; {there}")


def all_states() -> list[State]:
    """Every testbed on this host that this user may read; unreadable files are skipped."""
    found = []
    for path in sorted(directory().glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            raw = object_of(path.read_text(encoding="utf-8"))
            if raw.get("version") == VERSION:
                found.append(State(**raw))
    return found


def own() -> list[State]:
    """The testbeds that this user's ``up`` made."""
    return [found for found in all_states() if found.owner is None and found.user in (None, user())]


def only_own() -> State:
    """The testbed that a command without a name acts on: the only one of ``own``.

    One of ``run``, of another program or of another user of sudo is another's experiment, which has to be named.
    Raises TestbedError with the names of all if there is none, or more than one.
    """
    mine = own()
    if len(mine) == 1:
        return mine[0]
    every = all_states()
    if not every:
        of_root = os.geteuid() != 0 and any(ROOT_DIRECTORY.glob("*.json"))
        raise TestbedError(
            "no testbed of this user exists, but root has one: use sudo"
            if of_root
            else "no testbed exists; 'mlt testbed up' makes one"
        )
    names = ", ".join(f"{found.name} ({_maker(found)})" for found in every)
    cause = f"{len(mine)} testbeds are yours" if mine else "no testbed here was made by your 'mlt testbed up'"
    raise TestbedError(f"{cause}; name one of these: {names}")


def _maker(found: State) -> str:
    if found.owner is not None:
        return f"of process {found.owner[0]}"
    return "yours" if found.user in (None, user()) else f"of user {found.user}"


def keep_policy(name: str, number: int, text: str) -> Path:
    """Write a policy file that lives as long as the testbed: its commands and other processes read it."""
    path = directory() / f"{name}.policy{number}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def line_file(name: str) -> Path:
    """The file that the testbed shares with the program of its delay lines."""
    return directory() / f"{name}.delay"


def forget(name: str) -> None:
    """Remove the file, its policy files and that of its delay lines. Idempotent."""
    kept = [path for path in directory().glob("*.policy*.yaml") if path.name.rsplit(".policy", 1)[0] == name]
    for path in (directory() / f"{name}.json", line_file(name), *kept):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Lock: one process at a time creates, changes or removes testbeds."""
    folder = directory()
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
