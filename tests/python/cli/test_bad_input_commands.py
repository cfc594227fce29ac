"""Bad input to every command, as a person meets it: one clear error, nothing left, an exit code that is not 0."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm_commands
from checks import assert_names

from mlt.job.rendezvous import VERSION
from mlt.job.secret import Prover

ROOT = Path(__file__).resolve().parents[3]
MLT = [sys.executable, "-m", "mlt.cli.main"]
CLUSTER = str(ROOT / "examples" / "planners" / "testbed.yaml")
POLICY = str(ROOT / "examples" / "switch" / "paper-testbed.yaml")
# Root without any right, and the user "nobody": whichever this machine can make.
UNPRIVILEGED = (["setpriv", "--inh-caps=-all", "--bounding-set=-all"], ["unshare", "--user"])


def run(
    *words: str, prefix: tuple[str, ...] = (), cwd: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """``mlt WORDS`` to its end, as a member of no job; nothing that it says is wrapped."""
    env = warm_commands.own_environment(COLUMNS="300", **environ)
    if not prefix:
        return warm_commands.run(words, env, cwd=cwd)
    return subprocess.run(
        [*prefix, *MLT, *words],
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str], cause: str) -> None:
    assert done.returncode not in (0, None), done.stdout + done.stderr
    assert cause in done.stderr + done.stdout
    assert "Traceback" not in done.stderr + done.stdout
    assert done.returncode > 0  # not killed


SERVE = ("serve", "--world-size", "1", "--rendezvous-port", "25999", "--connect-timeout", "1", "--master-addr")


@pytest.mark.parametrize(
    ("environ", "words", "cause"),
    [
        (
            {"MLT_INTERFACE": "wlan9"},
            (),
            "interface (MLT_INTERFACE) is 'wlan9'",
        ),
        ({}, ("--interface", "10.99.0.0/16"), "is '10.99.0.0/16'"),
        ({}, ("--interface", "eth0,,lo"), "an entry is empty"),
        ({"MLT_HOST": "203.0.113.9"}, (), "host (MLT_HOST) is '203.0.113.9'"),
        ({}, ("--host", "fe80::1"), "fe80::1 is link-local"),
        ({}, ("--host", "0.0.0.0"), "peers cannot connect to"),
        ({}, ("--host", "127.0.0.1", "--interface", "lo"), "give one of them"),
        ({"MLT_INTERFACE": "wlan9"}, ("--host", "127.0.0.1"), "no rendezvous with rank 0"),  # the address goes first
    ],
)
def test_serve__wrong_interface(environ: dict[str, str], words: tuple[str, ...], cause: str) -> None:
    refused(run(*SERVE, "127.0.0.1", *words, **environ), cause)


def test_serve__rank_0_that_is_nowhere() -> None:
    refused(
        run(*SERVE, "127.0.0.1"), "no rendezvous with rank 0 at 127.0.0.1:25999 within 1 s (last: Connection refused)"
    )
    refused(run(*SERVE, "no.such.host.invalid"), "MASTER_ADDR 'no.such.host.invalid' does not resolve")


@contextlib.contextmanager
def rank_0(hello: bytes) -> Iterator[int]:
    """A rank 0 that meets rank 1 and then says ``hello`` to every client; its rendezvous port."""
    rendezvous, control = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    closing: list[socket.socket] = []

    def meet() -> None:
        connection, _ = rendezvous.accept()
        with connection, connection.makefile("rwb", buffering=0) as stream:
            prover = Prover(None, "rendezvous", role="host")
            assert prover.meet(json.loads(stream.readline())["nonce"])
            opening = {"mlt_rendezvous": VERSION, "nonce": prover.nonce, "proof": prover.prove()}
            stream.write(json.dumps(opening).encode() + b"\n")
            own = json.loads(json.loads(stream.readline())["content"])
            table = [[0, "127.0.0.1", control.getsockname()[1]], [1, own["host"], own["port"]]]
            content = json.dumps({"ranks": table})
            stream.write(json.dumps({"content": content, "proof": prover.prove(content)}).encode() + b"\n")

    def greet() -> None:
        connection, _ = control.accept()
        closing.append(connection)
        with contextlib.suppress(OSError):
            connection.sendall(hello)
            while connection.recv(4_096):
                pass

    threads = [threading.Thread(target=one, daemon=True) for one in (meet, greet)]
    for thread in threads:
        thread.start()
    try:
        yield int(rendezvous.getsockname()[1])
    finally:
        for one in (rendezvous, control, *closing):
            one.close()
        for thread in threads:
            thread.join(5)


@pytest.mark.parametrize("newer", [-1, 1, 1_000])
def test_serve__a_peer_of_another_version(newer: int) -> None:
    version = pytest.importorskip("mlt._core").PROTOCOL_VERSION + newer
    # src/io/control/control_frame.h: length, type, three zero bytes; "MLT1", version, two zero bytes.
    prefix = struct.pack("<IB3xIHH", 72, 1, 0x31544C4D, version, 0)
    with rank_0(prefix + bytes(64)) as port:
        words = ("--world-size", "1", "--rendezvous-port", str(port), "--connect-timeout", "20")
        done = run("serve", *words, "--master-addr", "127.0.0.1")
    refused(done, "version")
    assert "rank 1: " in done.stderr
    assert "rank 0" in done.stderr
    assert str(version) in done.stderr


def rank_0_at(port: str) -> list[str]:
    code = f"import mlt; mlt.Context(rank=0, world_size=2, master_addr='127.0.0.1', rendezvous_port={port})"
    return [sys.executable, "-c", code]


def test_rank_0__a_rendezvous_port_in_use() -> None:
    pytest.importorskip("mlt._core")
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        done = subprocess.run(rank_0_at(port), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert_names(done.stderr, "rank 0", f"127.0.0.1:{port}", "MASTER_PORT + 1000")


@pytest.fixture(params=UNPRIVILEGED, ids=["no-rights", "nobody"])
def nobody(request: pytest.FixtureRequest) -> tuple[str, ...]:
    prefix = tuple(request.param)
    if (
        shutil.which(prefix[0]) is None
        or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip(f"{prefix[0]} cannot drop rights here")
    return prefix


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("testbed", "up", "--hosts", "2"), "CAP_NET_ADMIN"),
        (("testbed", "down"), "CAP_NET_ADMIN"),
        (("testbed", "exec", "--name", "nosuchbed", "host0", "--", "true"), "no testbed named 'nosuchbed'"),
        (("doctor", "--serve", "--port", "80"), "--port above 1023"),
    ],
)
def test_no_privilege__is_named_with_its_fix(nobody: tuple[str, ...], words: tuple[str, ...], cause: str) -> None:
    if "80" in words and int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 80:
        pytest.skip("anybody may listen at port 80 here")
    refused(run(*words, prefix=nobody, XDG_RUNTIME_DIR="/nonexistent"), cause)


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("demo", "--workers", "0"), "--workers is 0"),
        (("demo", "--loss", "2"), "--loss '2'"),
        (("demo", "--steps", "2", "--output", "/proc/no"), "/proc/no: cannot be written"),
        (("plan", "auto", "/no/file", "vgg19"), "/no/file: cannot be read"),
        (("plan", "auto", CLUSTER, "nomodel"), "no job is named 'nomodel'"),
        (("plan", "assign", CLUSTER, "-o", "/proc/no/plan.json"), "/proc/no/plan.json: cannot be written"),
        (("plan", "route", CLUSTER, "-o", "/proc/no/plan.json"), "/proc/no/plan.json: cannot be written"),
        (("plan", "check", "/etc/hostname"), "/etc/hostname"),
        (("switch", "generate", "/no/file", "-t", "sonic"), "/no/file: cannot be read"),
        (("switch", "generate", POLICY, "-t", "acme"), "unknown target 'acme'"),
        (("switch", "generate", POLICY, "-t", "sonic", "-o", "/proc/no"), "/proc"),
        (("testbed", "run", "--hosts", "0", "--", "true"), "expected an integer from 1 to 64"),
        (("testbed", "run", "--hosts", "2"), "after --"),
        (("testbed", "status", "--name", "nosuchbed"), "no testbed named 'nosuchbed'"),
        (("testbed", "run", "--hosts", "2", "--policy", "/no/file", "--", "true"), "/no/file"),
        (("doctor", "no.such.host.invalid"), "no.such.host.invalid does not resolve"),
        (("nonsense",), "No such command 'nonsense'"),
    ],
)
def test_wrong_arguments__are_rejected(words: tuple[str, ...], cause: str, tmp_path: Path) -> None:
    if words[0] == "demo":
        pytest.importorskip("torch")
        pytest.importorskip("matplotlib")
    if words[0] == "plan":
        pytest.importorskip("highspy")
    refused(run(*words, cwd=tmp_path), cause)
    assert list(tmp_path.iterdir()) == []


READ_A_FILE = [
    ("plan", "check", "FILE"),
    ("plan", "check", "FILE", "--against", CLUSTER),
    ("plan", "show", CLUSTER, "FILE"),
    ("switch", "check", "FILE"),
    ("switch", "generate", "FILE", "-t", "eos"),
    ("switch", "generate", POLICY, "-t", "eos", "--running", "FILE"),
    ("switch", "rollback", POLICY, "-t", "eos", "--running", "FILE"),
    ("switch", "diff", POLICY, "FILE", "-t", "eos"),
    ("switch", "verify", POLICY, "-t", "eos", "--input", "FILE"),
    ("switch", "policy", "--layers", "FILE", "--buffer", "1MB", "--rate", "10gbit", "--ports", "1"),
    ("switch", "apply", "FILE", "leaf.invalid", "-t", "eos"),
    ("switch", "verify", "FILE", "-t", "eos", "--switch", "leaf.invalid"),
    ("testbed", "run", "--topology", "FILE", "--", "true"),
    ("doctor", "--switch", "leaf.invalid", "--policy", "FILE"),
]


@pytest.mark.parametrize("words", READ_A_FILE, ids=" ".join)
def test_input_files__that_cannot_be_read_are_named_in_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"{\n\xd0\xff\n}")
    (tmp_path / "folder").mkdir()
    for name, cause in (("binary", "not UTF-8 text"), ("folder", "Is a directory"), ("nothing", "No such file")):
        done = run(*(str(tmp_path / name) if word == "FILE" else word for word in words))
        assert done.returncode == 2, done.stderr
        (line, *_) = [one for one in done.stderr.splitlines() if name in one]
        assert f"{tmp_path / name}: cannot be read: {cause}" in line
        assert "Traceback" not in done.stderr
        assert "Errno" not in done.stderr


def test_demo__a_wrong_interface_is_rejected_before_anything_starts(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    done = run("demo", "--steps", "2", cwd=tmp_path, MLT_INTERFACE="wlan9")
    refused(done, "error: interface (MLT_INTERFACE) is 'wlan9', which leaves no interface; candidates: ")
    assert list(tmp_path.iterdir()) == []


def test_no_privilege__rank_0_cannot_listen(nobody: tuple[str, ...]) -> None:
    pytest.importorskip("mlt._core")
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 80:
        pytest.skip("anybody may listen at port 80 here")
    done = subprocess.run([*nobody, *rank_0_at("80")], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert_names(done.stderr, "rank 0", "127.0.0.1:80", "Permission denied")
