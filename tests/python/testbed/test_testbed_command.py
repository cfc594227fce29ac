"""``mlt testbed`` rejects bad input before it changes anything, in one line that names the fix."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest
from checks import assert_names
from testbed_lab import MLT, POLICY, command, leftovers, needs_testbed

from mlt.testbed import Testbed, state


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["run", "--", "true"], "--hosts"),
        (["run", "--hosts", "2"], "no command"),
        (["run", "--hosts", "0", "--", "true"], "--hosts '0'"),
        (["run", "--hosts", "2", "--loss", "200%", "--", "true"], "between 0% and 100%"),
        (
            ["run", "--hosts", "2", "--rate", "fast", "--", "true"],
            "--rate 'fast'",
        ),
        (
            ["run", "--hosts", "2", "--buffer", "0", "--", "true"],
            "--buffer '0'",
        ),
        (["run", "--hosts", "2", "--policy", "nowhere.yaml", "--", "true"], "nowhere.yaml"),
        (["run", "--hosts", "2", "--name", "../x", "--", "true"], "letters, digits"),
        (["run", "--topology", "nowhere.yaml", "--", "true"], "nowhere.yaml: cannot be read"),
        (["up", "--hosts", "2", "--leaves", "2"], "need spines"),
        (["exec", "--name", "nobody", "host0", "--", "true"], "no testbed named 'nobody'"),
        (["status", "--name", "nobody"], "no testbed named 'nobody'"),
        (["set", "--name", "nobody", "--loss", "1%"], "no testbed named 'nobody'"),
        (["set", "--name", "nobody"], "nothing to set"),
        (["set", "--break"], "need a LINK"),
        (["set", "host0", "--break", "--heal"], "at once"),
        (["set", "--loss", "1%", "--direction", "up"], "goes with --loss, --delay or --jitter, and a LINK"),
        (["down", "--name", "nobody"], "no testbed named 'nobody'"),
    ],
)
def test_command__rejects_with_a_reason(words: list[str], text: str) -> None:
    done = command(*words)
    # What is wrong with the words, or with the testbeds that there are.
    assert done.returncode == (1 if text.startswith("no testbed named") else 2), done.stdout + done.stderr
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr
    if os.geteuid() == 0 or words[0] != "down":
        assert text in done.stderr


def test_schema__is_json() -> None:
    assert "hosts" in json.loads(command("schema").stdout)["properties"]


def test_run__names_the_package_of_a_missing_program(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    # A PATH without tc: everything else is reached through it.
    for program in ("nsenter", "unshare", "setpriv", "true"):
        (tmp_path / program).symlink_to(f"/usr/bin/{program}")
    env = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(
        [*MLT, "run", "--hosts", "2", "--", "true"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert_names(done.stderr, "tc is not installed", "apt-get install iproute2")


NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps", "-all"]


def as_nobody(*words: str) -> subprocess.CompletedProcess[str]:
    """Run as nobody, with this Python's packages: the interpreter itself may lie where nobody may not look."""
    path = os.pathsep.join([*os.environ.get("PYTHONPATH", "").split(os.pathsep), sysconfig.get_path("purelib")])
    env = {**os.environ, "PYTHONPATH": path, "HOME": "/nonexistent"}
    # Through a shell: setpriv itself still has the rights that its child lacks.
    return subprocess.run(
        [*NOBODY, "sh", "-c", 'exec "$@"', "sh", *words], env=env, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


@needs_testbed
def test_run__without_root_uses_what_a_user_namespace_allows() -> None:
    """Runs as nobody: plain queues, the default too, and delays work; the error for what needs programs names the
    remedy."""
    module = ["-m", "mlt.cli.main", "testbed"]
    pythons = [sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"]
    python = next((one for one in pythons if as_nobody(one, *module, "schema").returncode == 0), None)
    if python is None:
        pytest.skip("nobody may not run this Python")
    if as_nobody("unshare", "-Urnm", "true").returncode != 0:
        pytest.skip("user namespaces are off here")
    mlt = [python, *module]
    done = as_nobody(
        *mlt, "run", "--hosts", "2", "--queue", "fifo", "--delay", "5ms", "--", "sh", "-c", "echo $MASTER_ADDR"
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 10.77.0.1", "[1] 10.77.0.1"]
    plain = as_nobody(*mlt, "run", "--hosts", "2", "--", "true")
    assert plain.returncode == 0, plain.stderr
    assert_names(plain.stderr, "--queue fifo", "need real root")
    asked = as_nobody(*mlt, "run", "--hosts", "2", "--queue", "ebpf", "--", "true")
    assert asked.returncode == 1
    assert_names(asked.stderr, "need real root", "run with sudo", "leave --queue out")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as policy:  # the checkout may lie where nobody may not look
        policy.write(POLICY.read_text(encoding="utf-8"))
        policy.flush()
        Path(policy.name).chmod(0o644)
        classes = as_nobody(*mlt, "run", "--hosts", "2", "--policy", policy.name, "--", "true")
    if classes.returncode == 0:  # a kernel with sch_prio and sch_red
        assert_names(classes.stderr, "--queue red", "need real root")
    else:
        assert_names(classes.stderr, "need real root", "run with sudo", "leave --policy out")
    stays = as_nobody(*mlt, "up", "--hosts", "2")
    assert stays.returncode == 1
    assert "needs root" in stays.stderr


def test_run__where_the_kernel_refuses_namespaces_names_the_sysctl() -> None:
    """In a user namespace that may have no other."""
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --inh-caps=-all --bounding-set=-all "$@"'
    prefix = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh"]
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespace to try it in")
    done = subprocess.run(
        [*prefix, *MLT, "run", "--hosts", "2", "--", "true"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert_names(done.stderr, "CAP_NET_ADMIN", "unshare", "docker run --privileged", "user.max_user_namespaces=10000")
    assert len(done.stderr.splitlines()) == 1


@needs_testbed
def test_run__without_clang_uses_what_the_wheel_carries(tmp_path: Path) -> None:
    from mlt.testbed import programs

    shipped = [source for source in programs.sources() if (programs.HERE / "bpf" / source.object_name).exists()]
    for program in ("tc", "nsenter", "unshare", "setpriv", "true", "sh", "cut", "dirname", "uname"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    env = {**os.environ, "PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [*MLT, "run", "--hosts", "2", "--", "true"], env=env, capture_output=True, text=True, check=False
    )
    if len(shipped) == len(programs.sources()):
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 1
        assert_names(done.stderr, "clang is not installed", "apt-get install clang")
    assert not (tmp_path / "cache").exists()


@needs_testbed
def test_run__passes_the_switches_policy_to_the_command(tmp_path: Path) -> None:
    words = ["--", "sh", "-c", 'echo "policy ${MLT_QOS_POLICY-none}"']
    assert "[0] policy none" in command("run", "--hosts", "1", *words).stdout
    # A relative path would mean another file to a command that changes its directory.
    (tmp_path / "own.yaml").write_text(POLICY.read_text())
    relative = os.path.relpath(tmp_path / "own.yaml")
    done = command("run", "--hosts", "1", "--policy", relative, *words)
    assert f"[0] policy {tmp_path / 'own.yaml'}" in done.stdout


@needs_testbed
def test_up__its_testbed_is_of_this_user_and_needs_no_name() -> None:
    name = f"own-{os.getpid()}"
    try:
        assert command("up", "--name", name, "--hosts", "1", "--queue", "fifo").returncode == 0
        (own,) = (found for found in state.own() if found.name == name)
        assert own.user == state.user()
        if len(state.own()) > 1:
            pytest.skip("this machine has another testbed of this user")
        done = command("exec", "host0", "--", "sh", "-c", "echo $MLT_TESTBED")
        assert done.stdout == f"{name}\n"
        assert name in done.stderr
    finally:
        command("down", "--name", name)
    assert leftovers(name) == []


@needs_testbed
def test_status__watch_writes_the_tables_into_a_pipe_until_the_testbed_is_removed() -> None:
    with Testbed(hosts=2, name="watched"):
        words = [*MLT, "status", "--name", "watched", "--watch"]
        watching = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert watching.stdout
        shown = 0
        for line in watching.stdout:
            shown += "links of watched" in line
            if shown == 2:
                break
    watching.communicate(timeout=60)
    assert shown == 2
    assert watching.returncode == 0
