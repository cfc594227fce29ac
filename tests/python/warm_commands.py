"""``mlt`` commands as processes of their own that start with the commands' modules imported (warm_python).

Most commands of these tests end at once: what they took was their imports. What a command imports at its start, and how
long that takes, is the subject of other tests (test_package_imports.py, test_program.py).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import warm_python

from mlt.cli.main import COMMANDS

# Modules of all commands, and packages that most of them import once they run.
_PACKAGES = ("numpy", "pydantic", "rich.console", "yaml", "mlt.planners.cluster", "mlt.switch_configs", "mlt.context")
_PLANNERS = ("highspy", "networkx", "scipy.optimize")
# Ends as the interpreter does, but for taking its modules apart, which would copy all that the server holds.
_CODE = """
import atexit, os, sys, threading
from mlt.cli.main import main
sys.argv[0] = "mlt"
status = 0
try:
    main()
except SystemExit as ended:
    status = ended.code
    assert status is None or isinstance(status, int), status
threading._shutdown()
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
os._exit(status or 0)
"""


def modules() -> tuple[str, ...]:
    """Modules that a command starts with; packages that are not installed are left out."""
    optional = [name for name in _PLANNERS if find_spec(name.partition(".")[0]) is not None]
    return ("mlt.cli.main", *(module for module, _ in COMMANDS.values()), *_PACKAGES, *optional)


def run(
    words: Sequence[str], env: Mapping[str, str], *, cwd: Path | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """``mlt WORDS`` in this environment, to its end."""
    command = ["-c", _CODE, *words]
    process = warm_python.start(modules(), command, env, errors_apart=True, folder=None if cwd is None else str(cwd))
    try:
        out, err = process.communicate(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(["mlt", *words], process.wait(timeout), out, err)


def own_environment(**more: str) -> dict[str, str]:
    """The environment of the tests, without the variables that make a command the rank of a job."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("MLT_") and name != "RANK"}
    return {**own, **more}
