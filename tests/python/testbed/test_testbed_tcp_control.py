"""The choice of TCP's congestion control: at every host, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from checks import assert_names
from testbed_lab import needs_testbed

from mlt.testbed import Testbed, TestbedError

pytestmark = needs_testbed

SYSCTLS = Path("/proc/sys/net/ipv4")


def test_set_tcp_control__at_the_hosts_only() -> None:
    allowed = (SYSCTLS / "tcp_allowed_congestion_control").read_text()
    available = (SYSCTLS / "tcp_available_congestion_control").read_text().split()
    control = SYSCTLS / "tcp_congestion_control"
    before = control.read_text()
    other = next(name for name in available if name != before.strip())
    with Testbed(hosts=2) as bed:
        bed.set_tcp_control(other)
        assert [bed.inside(host, control.read_text).strip() for host in bed.hosts] == [other] * 2
    assert control.read_text() == before
    assert (SYSCTLS / "tcp_allowed_congestion_control").read_text() == allowed


def test_set_tcp_control__unknown_is_named() -> None:
    allowed = (SYSCTLS / "tcp_allowed_congestion_control").read_text()
    with Testbed(hosts=1) as bed, pytest.raises(TestbedError) as caught:
        bed.set_tcp_control("nosuch")
    assert_names(str(caught.value), "nosuch")
    assert (SYSCTLS / "tcp_allowed_congestion_control").read_text() == allowed
