"""The program that a command is to run."""

from __future__ import annotations

import os
import shutil

from mlt.cli.ending import NOT_EXECUTABLE, NOT_FOUND


def unrunnable(program: str) -> tuple[int, str] | None:
    """Exit status and error if a program to run is not there, or is a Python script without an interpreter; else None.

    >>> unrunnable("no-such-script.py")
    (127, "program not found: 'no-such-script.py'; to run a Python script, write python no-such-script.py")
    """
    found = shutil.which(program)
    is_script = program.endswith(".py")
    if found is None and "/" in program and os.path.isdir(program):
        return NOT_EXECUTABLE, f"{program!r} is a folder"
    if found is None and "/" in program and os.path.exists(program):
        how = f"write python {program}" if is_script else f"chmod +x {program}"
        return NOT_EXECUTABLE, f"{program!r} cannot be executed: {how}"
    if found is None and is_script:
        return NOT_FOUND, f"program not found: {program!r}; to run a Python script, write python {program}"
    if found is None:
        is_here = "/" not in program and os.path.isfile(program)
        more = f"; to run a file of this folder, write ./{program}" if is_here else ""
        return NOT_FOUND, f"program not found: {program!r}{more}"
    if is_script:
        with open(found, "rb") as file:
            if file.read(2) != b"#!":  # a shell would run it
                return NOT_EXECUTABLE, f"{program!r} does not begin with #!: write python {program}"
    return None
