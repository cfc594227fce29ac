"""The installed C library: what it exports, its soname and pkg-config file, and the example built against it."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# ctest's interpreter need not have mlt; this module of it needs nothing else.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "mlt" / "_shared"))
from ports import free_port

DECLARED = re.compile(r"^MLT_API [^;(]*?\b(mlt_\w+)\(", re.MULTILINE)


def output(*command: str | Path, **environment: str) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(
        [str(part) for part in command], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def check_exports(library: Path, header: Path, nm: str) -> None:
    """Exactly the header's functions."""
    declared = set(DECLARED.findall(header.read_text(encoding="utf-8")))
    names = (line.split()[-1] for line in output(nm, "-D", "--defined-only", library).splitlines())
    exported = {name.split("@")[0] for name in names} - {"MLT_0"}
    if not declared or exported != declared:
        raise SystemExit(f"{library} exports {sorted(exported - declared)} that the header does not declare, and lacks "
                         f"{sorted(declared - exported)}")  # fmt: skip


def run_example(program: Path, library_folder: Path) -> None:
    """Two ranks; each prints the mean of 0 and 1."""
    addresses = [f"127.0.0.1:{port}" for port in (free_port(), free_port())]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library_folder)}
    ranks = [
        subprocess.Popen([program, str(rank), *addresses], env=environment, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True)
        for rank in range(2)
    ]  # fmt: skip
    for number, rank in enumerate(ranks):
        text = rank.communicate(timeout=100)[0]
        if rank.returncode != 0 or f"rank {number}: mean 0.5" not in text:
            raise SystemExit(f"rank {number} of the example exited with {rank.returncode}: {text}")


def main() -> int:
    """0; raises if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path, help="build folder")
    parser.add_argument("source", type=Path, help="top of the source tree")
    parser.add_argument("--cmake", required=True)
    parser.add_argument("--nm", required=True)
    parser.add_argument("--objdump", required=True)
    parser.add_argument("--cc", required=True)
    parser.add_argument("--flags", default="", help="of the sanitizers that the library was built with")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        output(options.cmake, "--install", options.build, "--component", "c", "--prefix", folder)
        (package,) = folder.rglob("mlt.pc")
        library = (package.parent.parent / "libmlt.so").resolve()
        check_exports(library, folder / "include" / "mlt_c.h", options.nm)
        soname = re.search(r"SONAME\s+(\S+)", output(options.objdump, "-p", library))
        if soname is None or soname[1] != "libmlt.so.0" or not (library.parent / soname[1]).is_symlink():
            raise SystemExit(f"the soname of {library} is {soname and soname[1]}")
        flags = output("pkg-config", "--cflags", "--libs", "mlt", PKG_CONFIG_PATH=str(package.parent)).split()
        program = folder / "all_reduce"
        strict = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]
        source = options.source / "examples" / "c" / "all_reduce.c"
        output(options.cc, *strict, *options.flags.split(), source, "-o", program, *flags)
        run_example(program, library.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
