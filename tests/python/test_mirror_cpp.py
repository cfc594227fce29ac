"""The place of a C++ source's tests: the file of its name below ``tests/unit``, or the one of ``TESTED_BY``.

``src/core/flow_control.cc`` has its tests in ``tests/unit/core/flow_control_test.cc``. A class whose definition fills
several files has one test file, and sources that only other languages call are tested from there.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC, TESTS = ROOT / "src", ROOT / "tests"
INCLUDED = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
# Sources without a test file of their name, below src/ -> the file that tests them, below tests/. A key that ends with
# "/" or "_" stands for all sources below it that have none.
TESTED_BY = {
    "base/check.cc": "unit/core/tables_test.cc",
    "bindings/": "python/transport/test_context_transfers.py",
    "bindings/bare_udp/": "python/perf/test_perf_raw_udp.py",
    "bindings/bind_collective.cc": "python/transport/test_collectives.py",
    "bindings/bind_error.cc": "python/transport/test_errors.py",
    "bindings/bind_faults.cc": "python/options/test_options_faults.py",
    "bindings/bind_paths.cc": "python/options/test_paths.py",
    "bindings/bind_push_pull.cc": "python/transport/test_push_pull.py",
    "bindings/bind_simulator.cc": "python/simulation/test_simulate_transfers.py",
    "bindings/engine_handle_collectives.cc": "python/transport/test_collectives.py",
    "bindings/tensor_view.cc": "python/transport/test_bad_input.py",
    "c/": "c/test_c.c",
    "collective/collective.cc": "unit/collective/collectives_test.cc",
    "collective/collectives_failures.cc": "unit/collective/collectives_test.cc",
    "collective/tensor_records.cc": "unit/collective/all_reduce_types_test.cc",
    "core/early_buffer.cc": "unit/core/tables_test.cc",
    "core/parity_sender.cc": "unit/core/parity_test.cc",
    "core/receiver_arrivals.cc": "unit/core/receiver_test.cc",
    "core/receiver_parity.cc": "unit/core/parity_test.cc",
    "core/sender_": "unit/core/sender_test.cc",
    "delay_line/": "python/testbed/test_testbed_delay_line.py",
    "engine/": "unit/engine/engine_test.cc",
    "engine/engine_collectives.cc": "unit/engine/collectives_test.cc",
    "engine/path_check_service.cc": "unit/engine/engine_paths_test.cc",
    "io/control/": "unit/io/control/control_channel_test.cc",
    "io/control/control_handshake.cc": "unit/io/control/control_proof_test.cc",
    "io/control/proof.cc": "unit/io/control/control_proof_test.cc",
    "io/fault/": "unit/io/fault/fault_datapath_test.cc",
    "io/net/ethernet_device.cc": "unit/io/xdp/xdp_datapath_test.cc",
    "io/net/interface.cc": "unit/io/net/egress_mtu_test.cc",
    "io/net/netlink.cc": "unit/io/xdp/xdp_datapath_test.cc",
    "io/net/next_hop.cc": "unit/io/xdp/xdp_datapath_test.cc",
    "io/os/fork_guard.cc": "unit/io/xdp/xdp_datapath_test.cc",
    "io/os/random.cc": "unit/io/control/control_proof_test.cc",
    "io/shm/shm_segment.cc": "unit/io/shm/shm_ring_test.cc",
    "io/vma/": "backend/vma_datapath_test.cc",
    "io/xdp/bpf_loader.cc": "unit/io/xdp/xsk_steering_test.cc",
    "sim/": "unit/sim/simulator_test.cc",
    "sim/collective_hosts.cc": "sim/collectives/collectives_test.cc",
    "sim/micro": "sim/micro_main.cc",
    "sim/transfer_routes.cc": "python/simulation/test_simulate_transfers.py",
}


def sources() -> list[str]:
    return sorted(path.relative_to(SRC).as_posix() for path in SRC.rglob("*.cc"))


def mirrored(name: str) -> Path | None:
    path = TESTS / "unit" / name.replace(".cc", "_test.cc")
    return path if path.exists() else None


def key_of(name: str) -> str | None:
    """The longest key of ``TESTED_BY`` for the source ``name``."""
    return max((key for key in TESTED_BY if name.startswith(key)), key=len, default=None)


@cache
def includes(path: Path) -> frozenset[Path]:
    """The project's headers that a file includes."""
    names = INCLUDED.findall(path.read_text(encoding="utf-8"))
    folders = (path.parent, SRC, TESTS / "support", TESTS, ROOT)
    return frozenset(folder / name for name in names for folder in folders if (folder / name).is_file())


@cache
def reach(test: Path) -> frozenset[Path]:
    """Every header that ``test`` can come to, through headers and the sources of their names."""
    seen: set[Path] = set()
    waiting = [test]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting += [path.resolve() for path in includes(one)]
            source = SRC / "engine" / "engine.cc" if one == SRC / "mlt.h" else one.with_suffix(".cc")
            if one.suffix == ".h" and source.exists():
                waiting.append(source)
    return frozenset(seen)


def headers_of(source: Path) -> set[Path]:
    """The header of a source's name, or those of its folder that it includes."""
    own = source.with_suffix(".h")
    return {own} if own.exists() else {path.resolve() for path in includes(source) if path.parent == source.parent}


@pytest.mark.parametrize("name", sources())
def test_source__has_a_test_of_its_name_or_is_in_tested_by(name: str) -> None:
    key = key_of(name)
    if mirrored(name):
        assert key is None or key.endswith(("/", "_")) or key == "sim/micro", f"TESTED_BY should not name {name}"
        return
    assert key is not None, f"{name} has no test file of its name; name in TESTED_BY the file that tests it"
    test = TESTS / TESTED_BY[key]
    assert test.is_file(), test
    if test.suffix == ".cc":
        assert headers_of(SRC / name) & reach(test), f"{test} never comes to {name}"


def test_tested_by__has_no_unused_key() -> None:
    assert {key_of(name) for name in sources() if not mirrored(name)} == TESTED_BY.keys()
