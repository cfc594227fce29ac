"""The dependency rule of CONTRIBUTING.md (layers), read from what the compiler made of the code.

Two questions to static libraries:
 - Does anything in them refer to a socket, file, clock or thread? (`--pure`, by symbol)
 - Can one of the endpoint's entry points reach an allocator? (`--allocation-free`, by call graph)

The second needs the graph, because constructors allocate, and rightly so: set-up is when every table gets its size.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

# The C library's names, one kind after the other.
FORBIDDEN = {
    # sockets
    "socket",
    "bind",
    "listen",
    "accept",
    "accept4",
    "connect",
    "send",
    "sendto",
    "sendmsg",
    "sendmmsg",
    "recv",
    "recvfrom",
    "recvmsg",
    "recvmmsg",
    "poll",
    "ppoll",
    "select",
    "epoll_create",
    "epoll_create1",
    "epoll_ctl",
    "epoll_wait",
    "eventfd",
    "getaddrinfo",
    "setsockopt",
    "getsockopt",
    "shutdown",
    # files
    "open",
    "open64",
    "openat",
    "creat",
    "read",
    "write",
    "pread",
    "pwrite",
    "readv",
    "writev",
    "fopen",
    "fopen64",
    "fread",
    "fwrite",
    "ioctl",
    "mmap",
    "mmap64",
    "getenv",
    "system",
    "popen",
    "syscall",
    # clocks
    "clock_gettime",
    "gettimeofday",
    "time",
    "clock",
    "nanosleep",
    "clock_nanosleep",
    "usleep",
    "sleep",
    "timerfd_create",
    "timerfd_settime",
    "timer_create",
    # threads
    "pthread_create",
    "pthread_join",
    "pthread_mutex_lock",
    "pthread_cond_wait",
    "pthread_once",
    "sem_wait",
    "futex",
    "sched_yield",
    "fork",
    "vfork",
    "clone",
}
# C++'s own wrappers of these, mangled.
FORBIDDEN_CXX = re.compile(
    r"std::(__1::)?(chrono::|this_thread::|thread::|jthread::|mutex::|condition_variable|basic_[io]?f?stream|cout|cerr|random_device)"
)
# check_failed says what broke and ends the program: that is its purpose, and the only output of these layers.
ALLOWED = {("check.cc.o", "abort"), ("check.cc.o", "fprintf"), ("check.cc.o", "stderr")}

ALLOCATORS = re.compile(
    r"^(operator (new|delete)(\[\])?\(|(malloc|calloc|realloc|free|aligned_alloc|posix_memalign|mmap|mmap64)$)"
)
ENTRY_POINTS = (
    *("post_send", "post_recv", "on_datagram", "on_control", "on_timeout"),
    *("poll_transmit", "poll_control", "poll_completion", "next_timeout"),
)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, errors="replace").stdout


def base_name(symbol: str) -> str:
    """The name without version and PLT decoration: `memcpy@GLIBC_2.14` is `memcpy`."""
    return re.sub(r"@.*$", "", symbol).strip()


def impure_symbols(nm: str, archive: Path) -> list[str]:
    """Every reference to a socket, file, clock or thread, with the object that makes it."""
    found = []
    member = archive.name
    for line in run(nm, "--undefined-only", "--demangle", str(archive)).splitlines():
        if line.endswith(":"):
            member = line[:-1]
            continue
        match = re.match(r"\s*[Uuwv]\s+(.*)", line)
        if not match:
            continue
        symbol = base_name(match.group(1))
        if (member, symbol) in ALLOWED:
            continue
        if symbol in FORBIDDEN or FORBIDDEN_CXX.search(symbol):
            found.append(f"{archive.name}({member}) refers to {symbol}")
    return found


def call_graph(objdump: str, archives: Iterable[Path]) -> dict[str, set[str]]:
    """The references between functions of the archives: calls, jumps and taken addresses alike."""
    graph: dict[str, set[str]] = defaultdict(set)
    function_line = re.compile(r"^[0-9a-f]+ <(.*)>:$")
    relocation = re.compile(r"^\s+[0-9a-f]+: R_\S+\s+(.*)$")
    direct = re.compile(r"\s<([^>]*(?:<.*>)?[^>]*)>\s*$")
    for archive in archives:
        function = ""
        target = (
            ""  # of the instruction before, if no relocation says better: it then is where the operand is still zero
        )
        options = ("--disassemble", "--reloc", "--demangle", "--no-show-raw-insn")
        for line in [*run(objdump, *options, str(archive)).splitlines(), ""]:
            if match := relocation.match(line):
                graph[function].add(base_name(re.sub(r"[-+]0x[0-9a-f]+$", "", match.group(1))))
                target = ""
                continue
            if target and target != function:
                graph[function].add(target)
            target = ""
            if match := function_line.match(line):
                function = match.group(1)
                if function.endswith(".cold]"):  # the unlikely half of a function belongs to it
                    graph[re.sub(r" \[clone \.cold\]$", "", function)].add(function)
                graph[function]  # known even if it calls nothing
            elif match := direct.search(line):
                target = re.sub(r"\+0x[0-9a-f]+$", "", match.group(1))
    return graph


def paths_to_allocators(graph: dict[str, set[str]], roots: Iterable[str]) -> list[str]:
    """For each root that reaches an allocator, one chain of calls that shows how."""
    found = []
    for root in roots:
        came_from: dict[str, str] = {root: ""}
        todo = [root]
        while todo:
            function = todo.pop()
            if ALLOCATORS.match(function):
                chain = [function]
                while came_from[chain[-1]]:
                    chain.append(came_from[chain[-1]])
                found.append("\n    <- ".join(chain))
                break
            for callee in sorted(graph.get(function, ())):
                if callee not in came_from:
                    came_from[callee] = function
                    todo.append(callee)
    return found


def entry_points(graph: dict[str, set[str]], class_name: str) -> list[str]:
    roots = []
    for entry in ENTRY_POINTS:
        matches = [f for f in graph if re.match(rf"{re.escape(class_name)}::{entry}\(", f)]
        if not matches:
            raise SystemExit(f"{class_name}::{entry} is not in the libraries: is the list of entry points out of date?")
        roots += matches
    return roots


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--objdump", default="objdump")
    parser.add_argument(
        "--pure", type=Path, nargs="*", default=[], help="libraries without socket, file, clock, thread"
    )
    parser.add_argument("--allocation-free", type=Path, nargs="*", default=[], help="libraries of the endpoint")
    parser.add_argument("--endpoint", default="mlt::core::Endpoint", help="class whose entry points must not allocate")
    parser.add_argument("--must-find", nargs="*", help="succeed only if each of these words is in some violation")
    arguments = parser.parse_args()

    violations: list[str] = []
    for archive in arguments.pure:
        violations += impure_symbols(arguments.nm, archive)
    if arguments.allocation_free:
        graph = call_graph(arguments.objdump, arguments.allocation_free)
        if not any(ALLOCATORS.match(callee) for callees in graph.values() for callee in callees):
            raise SystemExit(
                "no allocation at all was found, not even in constructors: the disassembly was not understood"
            )
        violations += paths_to_allocators(graph, entry_points(graph, arguments.endpoint))
    for violation in violations:
        print(f"dependency rule: {violation}")
    if arguments.must_find is not None:
        overlooked = [word for word in arguments.must_find if not any(word in violation for violation in violations)]
        print(f"overlooked: {overlooked}")
        return 1 if overlooked else 0
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
