"""``mlt switch apply --target linux`` on real switches: the testbed's, a namespace's, and one with prio and red."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from checks import assert_names
from push_lab import ROOT, mlt, text

from mlt.switch_push.on_shell import DEVICE_FOLDER
from mlt.testbed import Testbed, make
from mlt.testbed.requirements import problems

sys.path.insert(0, str(ROOT / "tests" / "support"))
user_mode_linux = import_module("user_mode_linux")


def _missing() -> str:
    if os.geteuid() != 0:
        return "needs root"
    return "; ".join(problems(make({"hosts": 2})))


needs_testbed = pytest.mark.skipif(bool(_missing()), reason=_missing() or "-")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(text(), encoding="utf-8")
    return file


@pytest.fixture
def bed() -> Iterator[Testbed]:
    with Testbed(hosts=2, rate="50mbit", name=f"push{os.getpid()}") as made:
        yield made


def thresholds(bed: Testbed) -> tuple[int, ...]:
    return Testbed.attach(bed.name).port_state("switch", "host1").thresholds


@needs_testbed
def test_testbed__apply_verify_and_rollback(bed: Testbed, policy: Path, tmp_path: Path) -> None:
    host = f"testbed:{bed.name}"
    before = thresholds(bed)
    assert not any(before)
    shown = mlt("apply", policy, host, "-t", "linux", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert_names(shown.stdout, "queue 6: front (DSCP 46)", "36 KiB", "144 KiB")
    assert thresholds(bed) == before

    unconfirmed = mlt("apply", policy, host, "-t", "linux", "--confirm", "2s")
    assert unconfirmed.returncode == 1
    assert "not confirmed: reverted" in unconfirmed.stderr
    assert thresholds(bed) == before

    seen = tmp_path / "seen"
    check = f"{sys.executable} -c \"from mlt.testbed import Testbed; b = Testbed.attach('{bed.name}'); "
    check += f"open('{seen}', 'w').write(str(b.port_state('switch', 'host1').thresholds[6]))\""
    kept = mlt("apply", policy, host, "-t", "linux", "--confirm", "30s", "--keep-if", check)
    assert kept.returncode == 0, kept.stderr
    assert seen.read_text() == "36864"
    assert thresholds(bed)[5:7] == (73728, 36864)
    inside = Testbed.attach(bed.name)
    assert Path(inside.environment("host0")["MLT_QOS_POLICY"]).read_text(encoding="utf-8")
    assert {row.name for row in inside.counters()} >= {"front", "back", "control"}

    other = tmp_path / "other.yaml"
    other.write_text(text(s1="43008"), encoding="utf-8")
    assert mlt("apply", other, host, "-t", "linux").returncode == 0
    assert thresholds(bed)[6] == 43008
    assert mlt("apply", other, host, "-t", "linux", "--undo").returncode == 0
    assert thresholds(bed)[6] == 36864
    assert mlt("apply", policy, host, "-t", "linux", "--undo").returncode == 0
    assert thresholds(bed) == before
    nothing = mlt("apply", policy, host, "-t", "linux", "--undo")
    assert nothing.returncode == 1
    assert "nothing to undo" in nothing.stderr


@needs_testbed
def test_testbed__rejects_other_targets_and_leaves_no_files(bed: Testbed, policy: Path) -> None:
    host = f"testbed:{bed.name}"
    assert "use --target linux, not onyx" in mlt("apply", policy, host, "-t", "onyx").stderr
    bad = policy.with_name("bad.yaml")
    bad.write_text(text(s1="150000"), encoding="utf-8")
    assert mlt("apply", bad, host, "-t", "linux").returncode == 2
    assert mlt("apply", policy, host, "-t", "linux").returncode == 0
    kept = list(Path("/run/mlt-testbed").glob(f"{bed.name}.policy*.yaml"))
    assert len(kept) == 1
    bed.down()
    assert not kept[0].exists()
    assert "no testbed named" in mlt("apply", policy, host, "-t", "linux").stderr


@pytest.fixture
def namespace() -> Iterator[str]:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("needs root, ip and tc")
    name = f"mltpush{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    subprocess.run(["ip", "-n", name, "link", "add", "swp2", "type", "veth", "peer", "name", "x"], check=True)
    try:
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)
        shutil.rmtree(f"{DEVICE_FOLDER}/netns_{name}", ignore_errors=True)


def qdiscs(namespace: str) -> str:
    return subprocess.run(["tc", "-n", namespace, "qdisc", "show"], capture_output=True, text=True, check=True).stdout


def test_namespace__a_script_that_fails_midway_is_taken_back(namespace: str, policy: Path) -> None:
    """The port's rate is set before a kernel without prio refuses the rest."""
    probe = ["tc", "-n", namespace, "qdisc", "add", "dev", "x", "root", "prio"]
    if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
        pytest.skip("this kernel has prio; the user-mode-linux test covers it")
    before = qdiscs(namespace)
    done = mlt("apply", policy, f"netns:{namespace}", "-t", "linux", "--confirm", "30s")
    assert done.returncode == 1
    assert "not applied, and restored" in done.stderr
    assert "qdisc kind is unknown" in done.stderr
    assert qdiscs(namespace) == before


def test_namespace__a_foreign_root_qdisc_is_rejected_untouched(namespace: str, policy: Path) -> None:
    subprocess.run(["tc", "-n", namespace, "qdisc", "add", "dev", "swp2", "root", "bfifo", "limit", "9000"], check=True)
    before = qdiscs(namespace)
    done = mlt("apply", policy, f"netns:{namespace}", "-t", "linux")
    assert done.returncode == 1
    assert "could not be restored" in done.stderr
    assert qdiscs(namespace) == before


@needs_testbed
def test_doctor__compares_the_switch_s_counters_with_the_policy(bed: Testbed, policy: Path) -> None:
    host = f"testbed:{bed.name}"
    assert mlt("apply", policy, host, "-t", "linux").returncode == 0
    subprocess.run(bed.command("host0", ["ping", "-c", "2", bed.address("host1")]), check=False, capture_output=True)
    send = f"import socket; socket.socket(2, 2).sendto(b'x', ('{bed.address('host1')}', 9))"
    assert bed.exec("host0", [sys.executable, "-c", send]).returncode == 0
    ask = [sys.executable, "-m", "mlt.cli.main", "doctor", "--switch", host]
    found = subprocess.run([*ask, "--policy", str(policy)], capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 1, found.stdout
    assert "PROBLEM" in found.stdout
    assert_names(found.stdout, "the hosts stamp other DSCPs")
    plain = {key: value for key, value in os.environ.items() if key != "MLT_QOS_POLICY"}
    unasked = subprocess.run(ask, capture_output=True, text=True, timeout=60, env=plain, check=False)
    assert "needs the policy" in unasked.stderr


def test_apply__usage(policy: Path) -> None:
    for words in (("--dry-run", "--confirm", "5s"), ("--keep-if", "true"), ("--undo", "--dry-run")):
        assert mlt("apply", "p.yaml", "local", "-t", "linux", *words).returncode == 2
    for option in ("--inventory", "--known-hosts"):  # a file that nothing reads
        found = mlt("apply", policy, "local", "-t", "linux", "--dry-run", option, policy)
        assert (found.returncode, found.stdout) == (1, "")
        assert_names(found.stderr, option, "local", "no login")
    found = mlt("apply", policy, "leaf.invalid", "-t", "cumulus", "--dry-run", "--known-hosts", policy)
    assert_names(found.stderr, "--known-hosts", "cumulus", "TLS")
    assert "use --target linux" in mlt("apply", policy, "local", "-t", "eos").stderr
    assert "no network namespace" in mlt("apply", policy, "netns:none", "-t", "linux").stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_user_mode_linux__a_kernel_with_prio_and_red(tmp_path: Path, policy: Path) -> None:
    if reason := user_mode_linux.missing():
        pytest.skip(reason)
    apply = f"{sys.executable} -m mlt.cli.main switch apply {policy} netns:sw -t linux"
    body = f"""
export PYTHONDONTWRITEBYTECODE=1
mount -t tmpfs tmpfs /var/tmp
ip netns add sw; ip -n sw link add swp2 type veth peer name x; ip -n sw link set swp2 up
count() {{ tc -n sw qdisc show dev swp2 | grep -c red; }}
{apply} --confirm 5s --keep-if false; echo "unconfirmed: $? $(count)"
{apply} --confirm 5s --keep-if true; echo "confirmed: $? $(count)"
{apply} --undo; echo "undone: $? $(count)"
"""
    output = user_mode_linux.boot(tmp_path, ["veth", "sch_red", "sch_prio", "sch_htb", "cls_u32"], body, timeout=280)
    for line in ("unconfirmed: 1 0", "confirmed: 0 2", "undone: 0 0"):
        assert line in output, output


@needs_testbed
def test_testbed__verify_while_a_job_runs(bed: Testbed, policy: Path) -> None:
    """Packets with the policy's DSCP are the class's; those of another are contradicts the policy."""
    host = f"testbed:{bed.name}"
    assert mlt("apply", policy, host, "-t", "linux").returncode == 0

    def job(tos: int) -> str:
        send = f"import socket, time; s = socket.socket(2, 2); s.setsockopt(0, 1, {tos}); "
        # Until its neighbour's address is known a host keeps few packets and drops the rest: paced, none is dropped.
        send += f"[(s.sendto(bytes(1000), ('{bed.address('host1')}', 9)), time.sleep(0.002)) for _ in range(200)]"
        inside = " ".join(bed.command("host0", [sys.executable, "-c"]))
        return f'{inside} "{send}"'

    good = mlt("verify", policy, "-t", "linux", "--switch", host, "--during", job(46 << 2 | 2), "--json", "-")
    assert good.returncode == 0, good.stderr
    front = [row for row in json.loads(good.stdout) if row["queue"] == 6 and row["port"].endswith("host1")]
    assert front[0]["sent"] == 200
    ask = [sys.executable, "-m", "mlt.cli.main", "doctor", "--switch", host, "--policy", str(policy)]
    healthy = subprocess.run(ask, capture_output=True, text=True, timeout=60, check=False)
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr
    assert_names(healthy.stdout, "match the policy")
    foreign = mlt("verify", policy, "-t", "linux", "--switch", host, "--during", job(0))
    assert foreign.returncode == 1
    assert_names(foreign.stderr, "the hosts stamp other DSCPs")
