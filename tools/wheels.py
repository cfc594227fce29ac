"""Builds a wheel for every Python that this machine has, and tests each in an empty environment.

    python tools/wheels.py                          # build/wheels/*.whl
    python tools/wheels.py --only 3.12 --no-tests
    python tools/wheels.py --only 3.11 --torch 2.8.0 --torch 2.14.1

Looks for Python 3.10 and later on the path and among pyenv's versions. A wheel is installed into a new environment with
its dependencies only; the tests that run there need no compiler and none of the extras. For the oldest Python they run
with the oldest permitted release of each dependency too. With ``--torch``, those of the PyTorch plugin run instead, in
an environment with each of these releases of torch (up to 8 GB each: most are builds for GPUs).

These wheels run on this machine's distribution and later ones; those for every Linux are built in containers, by
cibuildwheel (pyproject.toml).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "wheels"
OLDEST = (3, 10)
# Tests that need the wheel, its dependencies and these; pyproject.toml runs the same ones in containers.
TEST_PACKAGES = ("pytest>=8", "pytest-timeout>=2.2", "hypothesis>=6")
TESTS = (
    "tests/python/cli/test_completion.py",
    "tests/python/cli/test_exit_statuses.py",
    "tests/python/cli/test_interrupted.py",
    "tests/python/cli/test_launch.py",
    "tests/python/cli/test_short_help.py",
    "tests/python/cli/test_style.py",
    "tests/python/job/test_address.py",
    "tests/python/job/test_configuration.py",
    "tests/python/job/test_job_secret.py",
    "tests/python/options",
    "tests/python/shared",
    "tests/python/transport/test_bad_input.py",
    "tests/python/transport/test_collectives.py",
    "tests/python/transport/test_context_transfers.py",
    "tests/python/transport/test_errors.py",
    "tests/python/transport/test_push_pull.py",
)
# All of the plugin's but the recipes', whose libraries ask for a torch of their own.
TORCH_TESTS = ("tests/plugins/torch", "--ignore=tests/plugins/torch/test_recipes.py")
TORCH_TEST_PACKAGES = ("expecttest", "psutil")
# The options of the checkout name plugins that the empty environment lacks.
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "-m", "not live")
SPEAK = "import json, sys; print(json.dumps([*sys.version_info[:2], sys.implementation.name]))"


def version_of(python: Path) -> tuple[int, int] | None:
    """The version of a CPython; None for other programs of the name."""
    try:
        done = subprocess.run([python, "-I", "-c", SPEAK], capture_output=True, text=True, check=False)
        major, minor, name = json.loads(done.stdout)
    except (ValueError, OSError):
        return None  # not there, or a shim of pyenv's for a version that is not selected
    return (major, minor) if name == "cpython" else None


def candidates() -> Iterator[Path]:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob("versions/*/bin/python3"))
    for folder in map(Path, os.environ.get("PATH", "").split(os.pathsep)):
        yield from sorted(folder.glob("python3.[0-9]*"))


def pythons(found: Iterable[Path]) -> dict[str, Path]:
    """Version -> the first interpreter of that version, oldest first."""
    known: dict[tuple[int, int], Path] = {}
    for python in found:
        if re.fullmatch(r"python3(\.\d+)?", python.name):
            version = version_of(python)
            if version is not None and version >= OLDEST:
                known.setdefault(version, python)
    return {f"{major}.{minor}": known[major, minor] for major, minor in sorted(known)}


def run(*words: str | Path, log: Path) -> bool:
    """Run a program to its end, with its output in ``log``."""
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"$ {' '.join(map(str, words))}\n")
        stream.flush()
        environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        done = subprocess.run([*words], stdout=stream, stderr=subprocess.STDOUT, cwd=ROOT, env=environ, check=False)
    return done.returncode == 0


def build(version: str, python: Path, log: Path) -> Path | None:
    """The wheel for ``python``; its object files are kept for the next time."""
    made = OUT / "new" / version
    shutil.rmtree(made, ignore_errors=True)
    words = (
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--wheel-dir",
        made,
        f"--config-settings=build-dir=build/wheel-{version}",
    )
    if not run(python, *words, ".", log=log):
        return None
    (wheel,) = made.glob("*.whl")
    return wheel.replace(OUT / wheel.name)


def oldest_dependencies(wheel: Path) -> list[str]:
    """The lower bound of each dependency, as ``name==version``, without those of extras."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    return [
        f"{name}=={minimum}" for name, minimum in re.findall(r"^Requires-Dist: ([\w-]+)>=([\d.]+)$", metadata, re.M)
    ]


def test(version: str, python: Path, wheel: Path, log: Path, dependencies: Sequence[str]) -> bool:
    """Whether the wheel installs in an empty environment, with these dependencies if given, and passes there."""
    home = OUT / f"env-{version}{'-oldest' if dependencies else ''}"
    return _test_in(home, python, (wheel, *dependencies), TEST_PACKAGES, TESTS, log)


def test_torch(version: str, python: Path, wheel: Path, log: Path, torch: str) -> bool:
    """The same for the PyTorch plugin beside this release of torch."""
    home = OUT / f"env-{version}-torch-{torch}"
    return _test_in(
        home, python, (wheel, f"torch=={torch}"), (*TEST_PACKAGES, *TORCH_TEST_PACKAGES), TORCH_TESTS, log
    )  # fmt: skip


def _test_in(
    home: Path,
    python: Path,
    packages: Sequence[str | Path],
    test_packages: Sequence[str],
    tests: Sequence[str],
    log: Path,
) -> bool:
    shutil.rmtree(home, ignore_errors=True)
    own = home / "bin" / "python"
    steps: tuple[tuple[str | Path, ...], ...] = (
        (python, "-m", "venv", home),
        (own, "-m", "pip", "install", "-q", *packages),
        (own, "-I", "-c", "import mlt; print(mlt.__version__, mlt.__file__)"),
        (home / "bin" / "mlt", "-h"),
        (own, "-m", "pip", "install", "-q", *test_packages),
        (own, *PYTEST, *tests),
    )
    return all(run(*step, log=log) for step in steps)


def _tell_torch(version: str, python: Path, wheel: Path, log: Path, torch: str) -> bool:
    began = time.monotonic()
    passed = test_torch(version, python, wheel, log, torch)
    outcome = "passes" if passed else f"FAILED, see {log.relative_to(ROOT)}"
    print(f"Python {version} with torch {torch}: {outcome}; {time.monotonic() - began:.0f} s", flush=True)
    return passed


def main() -> int:
    """Exit status 1 if a wheel cannot be built, installed or tested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="VERSION", help="Python version, such as 3.12; repeatable")
    parser.add_argument("--test-here", action="store_true", help="run the tests with this Python, which has a wheel")
    parser.add_argument("--torch", action="append", default=[], metavar="RELEASE", help="of torch; repeatable")
    parser.add_argument("--no-tests", action="store_true", help="build the wheels only")
    options = parser.parse_args()
    if options.test_here:
        return subprocess.run([sys.executable, *PYTEST, *TESTS], cwd=ROOT, check=False).returncode
    OUT.mkdir(parents=True, exist_ok=True)
    found = pythons(candidates())
    wanted = options.only or list(found)
    failed = [version for version in wanted if version not in found]
    for version in failed:
        print(f"Python {version}: not found; found are {', '.join(found) or 'none'}", file=sys.stderr)
    for version in wanted:
        if version in failed:
            continue
        began, log = time.monotonic(), OUT / f"{version}.log"
        log.unlink(missing_ok=True)
        wheel = build(version, found[version], log)
        if options.torch and wheel is not None:
            failed += [one for one in options.torch if not _tell_torch(version, found[version], wheel, log, one)]
            continue
        passed = wheel is not None and (options.no_tests or test(version, found[version], wheel, log, ()))
        what = "not built" if wheel is None else f"{wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB"
        outcome = "built" if options.no_tests else "installs and passes"
        print(f"Python {version}: {what}: {outcome if passed else f'FAILED, see {log.relative_to(ROOT)}'}; "
              f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
        if passed and version == next(iter(found)) and not options.no_tests:
            assert wheel is not None
            passed = test(version, found[version], wheel, log, oldest := oldest_dependencies(wheel))
            outcome = "passes" if passed else f"FAILED, see {log.relative_to(ROOT)}"
            print(f"Python {version} with {', '.join(oldest)}: {outcome}", flush=True)
        if not passed:
            failed.append(version)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
