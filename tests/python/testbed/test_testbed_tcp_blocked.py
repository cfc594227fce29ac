"""TCP that a firewall drops in one direction while all else passes: every rank says within seconds which port of which
rank, and what to open."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from checks import assert_names
from testbed_lab import needs_testbed
from testbed_ranks import RENDEZVOUS, dropping, texts_of

from mlt.testbed import Testbed

pytestmark = needs_testbed
pytest.importorskip("mlt._core")

LISTENERS = (32_768, 65_535)  # ports that the system chooses

# Prints the time of each line of the log and of the error.
JOB = """
import logging
began = time.monotonic()
class Handler(logging.Handler):
    def emit(self, record):
        print(f"{time.monotonic() - began:.2f} s: WAITS {record.getMessage()}", flush=True)
logging.getLogger("mlt").addHandler(Handler())
try:
    with connect(connect_timeout=8, datapath="udp") as context:
        context.all_reduce(np.ones(1000, np.float32), timeout=30)
    print("DONE")
except mlt.MltError as error:
    print(f"{time.monotonic() - began:.2f} s: FAILED {error}", flush=True)
"""


def outcome(text: str) -> tuple[str, str]:
    """The first line of the log, which came within seconds, and the error."""
    waits, failed = re.search(r"WAITS (.*)", text), re.search(r"FAILED (.*)", text)
    assert waits is not None, text
    assert failed is not None, text
    assert float(text.split(" s: ")[0]) < 7.0
    return waits[1], failed[1]


def test_start__names_the_control_port_that_is_blocked_at_both_ranks(tmp_path: Path) -> None:
    with Testbed(hosts=2, rate="200mbit") as bed, dropping(bed, "host1", "host0", LISTENERS, tmp_path):
        (waits_0, failed_0), (waits_1, failed_1) = map(outcome, texts_of(bed, JOB, 2))
    port = re.search(r"rank 0 at 10\.77\.0\.1:(\d+)", failed_1)
    assert port, failed_1
    where = f"10.77.0.1:{port[1]}"
    assert_names(waits_0, f"the TCP connection of rank 1 (10.77.0.2) to {where}", "let TCP pass to this port")
    assert_names(waits_1, f"its TCP connection to rank 0 at {where}", "let TCP pass to this port")
    assert_names(failed_0, f"rank 1 did not connect to rank 0 at {where}", "no TCP connection arrived", "let it pass")
    assert_names(failed_1, f"could not reach rank 0 at {where}", "no reply to TCP", "let TCP pass to this port")
    for text in (waits_0, waits_1, failed_0, failed_1):
        assert_names(text, "ip_local_port_range")
        assert "UDP" not in text


def test_start__names_the_rendezvous_port_that_is_blocked_at_both_ranks(tmp_path: Path) -> None:
    with Testbed(hosts=2, rate="200mbit") as bed, dropping(bed, "host1", "host0", (RENDEZVOUS, RENDEZVOUS), tmp_path):
        zero, one = map(outcome, texts_of(bed, JOB, 2))
    for text in zero:
        assert_names(text, "rank 1", "no firewall blocks TCP to port 29001 of this host")
    for text in one:
        assert_names(text, "no reply to TCP", "a firewall drops the connections", "let TCP pass to 10.77.0.1:29001")


def test_start__between_two_others_is_known_to_every_rank(tmp_path: Path) -> None:
    with Testbed(hosts=3, rate="200mbit") as bed, dropping(bed, "host2", "host1", LISTENERS, tmp_path):
        zero, one, two = texts_of(bed, JOB, 3)
    waits_1, failed_1 = outcome(one)
    waits_2, failed_2 = outcome(two)
    assert_names(waits_1, "the TCP connection of rank 2 (10.77.0.3) to 10.77.0.2:", "let TCP pass to this port")
    assert_names(waits_2, "its TCP connection to rank 1 at 10.77.0.2:", "let TCP pass to this port")
    # The first rank whose time is over says what it waited for. Rank 0, connected to both, ends then, and the other
    # rank may hear of that before its own time is over.
    missing = "this rank has no TCP connection with"
    assert re.search(rf"rank 2 did not connect to rank 1 at 10\.77\.0\.2:\d+|{missing} rank 2 ", failed_1), failed_1
    assert re.search(rf"could not reach rank 1 at 10\.77\.0\.2:\d+|{missing} rank 1 ", failed_2), failed_2
    assert missing not in failed_1 or missing not in failed_2
    assert_names(zero.partition("FAILED ")[2], "rank 1", "rank 2", "to this port")
    assert re.search("no reply to TCP|no TCP connection arrived|no TCP connection with rank 1", zero), zero
