"""NX-OS and Junos through NAPALM, against servers of the tests that keep a configuration and validate requests.

No vendor's device took part.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from push_lab import ROOT, SECRET, USER, mlt, text
from push_servers import http
from push_servers_cli import Junos, Nxapi, netconf

pytest.importorskip("napalm")
QFX = ROOT / "examples" / "switch" / "qfx5120.yaml"
OTHERS = {  # earlier configuration of the port
    "policy-map type qos theirs": {},
    "policy-map type queuing their-out": {},
    "interface Ethernet1/2": {"mtu 9216": {}, "service-policy type queuing output their-out": {}},
}


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(text(), encoding="utf-8")
    return file


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Undo files of the test, not the developer's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def inventory(folder: Path, port: int, **options: str | bool) -> Path:
    file = folder / "hosts.yaml"
    host = {"hostname": "127.0.0.1", "port": port, "username": USER, "password": SECRET, "optional_args": options}
    file.write_text(json.dumps({"leaf1": host}), encoding="utf-8")
    return file


def test_nxos__dry_run_confirm_and_undo(policy: Path, tmp_path: Path, state: Path) -> None:
    device = Nxapi(SECRET, dict(OTHERS))
    with http(device) as port:
        words = (policy, "leaf1", "-t", "nxos", "--inventory", inventory(tmp_path, port, transport="http"))
        before = device.text()
        shown = mlt("apply", *words, "--dry-run")
        assert shown.returncode == 0, shown.stderr
        assert "policy-map type queuing mlt-out" in shown.stdout
        assert "configure terminal" not in shown.stdout
        assert device.text() == before
        gone = mlt("apply", *words, "--confirm", "2s")
        assert "not confirmed: reverted" in gone.stderr, gone.stderr
        assert "if it is killed, the configuration stays in force" in gone.stderr
        assert device.text() == device.startup == before
        kept = mlt("apply", *words, "--confirm", "9s", "--keep-if", "true")
        assert kept.returncode == 0, kept.stderr
        assert device.tree["interface Ethernet1/2"] == {
            "mtu 9216": {},
            "service-policy type qos input mlt-in": {},
            "service-policy type queuing output mlt-out": {},
        }
        assert not any("!" in line for line in device.text().splitlines())
        undone = mlt("apply", *words, "--undo")
        assert undone.returncode == 0, undone.stderr
        assert sorted(device.text().splitlines()) == sorted(before.splitlines())
        again = mlt("apply", *words, "--undo")
        assert again.returncode == 1
        assert "no apply to leaf1" in again.stderr
        assert not any(SECRET in file.read_text() for file in state.rglob("*") if file.is_file())


def test_nxos__a_push_rejected_midway_is_rolled_back(policy: Path, tmp_path: Path) -> None:
    device = Nxapi(SECRET)
    policy.write_text(text(s1="1022976").replace("147456", "1100000").replace("73728", "1048576")
                      .replace("294912", "1200000"), encoding="utf-8")  # fmt: skip
    with http(device) as port:
        words = (policy, "leaf1", "-t", "nxos", "--inventory", inventory(tmp_path, port, transport="http"))
        before = device.text()
        refused = mlt("apply", *words)
        assert refused.returncode == 1
        assert "not applied, and restored" in refused.stderr
        assert "random-detect minimum-threshold 999" in refused.stderr
        assert device.text() == before
        device.authorization = "other"
        assert "cannot connect" in mlt("apply", *words).stderr


@pytest.mark.parametrize(
    ("system", "host", "way_out"),
    [
        ("eos", "leaf1.invalid", "does not resolve on this host"),
        ("eos", "127.0.0.1:9", "management api http-commands"),
        ("nxos", "127.0.0.1:9", "feature nxapi"),
        ("cumulus", "127.0.0.1:9", "nv show system api"),
        ("cumulus", "leaf1.invalid", "does not resolve on this host"),
        ("junos@qfx5120", "leaf1.invalid", "does not resolve on this host"),
        ("openconfig", "leaf1.invalid", "does not resolve on this host"),
        ("openconfig", "127.0.0.1:9", "enable gNMI"),
        ("onyx", "leaf1", "push to onyx"),
    ],
)
def test_apply__a_device_that_cannot_be_reached(system: str, host: str, way_out: str, policy: Path) -> None:
    """pyeapi logged a traceback on the terminal before our error."""
    done = mlt("apply", policy, host, "-t", system, "--dry-run")
    assert done.returncode == 1
    assert way_out in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("system", ["nxos", "eos"])
def test_https__an_unsigned_certificate_is_rejected(system: str, policy: Path, tmp_path: Path) -> None:
    """The drivers take any certificate unless told; then they send the password to any server."""
    certificate = tmp_path / "device.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*command, "-keyout", certificate, "-out", tmp_path / "crt"], check=True, capture_output=True)
    certificate.write_text(certificate.read_text() + (tmp_path / "crt").read_text())
    seen: list[str] = []

    def handle(method: str, path: str, body: object, headers: dict[str, str]) -> tuple[int, object]:
        seen.append(headers.get("Authorization", ""))
        return 404, {}

    with http(handle, certificate=certificate) as port:
        refused = mlt("apply", policy, "leaf1", "-t", system, "--inventory", inventory(tmp_path, port))
        assert refused.returncode == 1
        assert "authority" in refused.stderr
        assert seen == []


SCHEDULER = "class-of-service interfaces et-0/0/1 scheduler-map theirs"
THEIRS = ("class-of-service scheduler-maps theirs forwarding-class best-effort scheduler be", SCHEDULER)


def test_junos__dry_run_confirm_and_undo(tmp_path: Path) -> None:
    device = Junos(THEIRS)
    with netconf(device, SECRET, tmp_path) as (port, known):
        words = (QFX, "leaf1", "-t", "junos@qfx5120", "--ports", "2", "--known-hosts", known)
        words = (*words, "--inventory", inventory(tmp_path, port))
        before = list(device.active)
        shown = mlt("apply", *words, "--dry-run")
        assert shown.returncode == 0, shown.stderr
        assert "+class-of-service interfaces et-0/0/1 scheduler-map mlt" in shown.stdout
        assert f"-{SCHEDULER}" in shown.stdout
        assert (device.active, device.candidate, device.lock) == (before, before, None)
        gone = mlt("apply", *words, "--confirm", "2s")
        assert "not confirmed: reverted" in gone.stderr, gone.stderr
        assert "or the device itself" in gone.stderr
        assert device.commits[0] == "1"  # Junos counts minutes
        assert (device.active, device.lock, device.timer) == (before, None, "")
        kept = mlt("apply", *words, "--confirm", "9s", "--keep-if", "true")
        assert kept.returncode == 0, kept.stderr
        assert "class-of-service interfaces et-0/0/1 scheduler-map mlt" in device.active
        assert SCHEDULER not in device.active
        assert (device.lock, device.timer) == (None, "")
        undone = mlt("apply", *words, "--undo")
        assert undone.returncode == 0, undone.stderr
        assert sorted(device.active) == sorted(before)
        assert device.lock is None


def test_junos__the_device_s_timer_restores_when_the_command_is_killed(tmp_path: Path) -> None:
    from mlt.switch_configs.generator import generate
    from mlt.switch_configs.policy import load

    from mlt.switch_push.by_napalm import NapalmDevice
    from mlt.switch_push.login import find

    device = Junos()
    with netconf(device, SECRET, tmp_path) as (port, known):
        before = list(device.active)
        login = find("leaf1", inventory=inventory(tmp_path, port))
        pushed = NapalmDevice(login, "junos", known_hosts=known)
        pushed.apply(generate(load(QFX), "junos@qfx5120", ports=("2",)), 300.0)
        assert device.timer == "5"
        assert device.active != before
        pushed.close()  # and nothing more from us
        device.time_out()
        assert device.active == before


def test_junos__locks_rejections_and_unknown_hosts(tmp_path: Path) -> None:
    device = Junos()
    with netconf(device, SECRET, tmp_path) as (port, known):
        words = (QFX, "leaf1", "-t", "junos@qfx5120", "--ports", "2", "--inventory", inventory(tmp_path, port))
        other = mlt("apply", *words, HOME=str(tmp_path))
        assert other.returncode == 1
        assert "the host key is not known" in other.stderr
        words = (*words, "--known-hosts", known)
        device.lock = 99
        locked = mlt("apply", *words)
        assert locked.returncode == 1
        assert "locked by another session" in locked.stderr
        device.lock = None
        before = list(device.active)
        wrong = tmp_path / "wrong.yaml"
        wrong.write_text(QFX.read_text(encoding="utf-8").replace("name: layers-1", "name: nonsense"), encoding="utf-8")
        refused = mlt("apply", wrong, *words[1:])
        assert refused.returncode == 1
        assert "syntax error" in refused.stderr
        assert (device.active, device.candidate, device.lock) == (before, before, None)
