"""``-h`` helps everywhere, as ``--help`` does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from mlt.cli.main import COMMANDS


def helped(words: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mlt.cli.main", *words, "-h"],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"Usage: mlt {' '.join(words)}" in done.stdout
    return done.stdout


def test_short_help__of_every_command_and_of_theirs() -> None:
    words = [[name] for name in COMMANDS]
    with ThreadPoolExecutor(2) as pool:
        while words:
            texts = list(pool.map(helped, words))
            words = [
                [*above, name]
                for above, text in zip(words, texts, strict=True)
                if "COMMAND [ARGS]" in text
                for name in re.findall(r"^[│ ]{1,4}([a-z][a-z0-9-]+)  ", text.rpartition("Commands")[2], re.MULTILINE)
            ]
