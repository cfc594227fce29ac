"""``mlt doctor``: each check says ok, or what is wrong and the command that fixes it."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import pytest
from checks import assert_names

from mlt._shared.extras import pip
from mlt.diagnosis import doctor
from mlt.diagnosis.doctor import Finding, examine
from mlt.job import interfaces
from mlt.job.interfaces import Interface


def only(check: object, *arguments: object) -> list[Finding]:
    return list(check(*arguments))  # type: ignore[operator]


def test_doctor__runs_here_and_its_exit_code_is_its_verdict() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mlt.cli.main", "doctor", "--json", "-"], capture_output=True, text=True, check=False
    )
    findings = json.loads(done.stdout)
    assert {"ok"} <= {finding["level"] for finding in findings} <= {"ok", "problem", "optional"}
    assert done.returncode == any(finding["level"] == "problem" for finding in findings)
    # Whatever is not ok comes with a way out.
    assert all(finding["fix"] for finding in findings if finding["level"] != "ok")


HERE = [
    Interface("lo", ("127.0.0.1",), 65_536, is_loopback=True),
    Interface("eth0", ("192.0.2.7",), 1_500, 10_000),
]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "interfaces", lambda: HERE)
    monkeypatch.setattr(
        interfaces, "source_towards", lambda host: "127.0.0.1" if host.startswith("127") else "192.0.2.7"
    )


def test_interface__rejects_an_address_of_another_host() -> None:
    (finding,) = only(doctor._interface, {"MLT_HOST": "203.0.113.9"})
    assert finding.level == "problem"
    assert_names(finding.what, "'203.0.113.9'", "candidates")
    assert "MLT_INTERFACE" in finding.fix


@pytest.mark.parametrize(
    "environ",
    [
        {"MLT_PEER_TIMEOUT": "bad"}, {"MLT_PATHS": "/nosuch"}, {"MLT_QOS_POLICY": "/nosuch"},
        {"MLT_JOB_SECRET": "short"}, {"MLT_MAX_TAGS": "-1"},
    ],
    ids=lambda environ: next(iter(environ)),
)  # fmt: skip
def test_variables__a_wrong_one_is_named(environ: dict[str, str]) -> None:
    pytest.importorskip("mlt._core")
    (finding,) = only(doctor._variables, environ)
    assert finding.level == "problem"
    assert next(iter(environ)) in finding.what


def test_variables__that_are_right_need_no_word() -> None:
    assert not only(doctor._variables, {"MLT_PEER_TIMEOUT": "5s", "MLT_PATHS": "2"})


@pytest.mark.usefixtures("machine")
def test_interface__rejects_a_choice_of_none() -> None:
    (finding,) = only(doctor._interface, {"MLT_INTERFACE": "ib0"})
    assert finding.level == "problem"
    assert_names(finding.what, "'ib0'", "eth0 192.0.2.7", "MTU 1500", "10000 Mbit/s")


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"MLT_INTERFACE": "eth"}, "interface eth0 192.0.2.7 (MTU 1500, 10000 Mbit/s): MLT_INTERFACE is eth"),
        ({"MASTER_ADDR": "198.51.100.1"}, "it routes to MASTER_ADDR 198.51.100.1"),
        (
            {},
            "interface eth0 192.0.2.7 (MTU 1500, 10000 Mbit/s): the default route leads there; MASTER_ADDR is not set",
        ),
        ({"MASTER_ADDR": "127.0.0.1"}, "it routes to MASTER_ADDR 127.0.0.1; no other host can reach it"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_interface__reports_the_choice_and_its_reason(environ: dict[str, str], text: str) -> None:
    (finding,) = only(doctor._interface, environ)
    assert finding.level == "ok"
    assert text in finding.what


@pytest.mark.usefixtures("machine")
def test_interface__a_name_that_is_loopback_here_is_taken_for_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.1.1", 1))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    (finding,) = only(doctor._interface, {"MASTER_ADDR": "node0"})
    assert finding == Finding("ok", "interface eth0 192.0.2.7 (MTU 1500, 10000 Mbit/s): it routes to MASTER_ADDR node0")


@pytest.mark.usefixtures("machine")
def test_interface__name_servers_that_do_not_answer_do_not_hold_it_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(60))
    began = time.monotonic()
    try:
        (finding,) = only(doctor._interface, {"MASTER_ADDR": "node0"})
    finally:
        over.set()
    assert time.monotonic() - began < 4  # 1 s on a quiet machine; a rank waits 30 s
    assert finding.level == "problem"
    assert_names(finding.what, "MASTER_ADDR 'node0' does not resolve", "name servers", "within 1 s")
    assert caplog.records == []


def test_interface__reports_a_missing_route(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(_host: str) -> str:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(interfaces, "source_towards", unreachable)
    (finding,) = only(doctor._interface, {"MASTER_ADDR": "198.51.100.1"})
    assert finding.level == "problem"
    assert_names(finding.what, "MASTER_ADDR", "'198.51.100.1'")
    (finding,) = only(doctor._interface, {})
    assert finding.level == "optional"


def test_buffers__gives_the_sysctl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_has_net_admin", lambda: False)
    monkeypatch.setattr(doctor, "SOCKET_BUFFER_BYTES", 1 << 40)
    findings = only(doctor._buffers)
    assert [finding.level for finding in findings] == ["problem"] * len(findings)
    assert all(finding.fix.startswith("sudo sysctl -w net.core.") for finding in findings)


def test_limits__too_few_files_and_too_little_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_NOFILE: 256, resource.RLIMIT_MEMLOCK: 65_536}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits[which], limits[which]))
    monkeypatch.setattr(doctor, "has_capability", lambda _: False)
    files, locked = only(doctor._limits)
    assert (files.level, files.fix, files.fix_is_command) == ("optional", "ulimit -n 65536", True)
    assert (locked.level, locked.fix, locked.fix_is_command) == ("optional", "ulimit -l unlimited", True)
    assert_names(locked.what, "64 KiB", "MLT_DATAPATH=xdp")
    limits.update({resource.RLIMIT_NOFILE: 65_536, resource.RLIMIT_MEMLOCK: resource.RLIM_INFINITY})
    assert [one.level for one in only(doctor._limits)] == ["ok", "ok"]
    limits[resource.RLIMIT_MEMLOCK] = 64 << 20
    assert [one.what for one in only(doctor._limits)] == ["open files per process: 65,536", "locked memory: 64 MiB"]


def test_extras__names_what_each_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["numpy>=1", 'networkx>=3; extra == "plan"', 'scipy; extra == "plan"', 'pyroute2; extra == "testbed"',
              'ruff; extra == "dev"', 'mkdocs; extra == "docs"']  # fmt: skip
    monkeypatch.setattr(metadata, "requires", lambda _: wanted)
    monkeypatch.setattr(doctor, "_is_installed", lambda package: package in ("numpy", "networkx", "pyroute2"))
    complete, lacking = only(doctor._extras)
    assert complete == Finding("ok", "extras installed: testbed")
    assert lacking == Finding(
        "optional", "extra plan (mlt plan) lacks scipy", f"{pip()} install 'networkx>=3' 'scipy' # extra plan"
    )
    assert lacking.fix_is_command


def test_kernel_features__without_xdp_and_srv6(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_socket(*_: object) -> None:
        raise OSError(97, "Address family not supported by protocol")

    def no_file(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(socket, "socket", no_socket)
    monkeypatch.setattr(Path, "read_text", no_file)
    xdp, srv6 = only(doctor._kernel_features)
    assert_names(xdp.what, "AF_XDP", "Address family not supported")
    assert "SRv6" in srv6.what
    assert not xdp.fix_is_command


def test_other_interfaces__lists_those_to_choose_from(monkeypatch: pytest.MonkeyPatch) -> None:
    down = Interface("eth1", (), 1_500, is_up=False)
    monkeypatch.setattr(interfaces, "interfaces", lambda: [*HERE, down])
    (finding,) = only(doctor._other_interfaces)
    assert_names(finding.what, "eth0 192.0.2.7", "down or without an address: eth1")
    assert "lo 127.0.0.1" not in finding.what


def test_doctor__examines_this_host_in_two_seconds() -> None:
    """By the processor's time and that of the programs that it starts: other tests run beside it."""
    began = os.times()
    found = examine()
    ended = os.times()
    assert sum(ended[:4]) - sum(began[:4]) < 2
    text = "\n".join(one.what for one in found)
    assert_names(text, "native library", "Linux", "interface", "rmem_max", "open files", "GSO", "AF_XDP", "extra")


def test_doctor__fix_prints_a_script_of_what_would_mend() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mlt", "doctor", "--fix"], env={**os.environ, "MLT_INTERFACE": "nosuch0"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert any(line.startswith("# problem: ") and "nosuch0" in line for line in lines)
    assert all(line.startswith("#") or line.split()[0] in doctor._RUNNABLE for line in lines)
    subprocess.run(["sh", "-n"], input=done.stdout, text=True, check=True)
    # A shell that runs all of it installs nothing for what is optional.
    after = [follower for line, follower in pairwise(lines) if line.startswith("# optional: ")]
    assert after
    assert all(follower.startswith("#   ") for follower in after)


def test_library__that_does_not_load_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError(f"{name}: wrong ELF class")

    monkeypatch.setattr(doctor, "import_module", broken)
    (finding,) = only(doctor.check_library)
    assert finding.level == "problem"
    assert "wrong ELF class" in finding.what


def test_examine__names_what_the_testbed_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlt.testbed import requirements

    monkeypatch.setattr(requirements, "is_privileged", lambda: True)
    monkeypatch.setattr(requirements, "problems", lambda _: ["clang is not installed: apt-get install clang"])
    wanted = Finding("optional", "mlt testbed: clang is not installed", "apt-get install clang")
    assert wanted in examine({})


def test_testbed__modules_that_the_kernel_lacks_are_loaded_by_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlt.testbed import requirements

    monkeypatch.setattr(requirements, "is_privileged", lambda: True)
    monkeypatch.setattr(requirements, "problems", lambda _: [])
    monkeypatch.setattr(requirements, "in_user_namespace", lambda: False)
    monkeypatch.setattr(requirements, "kernel_has", lambda _: False)
    monkeypatch.setattr(doctor.shutil, "which", lambda _: "/sbin/tc")
    *_, finding = only(doctor._testbed)
    # Without -a the second name is an option of the first module.
    assert finding.fix.startswith("modprobe -a sch_red sch_prio, ")
    assert "(modprobe -a sch_red sch_prio)" in requirements._kernel_remedy("red")
