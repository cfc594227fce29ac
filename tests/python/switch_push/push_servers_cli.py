"""Two more servers of the tests: NX-OS's NX-API (JSON-RPC over HTTP) and Junos's NETCONF over SSH, as documented.

Sources: Cisco, Nexus 9000 programmability guide, NX-API CLI (requests, errors, stop-on-error; configuration starts
with ``configure terminal``); RFC 6241 and 6242 and Juniper's Junos XML protocol guide (lock, load, compare, confirmed
commit, rollback). They keep a configuration and validate requests; none is a device.
"""

from __future__ import annotations

import base64
import contextlib
import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

from push_lab import USER
from push_servers import ssh

Tree = dict[str, Any]


class Nxapi:
    """NX-OS's configuration as nested sections; references are checked as ``policy-map`` and ``class-map`` are."""

    SECTIONS: ClassVar = re.compile(r"interface |class-map |policy-map |system qos$")
    ALONE: ClassVar = re.compile(r"hostname |feature |version |ntp |vlan ")
    LINES: ClassVar = {
        "interface": re.compile(r"service-policy type (qos input|queuing output) |mtu |description "),
        "policy-map type qos": re.compile(r"set qos-group \d$"),
        "policy-map type queuing": re.compile(
            r"priority level [1-7]$|bandwidth remaining percent \d+$|queue-limit \d+ kbytes$"
            r"|random-detect (non-ecn )?minimum-threshold (?!999)\d+ kbytes maximum-threshold \d+ kbytes "
            r"drop-probability \d+( weight \d+ ecn)?$"
        ),
        "class-map": re.compile(r"match dscp [\d,]+$"),
    }

    def __init__(self, password: str, tree: Tree | None = None) -> None:
        self.tree: Tree = {"hostname leaf1": {}, "version 10.4(3)": {}, **(tree or {})}
        self.startup = self.text()
        self.files: dict[str, str] = {}
        self.shows: dict[str, str] = {}
        self.authorization = "Basic " + base64.b64encode(f"{USER}:{password}".encode()).decode()
        self._stack: list[str] | None = None

    def text(self) -> str:
        return "\n".join(_written(self.tree, 0)) + "\n"

    def __call__(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        if headers.get("Authorization") != self.authorization:
            return 401, {}
        if (method, path) != ("POST", "/ins") or "json-rpc" not in headers.get("content-type", ""):
            return 404, {}
        self._stack = None  # a request starts in exec mode
        replies = []
        for entry in body:
            reply = {"jsonrpc": "2.0", "id": entry["id"]}
            try:
                said = self._run(entry["params"]["cmd"].strip())
            except ValueError as error:  # stop-on-error
                said = {"code": -32602, "message": "Invalid params", "data": {"msg": f"{error}\n"}}
                replies.append({**reply, "error": said})
                return 500, replies if len(body) > 1 else replies[0]
            shape = {"msg": said} if entry["method"] == "cli_ascii" else {"body": {"text": said}}
            replies.append({**reply, "result": shape if said else None})
        return 200, replies if len(body) > 1 else replies[0]

    def _run(self, command: str) -> str:
        words = command.split()
        if words[:2] in (["configure", "terminal"], ["conf", "t"]):
            self._stack = []
        elif command in self.shows:
            return self.shows[command]
        elif words[0] == "show":
            return self.text() if words[1] == "running-config" else "leaf1"
        elif words[:2] == ["checkpoint", "file"]:
            self.files[words[2]] = self.text()
        elif words[:3] == ["rollback", "running-config", "file"]:
            self.tree = _read(self.files[words[3]])
        elif words[0] == "dir":
            return f"71803 {words[1]}" if words[1] in self.files else "No such file or directory"
        elif words[:2] in (["copy", "run"], ["copy", "running-config"]):
            self.startup = self.text()
        elif words[-2:] != ["terminal", "dont-ask"]:
            self._configure(command)
        return ""

    def _configure(self, command: str) -> None:
        if self._stack is None:
            raise ValueError("% Invalid command (not in configuration mode)")
        no, line = command.startswith("no "), command.removeprefix("no ")
        line = re.sub(r"^interface ethernet", "interface Ethernet", line)
        if command == "exit":
            self._stack = self._stack[:-1]
        elif self.SECTIONS.match(line) or self.ALONE.match(line):
            self._change(self.tree, line, no=no)
            self._stack = [] if no or self.ALONE.match(line) else [line]
        elif line.startswith("class ") and self._stack and self._stack[0].startswith("policy-map "):
            self._stack = [self._stack[0], line]
            self._change(self.tree[self._stack[0]], line, no=no)
        else:
            kind = next((name for name in self.LINES if self._stack and self._stack[0].startswith(name)), None)
            if kind is None or not self.LINES[kind].match(line):
                raise ValueError(f"% Invalid command at {line!r}")
            self._refers(line, no=no)
            at = self.tree
            for step in self._stack:
                at = at[step]
            # One policy of a kind, one value of a setting.
            setting = re.match(
                r"service-policy type \S+ \S+|(random-detect( non-ecn)?|queue-limit|priority|mtu) ", line
            )
            for known in [known for known in at if setting and known.startswith(setting[0])]:
                del at[known]
            if not no:
                at[line] = {}

    def _change(self, at: Tree, line: str, *, no: bool) -> None:
        if not no:
            at.setdefault(line, {})
            return
        if line not in at:
            raise ValueError(f"% {line} does not exist")
        name = line.split()[-1]
        used = [path for path in _paths(self.tree) if path[-1].split()[-1] == name and len(path) > 1]
        if any(path[-1].startswith(("service-policy", "class ")) and path[0] != line for path in used):
            raise ValueError(f"ERROR: {name} is in use")
        del at[line]

    def _refers(self, line: str, *, no: bool) -> None:
        if line.startswith("service-policy") and not no:
            kind, name = line.split()[2], line.split()[-1]
            if f"policy-map type {kind} {name}" not in self.tree:
                raise ValueError(f"ERROR: policy-map {name} does not exist")


def _written(tree: Tree, depth: int) -> Iterator[str]:
    for line, inner in tree.items():
        yield "  " * depth + line
        yield from _written(inner, depth + 1)


def _read(text: str) -> Tree:
    tree: Tree = {}
    stack = [tree]
    for line in text.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        del stack[depth + 1 :]
        stack.append(stack[depth].setdefault(line.strip(), {}))
    return tree


def _paths(tree: Tree, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for line, inner in tree.items():
        yield (*above, line)
        yield from _paths(inner, (*above, line))


class Junos:
    """A candidate and a committed configuration as ``set`` paths; a lock, a history, a timer that a test lets run out.

    A named entry whose last statement is deleted stays as an empty entry, as ``unit 0;`` does.
    """

    NAMED = re.compile(
        r"(class-of-service (?:schedulers|scheduler-maps|drop-profiles|classifiers dscp|forwarding-classes class) \S+"
        r"|class-of-service interfaces \S+(?: unit \S+)?)"
    )
    SINGLE = re.compile(r".* (scheduler-map|classifiers dscp|priority|queue-num|transmit-rate percent|host-name) \S+$")

    def __init__(self, lines: tuple[str, ...] = ()) -> None:
        self.active = ["system host-name leaf1", *lines]
        self.candidate = list(self.active)
        self.history: list[list[str]] = []
        self.lock: int | None = None
        self.timer = ""
        self.before_timer: list[str] = []
        self.sessions = 0
        self.commits: list[str] = []
        self.shows: dict[str, str] = {}

    def time_out(self) -> None:
        """The confirmed commit's minutes are over."""
        assert self.timer
        self.active, self.timer = list(self.before_timer), ""
        self.candidate = list(self.active)

    def answer(self, session: int, rpc: ElementTree.Element) -> str:
        """The inside of an rpc-reply, or ValueError."""
        name = _plain(rpc.tag)
        if name in ("lock-configuration", "unlock-configuration"):
            if self.lock not in (None, session):
                raise ValueError("configuration database locked by another session")
            self.lock = session if name == "lock-configuration" else None
            return "<ok/>"
        if name == "load-configuration":
            return self._load(session, rpc)
        if name == "get-configuration":
            return self._get(rpc)
        if name == "commit-configuration":
            return self._commit(rpc)
        if name == "close-session":
            return "<ok/>"
        if name == "command" and rpc.get("format") == "text" and (rpc.text or "") in self.shows:
            return f"<output>{self.shows[rpc.text or '']}</output>"
        raise ValueError(f"syntax error: {name}")

    def leave(self, session: int) -> None:
        """A session that ends gives its lock back, and loses what it did not commit."""
        if self.lock == session:
            self.lock, self.candidate = None, list(self.active)

    def _load(self, session: int, rpc: ElementTree.Element) -> str:
        if self.lock not in (None, session):
            raise ValueError("configuration database locked by another session")
        if rpc.get("rollback") is not None:
            back = int(rpc.get("rollback", "0"))
            self.candidate = list(self.active if back == 0 else self.history[-back])
            return "<load-configuration-results><ok/></load-configuration-results>"
        for line in (rpc.findtext("{*}configuration-set") or "").splitlines():
            if line.strip():
                self._edit(line.strip())
        return "<load-configuration-results><ok/></load-configuration-results>"

    def _edit(self, line: str) -> None:
        verb, _, path = line.partition(" ")
        if verb == "set":
            if not path.startswith("class-of-service ") or "nonsense" in path:
                raise ValueError(f"syntax error: {path}")
            if self.SINGLE.fullmatch(path):
                head = path.rpartition(" ")[0]
                self.candidate = [known for known in self.candidate if known.rpartition(" ")[0] != head]
            self.candidate = [known for known in self.candidate if not path.startswith(f"{known} ")]
            if path not in self.candidate:
                self.candidate.append(path)
            return
        if verb != "delete":
            raise ValueError(f"unknown command: {line}")
        kept = [known for known in self.candidate if known != path and not known.startswith(f"{path} ")]
        if len(kept) == len(self.candidate):
            raise ValueError(f"warning: statement not found: {path}")
        entry = self.NAMED.match(path)
        if entry and entry[0] != path and not any(known.startswith(entry[0]) for known in kept):
            kept.append(entry[0])
        self.candidate = kept

    def _get(self, rpc: ElementTree.Element) -> str:
        if rpc.get("compare"):
            lines = difflib.unified_diff(self.active, self.candidate, lineterm="", n=0)
            text = "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))
            return (
                f"<configuration-information><configuration-output>\n{text}\n</configuration-output>"
                "</configuration-information>"
            )
        if rpc.get("format") == "set":
            text = "\n".join(f"set {line}" for line in self.active)
            return f"<configuration-set>\n{text}\n</configuration-set>"
        raise ValueError("only compare and format=set are served here")

    def _commit(self, rpc: ElementTree.Element) -> str:
        for path in self.candidate:
            bound = re.match(r"class-of-service interfaces \S+ scheduler-map (\S+)", path)
            if bound and not any(known.startswith(f"class-of-service scheduler-maps {bound[1]} ") for known in
                                 self.candidate):  # fmt: skip
                raise ValueError(f"scheduler-map {bound[1]} is not defined; commit failed")
        minutes = rpc.findtext("{*}confirm-timeout") or ""
        if rpc.find("{*}confirmed") is not None:
            self.timer, self.before_timer = minutes or "10", list(self.active)
        else:
            self.timer = ""
        self.commits.append(minutes)
        if self.candidate != self.active:
            self.history.append(list(self.active))
            self.active = list(self.candidate)
        return "<ok/>"


def _plain(tag: str) -> str:
    return tag.rpartition("}")[2]


_END = "]]>]]>"
_HELLO = (
    '<hello xmlns="urn:ietf:params:xml:ns:netconf:base:1.0"><capabilities>'
    "<capability>urn:ietf:params:netconf:base:1.0</capability>"
    "<capability>urn:ietf:params:netconf:capability:candidate:1.0</capability>"
    "<capability>http://xml.juniper.net/netconf/junos/1.0</capability>"
    "</capabilities><session-id>{session}</session-id></hello>"
)


async def _speak(device: Junos, process: Any) -> None:
    """One NETCONF 1.0 session."""
    device.sessions += 1
    session, text = device.sessions, ""
    process.stdout.write(_HELLO.format(session=session) + _END)
    try:
        while received := await process.stdin.read(65536):
            text += received
            while _END in text:
                message, _, text = text.partition(_END)
                root = ElementTree.fromstring(message.strip())
                if _plain(root.tag) != "rpc":
                    continue
                process.stdout.write(_replied(device, session, root) + _END)
                if _plain(root[0].tag) == "close-session":
                    return
    finally:
        device.leave(session)
        process.exit(0)


def _replied(device: Junos, session: int, root: ElementTree.Element) -> str:
    try:
        inside = device.answer(session, root[0])
    except (ValueError, IndexError) as error:
        kind = "warning" if str(error).startswith("warning") else "error"
        inside = (
            f"<rpc-error><error-type>protocol</error-type><error-tag>operation-failed</error-tag>"
            f"<error-severity>{kind}</error-severity><error-message>{error}</error-message></rpc-error>"
        )
    number = root.get("message-id", "")
    return f'<rpc-reply xmlns="urn:ietf:params:xml:ns:netconf:base:1.0" message-id="{number}">{inside}</rpc-reply>'


@contextlib.contextmanager
def netconf(device: Junos, password: str, folder: Path) -> Iterator[tuple[int, Path]]:
    """(port, known_hosts) of a NETCONF server on loopback."""

    async def handle(process: Any) -> None:
        if process.subsystem == "netconf":
            await _speak(device, process)
        else:
            process.exit(1)

    with ssh(folder, password, handle) as (port, known):
        yield port, known
