"""Finds the compiled switch programs: shipped in the wheel, else cached, else compiled by clang now.

The file name of an object carries its source's hash: only an object of the installed source is used. ``python
programs.py FOLDER`` compiles both; the wheel's build does so if clang is installed, before mlt is.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

FLAGS = ("-O2", "-g", "-Wall", "-target", "bpf", "-mcpu=v3")
HERE = Path(__file__).parent
_HELPERS = "bpf/bpf_helpers.h"


class CompileError(Exception):
    """clang's error output. Not one of mlt's errors: the wheel's build runs this file before mlt is installed."""


@dataclass(frozen=True)
class Source:
    """``program``: the function in ``path`` to attach."""

    path: Path
    program: str

    @property
    def object_name(self) -> str:
        digest = hashlib.sha256(self.path.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
        return f"{self.path.name.removesuffix('.bpf.c')}-{digest}.bpf.o"


def sources() -> tuple[Source, Source]:
    """The switch port (the one ``mlt switch generate --target linux-ebpf`` writes) and the loss injector."""
    # The wheel's build runs this file before mlt is installed; switch_configs is then in the source tree.
    candidates = (HERE.parent / "switch_configs" / "bpf", HERE.parents[2] / "switch_configs" / "bpf")
    folder = next((folder for folder in candidates if folder.is_dir()), candidates[0])
    return (
        Source(folder / "switch_port.bpf.c", "mlt_switch_port"),
        Source(HERE / "bpf" / "link_loss.bpf.c", "mlt_link_loss"),
    )


def cache() -> Path:
    """XDG_CACHE_HOME/mlt/bpf."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "mlt" / "bpf"


def ready(source: Source) -> Path | None:
    """A shipped or cached object of exactly this source, or None."""
    for folder in (HERE / "bpf", cache()):
        if (path := folder / source.object_name).is_file():
            return path
    return None


def _includes() -> list[str]:
    # On Debian, asm/types.h is in the multiarch folder, which -target bpf does not search.
    return [f"-I/usr/include/{platform.machine()}-linux-gnu"]


def missing_tools() -> list[str]:
    """Missing requirements for compiling, one line each with the package that provides it."""
    found = []
    if shutil.which("clang") is None:
        found.append("clang is not installed, and this wheel was built without it: apt-get install clang")
    if not any((Path(folder) / _HELPERS).exists() for folder in ("/usr/include", "/usr/local/include")):
        found.append(f"{_HELPERS} is not installed: apt-get install libbpf-dev")
    return found


def object_of(source: Source) -> Path:
    """The path of the object, compiled into the cache if necessary. Raises MissingError or TestbedError."""
    path = ready(source)
    if path is not None:
        return path
    from mlt.testbed.errors import MissingError, TestbedError

    problems = missing_tools()
    if problems:
        raise MissingError(problems)
    try:
        return compile_into(source, cache())
    except OSError as error:
        raise TestbedError(f"{cache()}: {error.strerror}; set XDG_CACHE_HOME to a folder you may write to") from error
    except CompileError as error:
        raise TestbedError(str(error)) from error


def compile_into(source: Source, folder: Path) -> Path:
    """Compile ``source``; the output file appears complete or not at all. Raises CompileError or OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        out = Path(scratch) / source.object_name
        command = ["clang", *FLAGS, *_includes(), "-c", str(source.path), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CompileError(f"clang could not compile {source.path.name}:\n{done.stderr.strip()}")
        os.replace(out, folder / source.object_name)
    return folder / source.object_name


if __name__ == "__main__":
    for each in sources():
        print(compile_into(each, Path(sys.argv[1])))
