"""Builds the documentation as a site from README.md, docs/ and the other documents at the top: ``make docs``.

    python tools/site.py                 # build/site; fails on a broken link
    python tools/site.py --stage DIR     # only the pages, for another generator

Pages link to sources, which are not part of the site: such links become plain text.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The document -> its page. Pages of docs/ are at the top of the site.
TOP = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "PROTOCOL.md": "PROTOCOL.md",
       "RECOVERY.md": "RECOVERY.md", "CHANGELOG.md": "CHANGELOG.md"}  # fmt: skip
# By reader; a page that is missing here fails the build.
NAVIGATION: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Start", ("index.md", "command-line.md", "variables.md", "units.md", "errors.md", "limits.md",
               "CHANGELOG.md")),
    ("I train models", ("pytorch.md", "tensorflow.md", "mxnet.md", "horovod.md", "horovod-names.md", "nccl.md",
                        "byteps-van.md", "several-hosts.md", "summation.md", "elastic.md", "collectives.md", "bound.md",
                        "priorities.md", "security.md", "perf.md", "scale.md")),
    ("I run the network", ("network.md", "switch.md", "switch-thresholds.md", "paths.md", "datapaths.md", "testbed.md",
                           "monitoring.md", "contributing-switch-vendor.md")),
    ("I write C", ("c-api.md",)),
    ("I plan the cluster", ("planners.md", "planners-routing.md", "planners-topology.md")),
    ("I change mlt", ("CONTRIBUTING.md", "PROTOCOL.md", "RECOVERY.md", "papers.md", "simulator.md")),
)  # fmt: skip
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^()\s]+)\)")


def documents() -> dict[Path, Path]:
    """Source -> page, both absolute or relative to the site: Markdown and the pictures of results."""
    found = {ROOT / source: Path(page) for source, page in TOP.items()}
    for source in sorted((ROOT / "docs").rglob("*")):
        if source.suffix in (".md", ".png", ".json"):
            found[source] = source.relative_to(ROOT / "docs")
    return found


def page_text(source: Path, page: Path, pages: dict[Path, Path]) -> str:
    """The document with links to pages of the site, and to nothing else of the repository."""

    def link(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        file, _, anchor = target.partition("#")
        if "://" in target or not file:
            return match[0]
        found = pages.get((source.parent / file).resolve())
        if found is None:
            return text if text.startswith("`") else f"{text} (`{file}`)"
        return f"{mark}[{text}]({os.path.relpath(found, page.parent)}{'#' + anchor if anchor else ''})"

    return LINK.sub(link, source.read_text(encoding="utf-8"))


def stage(folder: Path) -> None:
    """Write every page and picture below ``folder``."""
    pages = documents()
    for source, page in pages.items():
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            (folder / page).write_text(page_text(source, page, pages), encoding="utf-8")
        else:
            shutil.copyfile(source, folder / page)


def configuration(pages: Path, out: Path) -> str:
    """mkdocs.yml: strict about links and about pages without a place."""
    lines = ["site_name: mlt", f"docs_dir: {pages}", f"site_dir: {out}", "theme: {name: material}", "plugins: [search]",
             "use_directory_urls: false",
             "validation: {links: {not_found: warn, anchors: warn, absolute_links: warn}, nav: {not_found: warn}}",
             "markdown_extensions: [tables, fenced_code, attr_list, {toc: {permalink: true}}]", "nav:"]  # fmt: skip
    for title, members in NAVIGATION:
        lines += [f"  - {title}:", *(f"      - {member}" for member in members)]
    lines.append("  - Results:")
    lines += [f"      - {path.relative_to(pages)}" for path in sorted(pages.glob("results/**/*.md"))]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Exit status of the generator, 1 if a page has no place in the navigation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=Path, metavar="DIR", help="write the pages there and end")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="folder of the site")
    options = parser.parse_args()
    if options.stage is not None:
        stage(options.stage)
        return 0
    pages = ROOT / "build" / "site-pages"
    shutil.rmtree(pages, ignore_errors=True)
    stage(pages)
    placed = {member for _, members in NAVIGATION for member in members}
    if homeless := {path.name for path in pages.glob("*.md")} - placed:
        print(f"error: no place in NAVIGATION for {', '.join(sorted(homeless))}", file=sys.stderr)
        return 1
    file = ROOT / "build" / "mkdocs.yml"
    file.write_text(configuration(pages, options.out), encoding="utf-8")
    words = [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-f", file]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an announcement about the theme
    return subprocess.run(words, env=quiet, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
