"""Downloads BytePS's source package and unpacks its ps-lite: ``python tools/ps_lite.py FOLDER``; for make test-van.

FOLDER appears once it is complete.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "byteps==0.2.5.post15"
INSIDE = "3rdparty/ps-lite"


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks ps-lite of the source package ``archive`` as ``folder``."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary, tarfile.open(archive) as package:
        members = [one for one in package.getmembers() if f"/{INSIDE}/" in one.name]
        if not members:
            sys.exit(f"error: {archive.name} has no {INSIDE}")
        package.extractall(temporary, members, filter="data")
        (top,) = Path(temporary).iterdir()
        shutil.rmtree(folder, ignore_errors=True)
        (top / INSIDE).rename(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-binary", ":all:", "--no-deps"]
        subprocess.run([*pip, "-d", temporary, PACKAGE], check=True)
        archives = list(Path(temporary).glob("byteps-*.tar.gz"))
        if not archives:
            sys.exit(f"error: pip downloaded no source package of {PACKAGE}")
        unpack(archives[0], folder)


if __name__ == "__main__":
    main()
