"""The sources of a job's secret, where it is required, and that it shows nowhere."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks import assert_names, names
from transport_jobs import exchange, local_job

import mlt
from mlt import _core
from mlt._shared.ports import free_port
from mlt.job import secret
from mlt.job.configuration import JobConfig
from mlt.job.secret import JobSecret, Prover

LONG = "sixteen bytes or more"
# 203.0.113.0/24 is reserved for documentation.
ELSEWHERE = "203.0.113.9"


def test_resolve__the_argument_then_the_variable_then_the_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(LONG + " of a file\n")
    file.chmod(0o600)
    environ = {"MLT_JOB_SECRET": LONG + " of the environment"}
    assert secret.resolve("given, " + LONG, environ) == JobSecret("given, " + LONG)
    assert secret.resolve(None, environ) == JobSecret(LONG + " of the environment")
    assert secret.resolve(None, {"MLT_JOB_SECRET_FILE": str(file)}) == JobSecret(LONG + " of a file")
    assert secret.resolve(None, {}) is None
    assert secret.resolve(None, {"MLT_JOB_SECRET": "", "MLT_JOB_SECRET_FILE": ""}) is None
    with pytest.raises(mlt.ConfigError, match="both set"):
        secret.resolve(None, {**environ, "MLT_JOB_SECRET_FILE": str(file)})


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_from_file__rejects_one_that_others_may_open(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "secret"
    file.write_text(LONG)
    file.chmod(mode)
    with pytest.raises(mlt.ConfigError, match=names(f"mode {mode:03o}", "chmod 600")) as refused:
        secret.resolve(None, {"MLT_JOB_SECRET_FILE": str(file)})
    assert LONG not in str(refused.value)


def test_from_file__a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(mlt.ConfigError, match=r"MLT_JOB_SECRET_FILE.*cannot be read: No such file"):
        secret.resolve(None, {"MLT_JOB_SECRET_FILE": str(tmp_path / "none")})


@pytest.mark.parametrize("weak", ["zq7", "fifteen bytes..", "y" * 5_000])
def test_job_secret__a_weak_or_endless_one_is_rejected_and_not_shown(weak: str) -> None:
    with pytest.raises(mlt.ConfigError, match=names("16 to 4096", "openssl rand")) as refused:
        secret.resolve(None, {"MLT_JOB_SECRET": weak})
    assert weak not in str(refused.value)
    with pytest.raises(mlt.ConfigError, match="16"):
        JobSecret(weak)


@pytest.mark.parametrize("same", [bytes(32), b"a" * 16, "0" * 64])
def test_job_secret__one_byte_repeated_is_rejected(same: str | bytes) -> None:
    with pytest.raises(mlt.ConfigError, match=names("(secret)", "one repeated byte")):
        JobSecret(same)


def test_prover__a_secret_is_not_its_own_extension_by_zeros() -> None:
    """HMAC alone fills a short key with zeros."""
    longer = JobSecret(LONG + "\0")
    caller, host = Prover(JobSecret(LONG), "perf", role="caller"), Prover(longer, "perf", role="host")
    assert caller.meet(host.nonce)
    assert host.meet(caller.nonce)
    assert not host.check(caller.prove("a"), "a")
    assert secret.root_key(None) != secret.root_key(JobSecret(LONG)) != secret.root_key(longer)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of others")
def test_from_file__rejects_one_of_another_user(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(LONG)
    file.chmod(0o600)
    os.chown(file, 65_534, 65_534)
    with pytest.raises(mlt.ConfigError, match=names("uid 65534", "chown")):
        JobSecret.from_file(file)
    os.chown(file, 0, 65_534)
    assert JobSecret.from_file(file) == JobSecret(LONG)


def test_from_file__roots_file_is_taken_by_any_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_text(LONG)
    file.chmod(0o600)
    owner = file.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:
        assert JobSecret.from_file(file) == JobSecret(LONG)
    else:
        with pytest.raises(mlt.ConfigError, match=names(file, f"uid {owner}")):
            JobSecret.from_file(file)


def test_job_secret__of_any_bytes_is_what_the_environment_holds() -> None:
    value = bytes(range(128, 160))
    given = {"MLT_JOB_SECRET": os.fsdecode(value)}
    found = secret.resolve(None, given)
    assert found is not None
    assert found.reveal() == value
    with pytest.raises(mlt.ConfigError, match="Unicode") as refused:
        JobSecret("sixteen bytes and \ud800")
    assert refused.value.__cause__ is None
    assert "sixteen" not in str(refused.value)


def test_job_secret__shows_nothing_of_itself() -> None:
    config = JobConfig.resolve(rank=0, world_size=1, secret=LONG, environ={})
    assert config.secret == JobSecret(LONG)
    assert LONG not in f"{config!r} {config} {JobSecret(LONG)!r} {JobSecret(LONG)}"
    assert config.secret != JobSecret(LONG + "!")
    assert pickle.loads(pickle.dumps(JobSecret(LONG))) == JobSecret(LONG)


@pytest.mark.parametrize("options", [{"host": ELSEWHERE}, {"master_addr": ELSEWHERE}])
def test_context__without_a_secret_is_for_loopback_and_the_error_names_both_fixes(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    for name in ("MLT_JOB_SECRET", "MLT_JOB_SECRET_FILE", "MLT_INSECURE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(mlt.job.interfaces, "check_host", lambda host, **_: host)
    monkeypatch.setattr("mlt.job.address.interfaces.source_towards", lambda _: "127.0.0.1")
    arguments: dict[str, Any] = {"master_addr": "127.0.0.1", "rendezvous_port": free_port(), **options}
    with pytest.raises(mlt.ConfigError) as refused:
        mlt.Context(1, 2, **arguments)
    text = str(refused.value)
    assert text.startswith("rank 1 would")
    assert_names(text, "not a loopback address", "job secret")
    assert "MLT_JOB_SECRET" in text
    assert "MLT_INSECURE=1" in text


def engine(**options: Any) -> _core.Engine:
    return _core.Engine(_core.Options(rank=1, ranks=2, job=1, **options))


def test_engine__holds_to_it_too() -> None:
    opened = engine()
    with pytest.raises(mlt.ConfigError, match=rf"connect to rank 0 at {ELSEWHERE}.*MLT_JOB_SECRET.*MLT_INSECURE=1"):
        opened.connect([(0, ELSEWHERE, 9)], 10**8)
    opened.close()
    with pytest.raises(mlt.ConfigError, match="without a job secret"):
        engine(host="0.0.0.0")
    with pytest.raises(mlt.ConfigError, match=names("5 bytes")):
        engine(secret=b"short")
    with pytest.raises(mlt.ConfigError, match="one repeated byte"):
        engine(secret=bytes(32))
    for options in ({"secret": LONG.encode()}, {"insecure": True}):
        opened = engine(**options)
        with pytest.raises(mlt.MltError) as failed:
            opened.connect([(0, ELSEWHERE, 9)], 10**8)
        assert not isinstance(failed.value, mlt.ConfigError)
        opened.close()


def test_require__warns_once_where_it_is_allowed() -> None:
    program = (
        "from mlt.job import secret\n"
        f"for _ in range(3): secret.require(None, secret.is_insecure(), {ELSEWHERE!r}, 'rank 0 would listen at')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "MLT_INSECURE": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (line,) = done.stderr.splitlines()
    assert_names(line, "WARNING", "MLT_INSECURE=1", "203.0.113.9")


@pytest.mark.parametrize("text", ["yes", "true", "2"])
def test_is_insecure__is_0_or_1(text: str) -> None:
    with pytest.raises(mlt.ConfigError, match="MLT_INSECURE"):
        secret.is_insecure({"MLT_INSECURE": text})


def test_context__with_a_secret_works_as_without() -> None:
    with local_job(3, secret=LONG) as contexts:
        into = np.zeros(10_000, np.float32)
        exchange(contexts[0], contexts[2], np.ones(10_000, np.float32), into)
        assert into.all()
        counters = [context.counters() for context in contexts]
        assert [one["control_accepted"] for one in counters] == [2, 1, 0]
        assert all(one["control_unproved"] == one["control_refusals"] == 0 for one in counters)


def test_prover__a_proof_is_of_a_role_a_conversation_a_purpose_and_a_line() -> None:
    def pair(host_secret: str = LONG, purpose: str = "perf") -> tuple[Prover, Prover]:
        caller = Prover(JobSecret(LONG), "perf", role="caller")
        host = Prover(JobSecret(host_secret), purpose, role="host")
        assert caller.meet(host.nonce)
        assert host.meet(caller.nonce)
        return caller, host

    caller, host = pair()
    assert caller.check(host.prove("a"), "a")
    assert host.check(caller.prove("a"), "a")
    assert not host.check(caller.prove("a"), "b")
    assert not host.check(host.prove("a"), "a")  # reflected
    assert not pair()[1].check(caller.prove("a"), "a")  # replayed
    for other in (pair(host_secret=LONG + "!"), pair(purpose="rendezvous")):
        assert not other[1].check(other[0].prove("a"), "a")
    for nonsense in (None, 7, "", "é", ["x"]):
        assert not host.check(nonsense, "a")
    for nonsense in ("", "00", "zz" * 32, "00" * 33, " " + "0" * 63):
        assert not Prover(None, "perf", role="host").meet(nonsense)
