"""Every descriptor, mapping and address list has an owner: what the system gave is given back in these files alone."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from rule_check import run

# file of src/, or of plugins/ from there on -> calls that give back what it owns
OWNERS: dict[str, set[str]] = {
    "io/os/unique_fd.h": {"close"},
    "io/os/memory_mapping.h": {"munmap"},
    "io/net/address_lists.h": {"freeaddrinfo", "freeifaddrs"},
    "plugins/nccl/connection.cc": {"dlclose"},  # LibraryPin
}
# A member called close() is not the one meant: that is written ::close(), or its argument is a descriptor.
GIVE_BACK = re.compile(
    r"(?<![\w.>:])(?:::|std::)?(freeaddrinfo|freeifaddrs|if_freenameindex|munmap|dlclose|fclose|closedir)\s*\("
    r"|(?<!\w)::(close)\s*\("
    r"|(?<![\w.>:])(close)\s*\([^()]*(?:\bfd|_fd\b|socket|epoll|\.get\()"
)


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*", lambda match: "\n" * match.group().count("\n"), text, flags=re.DOTALL)


def violations(path: str, text: str) -> Iterator[str]:
    """Calls of the file at `path`, relative to src/ (of a plugin: from plugins/ on), that belong to an owner."""
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        for match in GIVE_BACK.finditer(line):
            call = next(group for group in match.groups() if group)
            if call not in OWNERS.get(path, set()):
                homes = [home for home, calls in OWNERS.items() if call in calls] or ["a class of its own"]
                yield f"{path}:{number} calls {call}(): leave that to its owner ({', '.join(homes)})"


def check(root: Path) -> list[str]:
    found: list[str] = []
    tops = {root / "src": root / "src", root / "plugins": root}
    for owner, calls in OWNERS.items():
        home = root if owner.startswith("plugins/") else root / "src"
        text = without_comments((home / owner).read_text(encoding="utf-8"))
        found += [f"{owner} no longer calls {call}()" for call in sorted(calls) if f"::{call}(" not in text]
    for top, base in tops.items():
        for source in sorted(p for p in top.rglob("*") if p.suffix in {".h", ".cc"}):
            found += violations(source.relative_to(base).as_posix(), source.read_text(encoding="utf-8"))
    return found


def self_test() -> None:
    """The check can fail, and does not on members of the same name."""
    for text in (
        "  ::close(fd);",
        "  close(fd);",
        "if (close(fd_.get()) != 0) return;",
        "  freeaddrinfo(list);",
        "  ::freeifaddrs(list);",
        "  ::munmap(at, size);",
        "  dlclose(library);",
    ):
        assert list(violations("io/x.cc", text)), text
    for text in (
        "  close(*connection);",
        "  engine_->close();",
        "void ControlChannel::close(Connection& connection) {",
        "void close(std::uint16_t a, std::uint16_t b);",
        "  // ::close(fd) is not retried",
    ):
        assert not list(violations("io/x.cc", text)), text
    assert not list(violations("io/os/unique_fd.h", "if (fd_ >= 0) ::close(fd_);"))


def main() -> int:
    self_test()
    return run("owners", __doc__, check)


if __name__ == "__main__":
    sys.exit(main())
