"""The switches' policy file gives the transport its code points and its number of classes."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import yaml
from checks import names
from transport_jobs import exchange, local_job

import mlt
from mlt import priority
from mlt._shared.ports import free_port
from mlt.options import qos
from mlt.options.qos import DscpMap

ROOT = Path(__file__).resolve().parents[3]
PAPER = ROOT / "examples" / "switch" / "paper-testbed.yaml"
PAPER_MAP = DscpMap(data=(46, 40, 32, 24, 16, 8), control=48)
OWN_MAP = DscpMap(data=(3, 7, 11, 15, 19, 23, 27), control=31)


def paper() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(PAPER.read_text())
    return content


def test_resolve__a_path_a_mapping_and_the_environment() -> None:
    assert qos.resolve(PAPER, {}) == PAPER_MAP
    assert qos.resolve(str(PAPER), {}) == PAPER_MAP
    assert qos.resolve(paper(), {}) == PAPER_MAP
    assert qos.resolve(None, {"MLT_QOS_POLICY": str(PAPER)}) == PAPER_MAP
    # The argument comes first.
    assert qos.resolve(PAPER, {"MLT_QOS_POLICY": "nowhere.yaml"}) == PAPER_MAP


@pytest.mark.parametrize("environ", [{}, {"MLT_QOS_POLICY": ""}])
def test_resolve__without_a_policy_the_transports_own(environ: dict[str, str]) -> None:
    assert qos.resolve(None, environ) == qos.DEFAULT


def test_resolve__names_the_error_and_its_source(tmp_path: Path) -> None:
    with pytest.raises(mlt.ConfigError, match=r"^MLT_QOS_POLICY: .*nowhere\.yaml: cannot be read"):
        qos.resolve(None, {"MLT_QOS_POLICY": "nowhere.yaml"})
    twice = paper()
    twice["data"][1]["dscp"] = 46
    with pytest.raises(mlt.ConfigError, match=names("qos_policy: ", "data[1].dscp", "DSCP 46")):
        qos.resolve(twice)
    (tmp_path / "p.yaml").write_text("control: {dscp: 64}\n")
    with pytest.raises(mlt.ConfigError, match=r"control\.dscp: .*less than 64"):
        qos.resolve(tmp_path / "p.yaml")
    with pytest.raises(mlt.ConfigError, match="qos_policy is 46"):
        qos.resolve(46)  # type: ignore[arg-type]


def test_context__has_as_many_classes_as_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    with mlt.Context(0, 1) as context:
        assert context.dscp == OWN_MAP
    monkeypatch.setenv("MLT_QOS_POLICY", str(PAPER))
    with mlt.Context(0, 1) as context:
        assert context.dscp == PAPER_MAP
        assert [context.engine.traffic_class(layer, 12) for layer in range(12)] == [layer // 2 for layer in range(12)]
    with pytest.raises(mlt.ConfigError, match="qos_policy: nowhere"):
        mlt.Context(0, 1, qos_policy="nowhere.yaml")


def test_priority_function__learns_how_many_classes_there_are() -> None:
    grids: list[priority.SegmentGrid] = []
    wanted = 5

    def last_class(tensor: Any, grid: priority.SegmentGrid) -> priority.SegmentPriorities:
        grids.append(grid)
        return priority.SegmentPriorities(
            important=np.ones(grid.segment_count, np.bool_),
            traffic_class=np.full(grid.segment_count, wanted, np.uint8),
        )

    tensor, into = np.ones(5_000, np.float32), np.empty(5_000, np.float32)
    with local_job(2, qos_policy=PAPER) as (first, second):
        exchange(first, second, tensor, into, prio_func=last_class)
        assert (into == tensor).all()
        assert grids[-1].traffic_classes == 6
        wanted = 6
        with pytest.raises(mlt.ConfigError, match=names("class 6", "0 to 5")):
            first.post_send(tensor, last_class, to=1, tag=1)


def test_context__ranks_with_other_policies_do_not_meet() -> None:
    port = free_port()
    options: dict[str, Any] = {"master_addr": "127.0.0.1", "rendezvous_port": port}
    errors: list[Exception] = []

    def one() -> None:
        try:
            mlt.Context(1, 2, connect_timeout=5.0, **options).close()
        except mlt.MltError as error:
            errors.append(error)

    thread = Thread(target=one)
    thread.start()
    with pytest.raises(mlt.RendezvousError, match=names("rank 1", "DSCPs")):
        mlt.Context(0, 2, connect_timeout=2.0, qos_policy=PAPER, **options)
    thread.join()
    assert isinstance(errors[0], mlt.PeerMismatchError)
