"""Servers that speak the devices' protocols, started by the tests: SSH with SONiC's commands, NVUE's REST, eAPI, gNMI.

They keep a configuration and validate requests. None is a device, so they show nothing about devices.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import re
import ssl
import stat
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from push_lab import USER

from mlt.switch_push.on_shell import DEVICE_FOLDER

# A CONFIG_DB in a file, and SONiC's commands over it: apply-patch is RFC 6902 and all or nothing.
SONIC = """#!{python}
import json, os, sys
db, name, words = {db!r}, os.path.basename(sys.argv[0]), sys.argv[1:]
def read(path): return json.load(open(path))
def write(path, body):
    with open(path + ".new", "w") as file: file.write(json.dumps(body))
    os.replace(path + ".new", path)
def apply(tree, patch):
    for step in patch:
        parts = [p.replace("~1", "/").replace("~0", "~") for p in step["path"].split("/")[1:]]
        at = tree
        for part in parts[:-1]: at = at[part]
        if step["op"] in ("remove", "replace") and parts[-1] not in at: raise KeyError(step["path"])
        if step["op"] == "remove": del at[parts[-1]]
        else: at[parts[-1]] = step["value"]
    return tree
try:
    if name == "sonic-cfggen": print(json.dumps(read(db)))
    elif name == "show": print(open(db + ".show").read())
    elif name == "sonic-db-cli":
        tree, (table, _, key) = read(db), words[2].partition("|")
        if words[1] == "DEL": del tree[table][key]
        else: [tree[table][key].pop(field) for field in words[3:]]
        write(db, {{table: entries for table, entries in tree.items() if entries}})  # Redis keeps no empty table
    elif words[:2] == ["load", "-y"]:
        tree = read(db)
        for table, entries in read(words[2]).items():
            for key, entry in entries.items(): tree.setdefault(table, {{}}).setdefault(key, {{}}).update(entry)
        write(db, tree)
    elif words[0] == "checkpoint": write(db + "." + words[1], read(db))
    elif words[0] == "delete-checkpoint": os.unlink(db + "." + words[1])
    elif words[0] == "rollback": write(db, read(db + "." + words[1]))
    elif words[0] == "apply-patch":
        if os.path.exists(db + ".refuses"): sys.exit("Failed to apply patch: illegal operation")
        tree = apply(read(db), read(words[-1]))
        if "--dry-run" not in words: write(db, tree)
        print("Patch applied successfully.")
    else: sys.exit("Usage: config ...")
except (KeyError, OSError) as error:
    sys.exit("Failed to apply patch: " + repr(error))
"""


@contextlib.contextmanager
def ssh(folder: Path, password: str, handle: Callable[[Any], Coroutine[Any, Any, None]]) -> Iterator[tuple[int, Path]]:
    """(port, known_hosts): an SSH server on loopback whose only user has ``password``; ``handle`` serves a session."""
    asyncssh: Any = import_module("asyncssh")

    class Server(asyncssh.SSHServer):  # type: ignore[misc, name-defined]
        def begin_auth(self, username: str) -> bool:
            return True

        def password_auth_supported(self) -> bool:
            return True

        def validate_password(self, username: str, given: str) -> bool:
            return (username, given) == (USER, password)

    key = asyncssh.generate_private_key("ssh-ed25519")
    loop = asyncio.new_event_loop()

    async def start() -> Any:
        return await asyncssh.listen(
            "127.0.0.1", 0, server_factory=Server, server_host_keys=[key], process_factory=handle
        )

    server = loop.run_until_complete(start())
    port = server.sockets[0].getsockname()[1]
    known = folder / "known_hosts"
    known.write_text(f"[127.0.0.1]:{port} {key.export_public_key().decode()}", encoding="utf-8")
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield port, known
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


@contextlib.contextmanager
def sonic_over_ssh(folder: Path, password: str, tables: dict[str, Any]) -> Iterator[tuple[int, Path, Path]]:
    """(port, CONFIG_DB's file, known_hosts): a real SSH server whose commands run in a real shell.

    The files that mlt keeps on a device are in ``folder``, so that concurrent tests do not share them.
    """

    def at_home(text: str) -> str:
        return text.replace(DEVICE_FOLDER, f"{folder}/mlt-switch")

    tools, db = folder / "bin", folder / "config_db.json"
    tools.mkdir()
    db.write_text(json.dumps(tables), encoding="utf-8")
    for name in ("sonic-cfggen", "config", "show", "sonic-db-cli"):
        program = tools / name
        program.write_text(SONIC.format(python=sys.executable, db=str(db)), encoding="utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environ = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}

    async def handle(process: Any) -> None:
        child = await asyncio.create_subprocess_shell(
            at_home(process.command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environ,
        )
        body = await process.stdin.read()
        out, err = await child.communicate(at_home(body).encode())
        process.stdout.write(out.decode())
        process.stderr.write(err.decode())
        process.exit(child.returncode)

    with ssh(folder, password, handle) as (port, known):
        yield port, db, known


@contextlib.contextmanager
def http(
    handle: Callable[[str, str, Any, dict[str, str]], tuple[int, Any]], *, certificate: Path | None = None
) -> Iterator[int]:
    """A JSON server on loopback: ``handle(method, path, body, headers)`` gives status and body; ``certificate`` (and
    key, PEM): over TLS."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def serve(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(size) if size else b""
            status, body = handle(self.command, self.path, json.loads(raw) if raw else None, dict(self.headers))
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = serve

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def merged(now: Any, patch: Any) -> Any:
    if isinstance(now, dict) and isinstance(patch, dict):
        found = {**now, **{key: merged(now.get(key), value) for key, value in patch.items()}}
        return {key: value for key, value in found.items() if value is not None}
    if isinstance(now, list) and isinstance(patch, list) and all(isinstance(one, dict) for one in (*now, *patch)):
        entries = {next(iter(one.values())): one for one in now}  # a YANG list's key comes first
        for one in patch:
            key = next(iter(one.values()))
            entries[key] = merged(entries.get(key), one)
        return list(entries.values())
    return patch


class Nvue:
    """Revisions of a tree; one is applied. ``refuses``: an apply ends in that state."""

    def __init__(self, tree: dict[str, Any], authorization: str) -> None:
        self.revisions: dict[str, dict[str, Any]] = {"1": {"state": "applied", "tree": tree}}
        self.stats: dict[str, Any] = {}  # of each port's queues
        self.authorization = authorization
        self.refuses = ""

    @property
    def applied(self) -> dict[str, Any]:
        return next(one["tree"] for one in self.revisions.values() if one["state"] == "applied")

    def __call__(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        if headers.get("Authorization") != self.authorization:
            return 401, {"detail": "who are you"}
        url = urlsplit(path)
        words = [unquote(word) for word in url.path.removeprefix("/nvue_v1").strip("/").split("/") if word]
        rev = parse_qs(url.query).get("rev", [""])[0]
        if words[:1] == ["revision"]:
            return self._revision(method, words[1:], body)
        if words[:1] == ["interface"] and words[2:] == ["counters", "qos", "egress-queue-stats"]:
            known = method == "GET" and rev == "operational" and words[1] in self.stats
            return (200, self.stats[words[1]]) if known else (404, {"detail": f"no interface {words[1]}"})
        if method == "GET" and rev == "applied":
            return 200, self.applied
        one = self.revisions.get(rev)
        if one is None or (method != "GET" and one["state"] != "pending"):
            return 404, {"detail": f"no pending revision {rev}"}
        if method == "PATCH" and not words:
            one["tree"] = merged(one["tree"], body)
        elif method == "DELETE" and words and body == {}:
            at = one["tree"]
            for word in words[:-1]:
                at = at.get(word, {})
            at.pop(words[-1], None)
        return 200, one["tree"]

    def _revision(self, method: str, words: list[str], body: Any) -> tuple[int, Any]:
        if method == "POST":
            name = f"changeset/{USER}/{len(self.revisions)}"
            self.revisions[name] = {"state": "pending", "tree": copy.deepcopy(self.applied)}
            return 200, {name: {"state": "pending"}}
        if not words:
            return 200, {name: {"state": one["state"]} for name, one in self.revisions.items()}
        one = self.revisions.get(words[0])
        if one is None:
            return 404, {"detail": f"no revision {words[0]}"}
        if method == "DELETE":
            del self.revisions[words[0]]
        elif method == "PATCH" and body["state"] == "apply":
            if self.refuses:
                one["state"] = self.refuses
            else:
                for other in self.revisions.values():
                    other["state"] = "inactive" if other["state"] == "applied" else other["state"]
                one["state"] = "applied"
        return 200, {"state": one["state"]}


class Eapi:
    """Arista's JSON-RPC with configuration sessions and a commit timer that only the test lets run out."""

    SECTION = re.compile(r"interface |qos profile |hostname |qos map ")

    def __init__(self, tree: dict[str, list[str]] | None = None) -> None:
        self.tree: dict[str, list[str]] = {"hostname leaf1": [], **(tree or {})}
        self.sessions: dict[str, list[str]] = {}
        self.pending: dict[str, dict[str, list[str]]] = {}
        self.saved: dict[str, list[str]] = {}
        self.session = ""
        self.timers: list[str] = []
        self.shows: dict[str, Any] = {}  # a text, or an object where JSON is asked for

    @property
    def running(self) -> list[str]:
        return self._lines(self.tree)

    @staticmethod
    def _lines(tree: dict[str, list[str]]) -> list[str]:
        return [line for top, inner in tree.items() for line in (top, *(f"   {each}" for each in inner))]

    def __call__(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        results = []
        self.session = ""
        for number, entry in enumerate(body["params"]["cmds"]):
            command = entry["cmd"] if isinstance(entry, dict) else entry
            try:
                results.append(self._run(command.strip(), body["params"].get("format", "json")))
            except ValueError as error:
                failed = {"code": 1002, "message": f"CLI command {number + 1} failed: {error}", "data": [*results, {}]}
                return 200, {"jsonrpc": "2.0", "id": body["id"], "error": failed}
        return 200, {"jsonrpc": "2.0", "id": body["id"], "result": results}

    def _run(self, command: str, form: str) -> dict[str, Any]:
        words = command.split()
        if command in self.shows:
            said = self.shows[command]
            if isinstance(said, str) == (form == "json"):
                raise ValueError("unconverted command")
            return {"output": said} if form == "text" else said
        if command == "show version":
            return {"version": "4.30.1F"}
        if command == "show running-config":
            return {"output": "\n".join(self.running)}
        if command.startswith("show configuration sessions"):
            return {"sessions": {name: {"state": "pendingCommitTimer"} for name in self.pending}}
        if words[:2] == ["show", "session-config"]:
            then = self._lines(self._edited(self.sessions[words[3]]))
            lines = [line for line in then if line not in self.running]
            return {"output": "--- system:/running-config\n+++ session\n" + "\n".join(f"+{line}" for line in lines)}
        if words[:2] == ["configure", "session"]:
            self._session(words[2], words[3:])
        elif words[:2] == ["configure", "replace"]:
            self.tree = copy.deepcopy(self.saved)
        elif words[0] == "copy":
            self.saved = copy.deepcopy(self.tree)
        elif self.session and command != "end":
            if command.startswith("random-detect ecn minimum-threshold 999"):
                raise ValueError("Invalid input")
            self.sessions[self.session].append(command)
        return {"output": ""}

    def _edited(self, lines: list[str]) -> dict[str, list[str]]:
        """A code point has one traffic class; "no qos map dscp" takes the code points without their class."""
        tree, inner = copy.deepcopy(self.tree), [""]
        for line in lines:
            no, plain = line.startswith("no "), line.removeprefix("no ")
            if plain.startswith("qos map dscp "):
                points, _, rest = plain.removeprefix("qos map dscp ").partition(" to ")
                for point in points.split():
                    for known in [known for known in tree if known.startswith(f"qos map dscp {point} ")]:
                        del tree[known]
                    if not no:
                        tree[f"qos map dscp {point} to {rest}"] = []
            elif self.SECTION.match(plain):
                inner = tree.setdefault(plain, [])
                if no:
                    del tree[plain]
            elif no:
                inner.remove(plain)
            else:
                if plain.startswith("service-profile "):
                    inner[:] = [known for known in inner if not known.startswith("service-profile ")]
                inner.append(plain)
        # Interfaces are hardware: an empty section is no configuration.
        return {top: lines for top, lines in tree.items() if lines or not top.startswith("interface ")}

    def _session(self, name: str, rest: list[str]) -> None:
        if not rest:
            self.session = name
            self.sessions.setdefault(name, [])
        elif rest == ["abort"]:
            self.sessions.pop(name, None)
            if name in self.pending:
                self.tree = self.pending.pop(name)
        elif rest[0] == "commit" and name in self.pending:
            del self.pending[name]
        elif rest[0] == "commit":
            if rest[1:2] == ["timer"]:
                self.timers.append(rest[2])
                self.pending[name] = self.tree
            self.tree = self._edited(self.sessions[name])


@contextlib.contextmanager
def gnmi(tree: dict[str, Any], states: dict[str, dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(port, its store with key "qos"): Capabilities, Get, Set and Subscribe of /qos over plain gRPC."""
    grpc: Any = import_module("grpc")
    messages: Any = import_module("pygnmi.spec.v080.gnmi_pb2")
    services: Any = import_module("pygnmi.spec.v080.gnmi_pb2_grpc")
    store: dict[str, Any] = {"qos": tree, "refuses": "", "sets": []}

    class Servicer(services.gNMIServicer):  # type: ignore[misc, name-defined]
        def Capabilities(self, request: Any, context: Any) -> Any:
            return messages.CapabilityResponse(gNMI_version="0.8.0", supported_encodings=[4])

        def Get(self, request: Any, context: Any) -> Any:
            value = messages.TypedValue(json_ietf_val=json.dumps(store["qos"]).encode())
            update = messages.Update(path=request.path[0], val=value)
            return messages.GetResponse(notification=[messages.Notification(timestamp=1, update=[update])])

        def Set(self, request: Any, context: Any) -> Any:
            if store["refuses"]:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, store["refuses"])
            store["sets"].append(request)
            results = []
            for update in (*request.replace, *request.update):
                body = json.loads(update.val.json_ietf_val)
                plain = {key.partition(":")[2] or key: value for key, value in body.items()}
                store["qos"] = plain if update in request.replace else merged(store["qos"], plain)
                results.append(messages.UpdateResult(path=update.path))
            for path in request.delete:
                if len(path.elem) == 1:
                    store["qos"] = {}
                results.append(messages.UpdateResult(path=path, op=messages.UpdateResult.DELETE))
            return messages.SetResponse(response=results)

        def Subscribe(self, requests: Any, context: Any) -> Any:
            next(requests)
            for path, state in states.items():
                elements = []
                for part in path.split("/"):
                    name, _, keys = part.partition("[")
                    key = dict([keys.rstrip("]").split("=")]) if keys else {}
                    elements.append(messages.PathElem(name=name, key=key))
                value = messages.TypedValue(json_ietf_val=json.dumps(state).encode())
                update = messages.Update(path=messages.Path(elem=elements), val=value)
                yield messages.SubscribeResponse(update=messages.Notification(timestamp=1, update=[update]))
            yield messages.SubscribeResponse(sync_response=True)

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    services.add_gNMIServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port, store
    finally:
        server.stop(None).wait(5)
