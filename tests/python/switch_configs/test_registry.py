"""A vendor is one file: put one into the folder, and it is a target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mlt.switch_configs import vendors
from mlt.switch_configs.errors import SwitchConfigError
from mlt.switch_configs.generator import generate
from mlt.switch_configs.registry import target, targets
from switch_lab import example


@pytest.fixture
def extra_vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    body = Path(vendors.__path__[0], "onyx.py").read_text(encoding="utf-8")
    (tmp_path / "acme_os.py").write_text(body.replace('= "onyx"', '= "acme"'), encoding="utf-8")
    monkeypatch.setattr(vendors, "__path__", [*vendors.__path__, str(tmp_path)])
    targets.cache_clear()
    yield "acme"
    targets.cache_clear()


def test_targets__all_systems_and_the_ebpf_port() -> None:
    wanted = {"onyx", "sonic", "cumulus", "eos", "nxos", "junos", "os10", "linux", "linux-ebpf", "srlinux"}
    wanted.add("openconfig")
    assert set(targets()) == wanted


def test_targets__a_new_vendor_with_read_back_is_under_120_lines() -> None:
    """The newest one shows it: its leaves, abilities and counters, and nothing else."""
    lines = Path(vendors.__path__[0], "srlinux.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 120


def test_targets__a_new_file_is_a_new_target(extra_vendor: str) -> None:
    assert extra_vendor in targets()
    assert generate(example(), extra_vendor).plan.ports[1] == "1/2"


def test_target__an_unknown_name_lists_the_known() -> None:
    with pytest.raises(SwitchConfigError, match="cumulus, eos"):
        target("vax")
