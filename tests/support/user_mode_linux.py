"""Runs a shell script inside Debian's user-mode-linux: a second kernel, with sch_red and sch_prio.

Its file system is the host's; the script must write nowhere but below its own folder. On processors with AMX it needs
``uml_xstate.c``, compiled here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

MODULES = Path("/usr/lib/uml/modules")
_HELLO = "user-mode-linux is up"


def missing() -> str:
    """Why it cannot run here, or nothing."""
    absent = [program for program in ("linux.uml", "modprobe", "busybox") if shutil.which(program) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (apt-get install user-mode-linux kmod busybox-static)"
    if os.geteuid() != 0:
        return "needs root"
    return "" if any(MODULES.glob("*")) else "user-mode-linux has no modules here"


def boot(folder: Path, modules: list[str], body: str, *, timeout: float) -> str:
    """Boot, load ``modules``, run ``body`` in bash, power off; returns all it printed. Raises RuntimeError if not."""
    release = sorted(MODULES.glob("*"))[-1]
    tree = folder / "uml" / "lib" / "modules"
    tree.mkdir(parents=True, exist_ok=True)
    if not (tree / release.name).exists():
        (tree / release.name).symlink_to(release)
    script = folder / "uml" / "init.sh"
    script.write_text(
        "\n".join(
            [
                "#!/bin/bash",
                "export PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                "mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs tmp /run; mkdir -p /run/netns",
                f"echo {_HELLO}",
                f"for m in {' '.join(modules)}; do modprobe -d {folder}/uml $m || echo no module $m; done",
                body,
                "busybox poweroff -f",
            ]
        ),
        encoding="utf-8",
    )
    script.chmod(0o755)
    kernel = ["linux.uml", "mem=512M", "rootfstype=hostfs", "rootflags=/", "rw", f"init={script}"]
    plain = {**os.environ}
    for environment in (plain, _with_full_registers(folder, plain)):
        if environment is None:
            break
        done = subprocess.run(
            [*kernel, "con0=null,fd:1", "con=null", "quiet", "loglevel=3"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            env=environment,
        )
        output = done.stdout.replace("\r", "")
        if _HELLO in output:
            return output.partition(_HELLO)[2]
    raise RuntimeError(f"user-mode-linux does not start here:\n{output}{done.stderr}")


def _with_full_registers(folder: Path, environment: dict[str, str]) -> dict[str, str] | None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = folder / "uml" / "uml_xstate.so"
    source = Path(__file__).with_name("uml_xstate.c")
    subprocess.run([compiler, "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return {**environment, "LD_PRELOAD": str(library)}
