"""Devices over their protocols, against servers of our own: applied, kept, reverted; secrets never written.

No vendor's device took part. What is shown is that we speak each protocol as its libraries and documents have it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from checks import assert_names, until
from push_lab import SECRET, USER, inventory, mlt, policy_file, run_mlt
from push_servers import Eapi, Nvue, gnmi, http, sonic_over_ssh

from mlt._shared import patience
from mlt.switch_push.device import PushError
from mlt.switch_push.hosts import open_device

FACTORY: dict[str, Any] = {
    "DSCP_TO_TC_MAP": {"AZURE": {"0": "1"}},
    "PORT_QOS_MAP": {"Ethernet60": {"dscp_to_tc_map": "AZURE"}},  # Redis keeps no empty table
    "DEVICE_METADATA": {"localhost": {"hwsku": "x"}},
}
LOGIN = {"MLT_SWITCH_USER": USER, "MLT_SWITCH_PASSWORD": SECRET}


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return policy_file(tmp_path, "eos: {step-threshold: x, queue-limit: x}")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo files of the test, not the developer's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


# What SONiC prints of the small policy's port and queues.
COUNTERS = "Port TxQ Counter/pkts Counter/bytes Drop/pkts Drop/bytes EcnMarked/pkts WredDrp/pkts\n" + "".join(
    f"Ethernet4 UC{queue} 1000 1500000 0 0 0 0\n" for queue in (7, 6, 5, 0)
)
SONIC_TARGET = "sonic/202511@mlnx-sn2100"


def applied(words: tuple[object, ...], db: Path, *shown_by_dry_run: str) -> Any:
    """The database after a dry run and a push that was not confirmed, which change nothing, and one that was kept."""
    before = json.loads(db.read_text())
    shown = mlt("apply", *words, "--dry-run", **LOGIN)
    assert shown.returncode == 0, shown.stderr
    assert_names(shown.stdout, *shown_by_dry_run)
    assert json.loads(db.read_text()) == before
    gone = mlt("apply", *words, "--confirm", "2s", **LOGIN)
    assert gone.returncode == 1
    assert "not confirmed: reverted" in gone.stderr, gone.stderr
    assert json.loads(db.read_text()) == before
    kept = mlt("apply", *words, "--confirm", "20s", "--keep-if", "true", **LOGIN)
    assert kept.returncode == 0, kept.stderr
    return json.loads(db.read_text())


def test_sonic__apply_patch_over_ssh(policy: Path, tmp_path: Path) -> None:
    with sonic_over_ssh(tmp_path, SECRET, FACTORY) as (port, db, known):
        words = (policy, f"127.0.0.1:{port}", "-t", SONIC_TARGET, "--known-hosts", known)
        before = json.loads(db.read_text())
        after = applied(words, db, '"op": "add"', "Patch applied successfully")
        assert len(after["WRED_PROFILE"]) == 2
        assert after["DSCP_TO_TC_MAP"]["AZURE"] == {"0": "1"}
        Path(f"{db}.show").write_text(COUNTERS, encoding="utf-8")
        read = mlt("verify", policy, "--switch", *words[1:], **LOGIN)
        assert read.returncode == 0, read.stderr
        asked = ["doctor", "--switch", words[1], "--policy", str(policy), "--target", SONIC_TARGET]
        healthy = run_mlt(*asked, "--known-hosts", known, **LOGIN)
        assert healthy.returncode == 0, healthy.stdout + healthy.stderr
        assert_names(healthy.stdout, "4 queues and 4,000 packets")
        written = [path for path in (tmp_path / "mlt-switch").rglob("*") if path.is_file()]
        assert written
        assert not any(SECRET in path.read_text(errors="replace") for path in written)
        assert mlt("apply", *words, "--undo", **LOGIN).returncode == 0
        assert json.loads(db.read_text()) == before


@pytest.mark.parametrize("buffers", ["keep", "write"])
def test_sonic__a_release_that_rejects_the_patch_is_loaded(buffers: str, policy: Path, tmp_path: Path) -> None:
    """202505: deletions, config load, deletions; what was in ranges and under our names comes back."""
    policy.write_text(policy.read_text().replace("queues: 8,", f"queues: 8, buffers: {buffers},"), encoding="utf-8")
    tables = {
        **FACTORY,
        "QUEUE": {"Ethernet4|0-2": {"scheduler": "s"}, "Ethernet4|6": {"scheduler": "s", "wred_profile": "w"}},
        "BUFFER_QUEUE": {"Ethernet4|0-7": {"profile": "p"}},
    }
    with sonic_over_ssh(tmp_path, SECRET, tables) as (port, db, known):
        words = (policy, f"127.0.0.1:{port}", "-t", "sonic/202505@mlnx-sn2100", "--known-hosts", known)
        before = json.loads(db.read_text())
        after = applied(words, db, "sonic-db-cli CONFIG_DB DEL", '"WRED_PROFILE": {')
        assert after["QUEUE"]["Ethernet4|1"] == {"scheduler": "s"}
        assert after["QUEUE"]["Ethernet4|6"] == {"scheduler": "mlt_strict", "wred_profile": "mlt_q6"}
        assert ("BUFFER_POOL" in after) == (buffers == "write")
        assert mlt("apply", *words, "--undo", **LOGIN).returncode == 0
        assert json.loads(db.read_text()) == before


def test_sonic__a_rejected_patch_changes_nothing(policy: Path, tmp_path: Path) -> None:
    with sonic_over_ssh(tmp_path, SECRET, FACTORY) as (port, db, known):
        (tmp_path / "config_db.json.refuses").touch()
        before = json.loads(db.read_text())
        done = mlt("apply", policy, f"127.0.0.1:{port}", "-t", SONIC_TARGET, "--known-hosts", known, **LOGIN)
        assert done.returncode == 1
        assert "not applied, and restored" in done.stderr
        assert "illegal operation" in done.stderr
        assert json.loads(db.read_text()) == before


def test_sonic__the_switch_itself_returns_when_the_command_is_killed(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlt.switch_configs.generator import generate
    from mlt.switch_configs.policy import load

    from mlt.switch_push.login import find
    from mlt.switch_push.shell import SshShell
    from mlt.switch_push.sonic import SonicSwitch

    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)
    with sonic_over_ssh(tmp_path, SECRET, FACTORY) as (port, db, known):
        before = json.loads(db.read_text())
        switch = SonicSwitch(SshShell(find(f"127.0.0.1:{port}"), known_hosts=str(known)), name="sonic")
        switch.apply(generate(load(policy), SONIC_TARGET, running=switch.running()), 2.0)
        assert "WRED_PROFILE" in json.loads(db.read_text())
        switch.close()  # and nothing more from us
        until(lambda: json.loads(db.read_text()) == before, 20, every=0.1)


def test_ssh__rejects_unknown_hosts_and_wrong_passwords(policy: Path, tmp_path: Path) -> None:
    with sonic_over_ssh(tmp_path, SECRET, FACTORY) as (port, _, known):
        words = (policy, f"127.0.0.1:{port}", "-t", SONIC_TARGET)
        unknown = mlt("apply", *words, **LOGIN)
        assert unknown.returncode == 1
        assert "not found in known_hosts" in unknown.stderr
        wrong = mlt("apply", *words, "--known-hosts", known, **{**LOGIN, "MLT_SWITCH_PASSWORD": "wrong"})
        assert wrong.returncode == 1
        assert "Authentication failed" in wrong.stderr
        assert SECRET not in unknown.stderr + wrong.stderr


def test_ssh__a_device_that_resets_the_connection_is_an_error_in_one_line(policy: Path) -> None:
    pytest.importorskip("paramiko")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reset() -> None:
            connection, _ = listener.accept()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

        resetting = threading.Thread(target=reset)
        resetting.start()
        port = listener.getsockname()[1]
        done = mlt("verify", policy, "-t", SONIC_TARGET, "--switch", f"127.0.0.1:{port}", **LOGIN)
        resetting.join()
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    causes = "Error reading SSH protocol banner|Connection reset by peer|it closed the connection"
    assert re.match(rf"error: SSH to 127\.0\.0\.1 port {port} failed: ({causes})", done.stderr)


def test_ssh__a_device_that_closes_the_connection_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    paramiko = pytest.importorskip("paramiko")

    def closed(*_: object, **__: object) -> None:
        raise EOFError  # what click takes for Ctrl-D: the command ended with 130 and no word

    monkeypatch.setattr(paramiko.SSHClient, "connect", closed)
    with pytest.raises(PushError, match=r"SSH to 192\.0\.2\.1 port 22 failed: it closed the connection"):
        open_device("192.0.2.1", SONIC_TARGET)


@pytest.mark.parametrize("target", [SONIC_TARGET, "eos", "nxos"])
def test_open__a_device_that_does_not_answer_is_waited_for_aloud(
    target: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for needed in ("paramiko", "napalm"):
        pytest.importorskip(needed)
    monkeypatch.setattr(patience, "QUIET_SECONDS", 0.2)
    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)
    failed = list[str]()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]

        def connect() -> None:
            try:
                open_device(f"127.0.0.1:{port}", target)
            except PushError as error:
                failed.append(str(error))

        connecting = threading.Thread(target=connect)
        connecting.start()
        lines = until(lambda: [one.getMessage() for one in caplog.records if one.name == "mlt"])
        silent.settimeout(0.1)
        while connecting.is_alive():  # some connect again
            with contextlib.suppress(TimeoutError):
                silent.accept()[0].close()
        connecting.join()
    assert lines == [f"still waiting for the reply of 127.0.0.1:{port} ({target})"]
    assert len(failed) == 1


def test_nvue__revisions_applied_and_put_back(policy: Path, tmp_path: Path) -> None:
    authorization = "Basic " + base64.b64encode(f"{USER}:{SECRET}".encode()).decode()
    theirs = {"congestion-control": {"profile": "theirs"}}
    factory: dict[str, Any] = {
        "system": {"hostname": "leaf1"},
        "qos": {"egress-scheduler": {"default-global": {"traffic-class": {"1": {"mode": "dwrr", "bw-percent": 12}}}}},
        "interface": {"swp2": {"link": {"mtu": 9216}, "qos": theirs}},
    }
    before = json.loads(json.dumps(factory))
    device = Nvue(factory, authorization)
    with http(device) as port:
        words = (
            policy,
            "leaf1",
            "-t",
            "cumulus/5.9@sn2100",
            "--inventory",
            inventory(tmp_path, port, transport="http"),
        )
        shown = mlt("apply", *words, "--dry-run")
        assert shown.returncode == 0, shown.stderr
        assert '+   "mlt": {' in shown.stdout
        assert list(device.revisions) == ["1"]
        gone = mlt("apply", *words, "--confirm", "2s")
        assert "not confirmed: reverted" in gone.stderr, gone.stderr
        assert device.applied == before
        kept = mlt("apply", *words, "--confirm", "9s", "--keep-if", "true")
        assert kept.returncode == 0, kept.stderr
        assert device.applied["qos"]["congestion-control"]["mlt"]["traffic-class"]["6"]["red"] == "enable"
        assert device.applied["interface"]["swp2"] == {
            "link": {"mtu": 9216},
            "qos": {"congestion-control": {"profile": "mlt"}},
        }
        after = json.loads(json.dumps(device.applied))
        device.refuses = "invalid"
        refused = mlt("apply", *words)
        assert refused.returncode == 1
        assert "is invalid" in refused.stderr
        assert device.applied == after
        device.refuses = ""
        device.applied["qos"]["roce"] = {"mode": "lossy"}
        changed = mlt("apply", *words, "--undo")
        assert changed.returncode == 1
        assert "qos changed" in changed.stderr
        del device.applied["qos"]["roce"]
        device.applied["system"]["hostname"] = "leaf9"  # not ours, and stays
        undone = mlt("apply", *words, "--undo")
        assert undone.returncode == 0, undone.stderr
        assert device.applied == {**before, "system": {"hostname": "leaf9"}}
        # A port without earlier configuration leaves no empty entry.
        fresh = (*words, "--ports", "3")
        assert mlt("apply", *fresh).returncode == 0
        assert mlt("apply", *fresh, "--undo").returncode == 0
        assert device.applied == {**before, "system": {"hostname": "leaf9"}}
        assert "no apply to leaf1" in mlt("apply", *words, "--undo").stderr
        device.authorization = "other"
        assert "replied 401" in mlt("apply", *words).stderr


def test_eos__a_session_with_the_commit_timer_of_the_switch(policy: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyavd")
    device = Eapi({"qos map dscp 46 to traffic-class 1": [], "interface Ethernet2/1": ["service-profile theirs"]})
    before = device.running
    with http(device) as port:
        words = (policy, "leaf1", "-t", "eos@7060x", "--inventory", inventory(tmp_path, port, transport="http"))
        shown = mlt("apply", *words, "--dry-run")
        assert shown.returncode == 0, shown.stderr
        assert "+qos profile mlt" in shown.stdout
        assert device.running == before
        gone = mlt("apply", *words, "--confirm", "2s")
        assert "not confirmed: reverted" in gone.stderr, gone.stderr
        assert device.running == before
        assert device.timers == ["00:00:17"]
        kept = mlt("apply", *words, "--confirm", "9s", "--keep-if", "true")
        assert kept.returncode == 0, kept.stderr
        assert "qos profile mlt" in device.running
        assert "qos map dscp 46 to traffic-class 6" in device.running
        assert not device.pending
        assert not any("!" in line for line in device.running)
        undone = mlt("apply", *words, "--undo")
        assert undone.returncode == 0, undone.stderr
        assert sorted(device.running) == sorted(before)


def test_gnmi__set_and_put_back(policy: Path, tmp_path: Path) -> None:
    pytest.importorskip("pygnmi")
    factory: dict[str, Any] = {"queues": {"queue": [{"name": "BE", "config": {"name": "BE"}}]}}
    state = {"transmit-pkts": "5000", "dropped-pkts": "17"}
    path = "qos/interfaces/interface[interface-id=ethernet-1/2]/output/queues/queue[name=q6]/state"
    path = path.replace("ethernet-1/2", "e2")  # the server splits at slashes
    with gnmi(factory, {path: state}) as (port, store):
        words = (policy, "leaf1", "-t", "openconfig", "--inventory", inventory(tmp_path, port, transport="insecure"))
        shown = mlt("apply", *words, "--dry-run")
        assert shown.returncode == 0, shown.stderr
        assert '+       "enable-ecn": true' in shown.stdout
        assert store["qos"] == factory
        gone = mlt("apply", *words, "--confirm", "2s")
        assert "not confirmed: reverted" in gone.stderr, gone.stderr
        assert store["qos"] == factory
        kept = mlt("apply", *words, "--confirm", "9s", "--keep-if", "true")
        assert kept.returncode == 0, kept.stderr
        assert {one["name"] for one in store["qos"]["classifiers"]["classifier"]} == {"mlt", "mlt-v6"}
        read = mlt("verify", policy, "-t", "openconfig", "--switch", "leaf1", *words[4:])
        assert "5000" in read.stdout, read.stderr
        after = json.loads(json.dumps(store["qos"]))
        store["qos"]["queues"]["queue"].append({"name": "new", "config": {"name": "new"}})
        changed = mlt("apply", *words, "--undo")
        assert changed.returncode == 1
        assert_names(changed.stderr, "1 parts", "/qos/queues/queue/new")
        store["qos"] = after
        undone = mlt("apply", *words, "--undo")
        assert undone.returncode == 0, undone.stderr
        assert store["qos"] == factory
        assert "no apply to leaf1" in mlt("apply", *words, "--undo").stderr
        store["refuses"] = "no such leaf"
        refused = mlt("apply", *words)
        assert refused.returncode == 1
        assert "no such leaf" in refused.stderr
