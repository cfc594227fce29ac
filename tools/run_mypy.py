"""Run mypy --strict over studies and the Python of the wheel, as it installs (plugins, switch_configs under ``mlt``).

The source folders of the plugins and of ``mlt.switch_configs`` are outside ``python/mlt``. mypy must see them under
their installed names, so this script builds a folder of links and checks that.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINKS = {
    "torch": ROOT / "plugins" / "torch",
    "tensorflow": ROOT / "plugins" / "tensorflow",
    "mxnet": ROOT / "plugins" / "mxnet",
    "torch_autoload": ROOT / "plugins" / "torch_autoload",
    "nccl": ROOT / "plugins" / "nccl" / "python" / "nccl",
    "switch_configs": ROOT / "switch_configs",
}


def main() -> int:
    with tempfile.TemporaryDirectory() as tmp:
        package = Path(tmp) / "mlt"
        package.mkdir()
        for entry in (ROOT / "python" / "mlt").iterdir():
            (package / entry.name).symlink_to(entry)
        for name, target in LINKS.items():
            if any(target.glob("*.py")):
                (package / name).symlink_to(target)
        (Path(tmp) / "studies").symlink_to(ROOT / "studies")
        command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "-p", "mlt"]
        command += ["-p", "studies"]
        command += ["--cache-dir", str(ROOT / ".mypy_cache")]
        return subprocess.run(command, cwd=tmp, env={**os.environ, "MYPYPATH": tmp}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
