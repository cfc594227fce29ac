"""``mlt doctor``: each check says ok, or what is wrong and the command that fixes it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from mlt import doctor
from mlt.doctor import Finding, examine, interfaces


def only(check: object, *arguments: object) -> list[Finding]:
    return list(check(*arguments))  # type: ignore[operator]


def test_doctor__runs_here_and_its_exit_code_is_its_verdict() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mlt.cli.main", "doctor", "--json"], capture_output=True, text=True, check=False
    )
    findings = json.loads(done.stdout)
    assert {"ok"} <= {finding["level"] for finding in findings} <= {"ok", "problem", "optional"}
    assert done.returncode == any(finding["level"] == "problem" for finding in findings)
    # Whatever is not ok comes with a way out.
    assert all(finding["fix"] for finding in findings if finding["level"] != "ok")


def test_interfaces__knows_loopback() -> None:
    (loopback,) = [one for one in interfaces() if one.address == "127.0.0.1"]
    assert loopback.is_loopback
    assert loopback.mtu > 1000


def test_interface__refuses_an_address_of_another_machine() -> None:
    (finding,) = only(doctor._interface, {"MLT_HOST": "203.0.113.9"})
    assert finding.level == "problem"
    assert "203.0.113.9 is no address of this machine; candidates: " in finding.what
    assert "MLT_HOST" in finding.fix


def test_interface__warns_of_loopback_by_accident(monkeypatch: pytest.MonkeyPatch) -> None:
    here = [doctor.Interface("lo", "127.0.0.1", 65536, None), doctor.Interface("eth0", "192.0.2.7", 1500, 10_000)]
    monkeypatch.setattr(doctor, "interfaces", lambda: here)
    monkeypatch.setattr(doctor, "_source_towards", lambda host: "127.0.1.1")
    (finding,) = only(doctor._interface, {"MASTER_ADDR": "node0"})
    assert finding.level == "problem"
    assert "Candidates: eth0 192.0.2.7 (MTU 1500, 10000 Mbit/s)" in finding.what
    # Said so on purpose, it is right.
    (finding,) = only(doctor._interface, {"MASTER_ADDR": "127.0.0.1"})
    assert finding.level == "ok"


def test_interface__says_when_there_is_no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(_host: str) -> str:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(doctor, "_source_towards", unreachable)
    (finding,) = only(doctor._interface, {"MASTER_ADDR": "198.51.100.1"})
    assert finding.level == "problem"
    assert "no route to 198.51.100.1 (Network is unreachable)" in finding.what
    (finding,) = only(doctor._interface, {})
    assert finding.level == "optional"


def test_buffers__gives_the_sysctl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_has_net_admin", lambda: False)
    monkeypatch.setattr(doctor, "SOCKET_BUFFER_BYTES", 1 << 40)
    findings = only(doctor._buffers)
    assert [finding.level for finding in findings] == ["problem"] * len(findings)
    assert all(finding.fix.startswith("sudo sysctl -w net.core.") for finding in findings)


def test_library__that_does_not_load_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError(f"{name}: wrong ELF class")

    monkeypatch.setattr(doctor, "import_module", broken)
    (finding,) = only(doctor._library)
    assert finding.level == "problem"
    assert "wrong ELF class" in finding.what


def test_examine__names_what_the_testbed_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlt.testbed import requirements

    monkeypatch.setattr(requirements, "is_privileged", lambda: True)
    monkeypatch.setattr(requirements, "problems", lambda _: ["clang is not installed: apt-get install clang"])
    wanted = Finding("optional", "mlt testbed: clang is not installed", "apt-get install clang")
    assert wanted in examine({})
