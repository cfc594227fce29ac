"""The dependency rule of CONTRIBUTING.md (layers), read from the sources.

Which layer includes what, and that planners and switch_configs are plain Python.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from rule_check import run

# layer -> other layers of src/ that it may include. "mlt.h" is the public header, "wire/packet.h" one file of a layer.
LAYERS: dict[str, set[str]] = {
    "base": set(),
    "wire": {"base"},
    "core": {"wire", "base"},
    "collective": {"core", "base"},
    "sim": {"collective", "core", "wire", "base"},
    "io": {"wire", "base"},
    "engine": {"mlt.h", "io", "collective", "core", "wire", "base"},
    "bare_udp": {"mlt.h", "io", "collective", "base"},
    "delay_line": {"io", "core", "base"},
    "bpf": {"wire/packet.h"},
    "bindings": {"mlt.h", "engine", "sim", "bare_udp"},
    "c": {"mlt.h", "mlt_c.h"},
}
# The rooms of src/io ("" is the folder itself) -> other rooms of it that each may include: no datapath knows a sibling,
# save that AF_XDP and libvma fall back on the kernel's UDP.
IO_ROOMS: dict[str, set[str]] = {
    "os": set(),
    "net": {"os"},
    "": {"net", "os"},
    "udp": {"", "net", "os"},
    "xdp": {"", "net", "os", "udp"},
    "vma": {"", "net", "os", "udp"},
    "shm": {"", "os"},
    "fault": {"", "os"},
    "control": {"", "net", "os"},
}
# System headers of files, sockets, clocks and threads, which the layers below the drivers do without.
PURE_LAYERS = ("base", "wire", "core", "collective", "sim")
IMPURE_HEADER = re.compile(
    r"(sys|netinet|arpa|linux|net|asm)/|"
    r"(unistd|pthread|time|sched|poll|signal|fcntl|semaphore|threads)\.h$|"
    r"(chrono|thread|mutex|shared_mutex|condition_variable|future|semaphore|latch|barrier|stop_token|atomic|ctime|"
    r"iostream|fstream|filesystem|random|cstdio|stdio\.h|csignal)$"
)
# check_failed names what broke before it ends the program.
IMPURE_ALLOWED = {("base/check.cc", "cstdio")}
PACKET_HEADER_MAY_INCLUDE = {"stdint.h"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
PLAIN_PYTHON = ("python/mlt/planners", "switch_configs")


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", re.sub(r"//[^\n]*", "", text), flags=re.DOTALL)


def layer_violations(path: str, text: str) -> Iterator[str]:
    """The includes of the file at `path`, relative to src/, that are forbidden."""
    layer = path.split("/", 1)[0]
    if path in ("mlt.h", "mlt_c.h"):
        layer = ""
    elif layer not in LAYERS:
        yield f"{path}: {layer}/ is not a layer of the table"
        return
    for bracket, target in INCLUDE.findall(without_comments(text)):
        if path == "wire/packet.h":
            if target not in PACKET_HEADER_MAY_INCLUDE:
                yield f"{path} includes {target}: it may include <stdint.h> only, so that a BPF program can include it"
        elif bracket == '"':
            allowed = LAYERS.get(layer, set())
            used = target.split("/", 1)[0]
            own = used == layer or (layer == "bpf" and "/" not in target)  # the BPF compiler runs in its folder
            if not own and used not in allowed and target not in allowed:
                yield f"{path} includes {target}: {layer or 'mlt.h'} may not use {used}"
        elif layer in PURE_LAYERS and IMPURE_HEADER.match(target) and (path, target) not in IMPURE_ALLOWED:
            yield f"{path} includes <{target}>: {layer} has no files, sockets, clocks or threads"


def room_of(path: str) -> str:
    """The room of a file of src/io: "udp" of io/udp/udp_socket.h, "" of io/datapath.h."""
    return "/".join(path.split("/")[1:-1])


def room_violations(path: str, text: str) -> Iterator[str]:
    """The includes of the file at `path`, relative to src/, from another room of io that are forbidden."""
    if not path.startswith("io/"):
        return
    room = room_of(path)
    if room not in IO_ROOMS:
        yield f"{path}: {room}/ is not a room of the table"
        return
    for bracket, target in INCLUDE.findall(without_comments(text)):
        if bracket != '"' or not target.startswith("io/"):
            continue
        used = room_of(target)
        if used != room and used not in IO_ROOMS[room]:
            yield f"{path} includes {target}: {room or 'io'} may not use {used or 'io'}"


def core_imports(path: str, text: str) -> Iterator[str]:
    """Imports of the native library, in any spelling, by a file that must do without."""
    for node in ast.walk(ast.parse(text, filename=path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module or ''}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = ast.unparse(node.func)
            if function.split(".")[-1] in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                names = [node.args[0].value]
        for name in names:
            if "_core" in name.split("."):
                yield f"{path}:{node.lineno} imports {name}: planners and switch_configs are plain Python"


def check(root: Path) -> list[str]:
    found: list[str] = []
    sources = [p for p in sorted((root / "src").rglob("*")) if p.suffix in {".h", ".c", ".cc"}]
    if not sources:
        raise SystemExit(f"no sources under {root}/src")
    for source in sources:
        path, text = source.relative_to(root / "src").as_posix(), source.read_text(encoding="utf-8")
        found += [*layer_violations(path, text), *room_violations(path, text)]
    for folder in PLAIN_PYTHON:
        for source in sorted((root / folder).rglob("*.py")):
            found += core_imports(source.relative_to(root).as_posix(), source.read_text(encoding="utf-8"))
    return found


def self_test() -> None:
    """The check can fail: each kind of violation is found, and what is allowed is not."""
    bad = [
        ("base/x.h", '#include "wire/codec.h"'),
        ("wire/packet.h", "#include <stddef.h>"),
        ("wire/packet.h", '#include "base/time.h"'),
        ("core/x.cc", '#include "io/datapath.h"'),
        ("core/x.cc", '#include "engine/engine.h"'),
        ("core/x.h", "#include <chrono>"),
        ("core/x.h", "  #  include <sys/socket.h>"),
        ("collective/x.h", '#include "wire/codec.h"'),
        ("io/x.h", '#include "core/endpoint.h"'),
        ("bpf/x.bpf.c", '#include "wire/codec.h"'),
        ("engine/x.cc", '#include "sim/host.h"'),
        ("bindings/x.cc", '#include "core/endpoint.h"'),
        ("mlt.h", '#include "engine/engine.h"'),
        ("elsewhere/x.h", ""),
    ]
    for path, text in bad:
        assert list(layer_violations(path, text)), (path, text)
    bad_rooms = [
        ("io/os/x.h", '#include "io/datapath.h"'),
        ("io/net/x.cc", '#include "io/udp/udp_socket.h"'),
        ("io/datapath.h", '#include "io/udp/udp_datapath.h"'),
        ("io/udp/x.cc", '#include "io/xdp/xsk_socket.h"'),
        ("io/elsewhere/x.h", ""),
    ]
    for path, text in bad_rooms:
        assert list(room_violations(path, text)), (path, text)
    good = [
        ("core/x.cc", '#include "wire/codec.h"\n#include <vector>\n// #include "io/datapath.h"\n'),
        ("wire/packet.h", "#include <stdint.h>"),
        ("io/x.cc", "#include <sys/socket.h>"),
        ("bpf/x.bpf.c", '#include <linux/bpf.h>\n#include "maps.h"\n#include "wire/packet.h"'),
    ]
    for path, text in good:
        assert not list(layer_violations(path, text)), (path, text)
    assert not list(room_violations("io/xdp/x.cc", '#include "io/udp/udp_socket.h"\n#include "base/time.h"\n'))
    for text in (
        "from mlt import _core",
        "import mlt._core as c",
        "from .._core import Engine",
        "import_module('mlt._core')",
    ):
        assert list(core_imports("x.py", text)), text
    assert not list(core_imports("x.py", "from mlt.planners import core\nimport networkx"))


def main() -> int:
    self_test()
    return run("dependency rule", __doc__, check)


if __name__ == "__main__":
    sys.exit(main())
