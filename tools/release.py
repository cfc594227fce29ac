"""Checks that this commit can be released, collects its packages and makes its tag: ``make release``.

    python tools/release.py                 # checks, and says what is missing
    python tools/release.py --tag           # the same; then build/release and the annotated tag vMAJOR.MINOR.PATCH

The version is the one of pyproject.toml; CMakeLists.txt and the first heading of CHANGELOG.md must agree, no line may
be left under "Unreleased", the working tree must be clean, and ``make wheels`` must have made a wheel of that version
for every Python that the classifiers name. build/release then has the wheels, the source distribution and SHA256SUMS;
the tag's message is the release's part of CHANGELOG.md. Nothing is pushed or published: the last lines say how.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Release:
    """Next release of a checkout. ``problems``: why it can't be made as the checkout is."""

    version: str
    notes: str
    pythons: tuple[str, ...]
    wheels: tuple[Path, ...]
    problems: tuple[str, ...]

    @property
    def tag(self) -> str:
        return f"v{self.version}"


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else "none"


def notes_of(changelog: str, version: str) -> tuple[str, str]:
    """The text under the heading of ``version``, and the one under "Unreleased"; empty where there is none."""
    parts = re.split(r"^## +", changelog, flags=re.MULTILINE)[1:]
    texts = {head.split(" ")[0]: text.strip() for head, _, text in (part.partition("\n") for part in parts)}
    return texts.get(version, ""), texts.get("Unreleased", "")


def read(root: Path) -> Release:
    """The release of the checkout at ``root``, without asking git."""
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    version = _first(r'^version = "([\d.]+)"', project)
    problems = [
        f"{file} has version {theirs}, pyproject.toml {version}"
        for file, theirs in (
            ("CMakeLists.txt", _first(r"^project\(mlt VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text("utf-8"))),
            ("CHANGELOG.md", _first(r"^## ([\d.]+)", changelog)),
        )
        if theirs != version
    ]
    notes, unreleased = notes_of(changelog, version)
    if unreleased:
        problems.append(f'CHANGELOG.md has lines under "Unreleased": move them under {version}, or raise the version')
    if not notes:
        problems.append(f"CHANGELOG.md says nothing about {version}")
    pythons = tuple(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project))
    made = root / "build" / "wheels"
    wheels = tuple(
        wheel for python in pythons for wheel in sorted(made.glob(f"mlt-{version}-cp{python.replace('.', '')}-*.whl"))
    )
    built = {f"3.{wheel.name.split('-cp3', 1)[1].split('-')[0]}" for wheel in wheels}
    if missing := [one for one in pythons if one not in built]:
        problems.append(f"build/wheels has no wheel of {version} for Python {', '.join(missing)}: make wheels")
    return Release(version, notes, pythons, wheels, tuple(problems))


def _git(*words: str, root: Path) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.rstrip()


def problems_of_git(release: Release, root: Path) -> list[str]:
    """Changes that no commit has, a tag that exists, and wheels that are older than the commit."""
    found = []
    if changed := _git("status", "--porcelain", root=root):
        found.append(f"the working tree has changes that no commit has, the first is {changed.splitlines()[0][3:]}")
    if _git("tag", "--list", release.tag, root=root):
        found.append(f"the tag {release.tag} exists: raise the version")
    committed = int(_git("log", "-1", "--format=%ct", root=root))
    found += [f"{wheel.name} is older than the commit: make wheels" for wheel in release.wheels
              if wheel.stat().st_mtime < committed]  # fmt: skip
    return found


def collect(release: Release, root: Path) -> Path:
    """build/release with the wheels, the source distribution and their checksums."""
    out = root / "build" / "release"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for wheel in release.wheels:
        shutil.copy2(wheel, out)
    code = f"import scikit_build_core.build as b; b.build_sdist({str(out)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, stdout=subprocess.DEVNULL)
    sums = [f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    return out


def main(root: Path = ROOT) -> int:
    """Exit status 1 if the commit can't be released."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", action="store_true", help="collect the packages and make the tag")
    options = parser.parse_args()
    release = read(root)
    problems = [*release.problems, *problems_of_git(release, root)]
    for problem in problems:
        print(f"release {release.version}: {problem}", file=sys.stderr)
    if problems:
        return 1
    if not options.tag:
        print(f"release {release.version}: ready; make release RELEASE_ARGS=--tag makes the tag {release.tag}")
        return 0
    out = collect(release, root)
    message = f"mlt {release.version}\n\n{release.notes}\n"
    # Headings of the notes begin with "#", which git takes for comments unless told otherwise.
    _git("tag", "--annotate", "--cleanup=verbatim", "--message", message, release.tag, root=root)
    print(f"release {release.version}: tag {release.tag} made; {len(list(out.iterdir())) - 1} packages in {out}")
    print(f"to publish: git push origin {release.tag}, and upload build/release and build/site (make docs)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
