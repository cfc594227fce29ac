"""The DSCP of every datagram, read off the wire by a socket of another implementation."""

from __future__ import annotations

import socket
from typing import Any

import independent_endpoint as independent
import numpy as np
import pytest
from engine_pair import FLOAT32, SECONDS, connected
from independent_endpoint import IndependentEndpoint

DEFAULT = (3, 7, 11, 15, 19, 23, 27)
PAPER = (46, 40, 32, 24, 16, 8)
TRAILING = 0x04


class MarkedSocket:
    """A UDP socket that keeps the type and the DSCP of every datagram."""

    def __init__(self, udp: socket.socket) -> None:
        udp.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        self.udp = udp
        self.seen: set[tuple[int, int]] = set()

    def recv(self, size: int) -> bytes:
        data, ancillary, _, _ = self.udp.recvmsg(size, socket.CMSG_SPACE(4))
        ((_, _, tos),) = ancillary
        kind = data[0] & 0x0F
        # A trailing probe (4.7.5), which a late answer brings about, travels like the data, of this layer or the last.
        if not (kind == independent.PROBE and data[1] & TRAILING):
            self.seen.add((kind, tos[0] >> 2))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self.udp, name)


def marked(peer: IndependentEndpoint) -> MarkedSocket:
    peer.udp = recorder = MarkedSocket(peer.udp)  # type: ignore[assignment]
    return recorder


@pytest.mark.parametrize(("data_dscp", "control_dscp"), [((), 31), (PAPER, 48), ((10,), 0)])
def test_code_points__of_data_by_layer(data_dscp: tuple[int, ...], control_dscp: int) -> None:
    expected = data_dscp or DEFAULT
    layers = 12
    with connected(data_dscp, control_dscp) as (peer, engine):
        recorder = marked(peer)
        tensor = np.ones(3_000, np.float32)
        for layer in range(layers):
            state = peer.post_receive(layer, tensor.nbytes, element=FLOAT32)
            recorder.seen.clear()
            operation = engine.post_send(
                tensor, to=0, tag=layer, layer=layer, layers=layers, priorities=None, by_magnitude=False, timeout_ns=0,
                dtype="",
            )  # fmt: skip
            peer.pump(lambda state=state: state.status is not None)  # type: ignore[misc]
            data = {dscp for kind, dscp in recorder.seen if kind == independent.DATA}
            assert data == {expected[layer * len(expected) // layers]}
            # A probe, if one was sent, is control.
            assert {dscp for kind, dscp in recorder.seen if kind != independent.DATA} <= {control_dscp}
            completion = engine.wait(operation, 5 * SECONDS)
            assert completion is not None
            assert completion.status == "complete"


@pytest.mark.parametrize(("data_dscp", "control_dscp"), [((), 31), (PAPER, 48)])
def test_code_points__of_replies(data_dscp: tuple[int, ...], control_dscp: int) -> None:
    with connected(data_dscp, control_dscp) as (peer, engine):
        recorder = marked(peer)
        tensor = np.zeros(30_000, np.float32)
        engine.post_recv(
            tensor, from_=0, tag=1, loss_bound=0.0, keep_missing=False, eager=False, deadline_ns=0, timeout_ns=0,
            dtype="",
        )  # fmt: skip
        state = peer.post_send(1, np.ones_like(tensor).tobytes(), element=FLOAT32)
        peer.pump(lambda: state.status is not None)
    assert {independent.ACK, independent.STOP} <= {kind for kind, _ in recorder.seen}
    assert {dscp for _, dscp in recorder.seen} == {control_dscp}


def test_code_points__of_a_class_that_a_tag_names() -> None:
    with connected(PAPER, 48) as (peer, engine):
        recorder = marked(peer)
        tensor = np.ones(256 * 3, np.float32)
        priorities = np.array([0x08, 0x08 | 5, 0x08 | 3], np.uint8)
        state = peer.post_receive(1, tensor.nbytes, element=FLOAT32)
        engine.post_send(
            tensor, to=0, tag=1, layer=0, layers=1, priorities=priorities, by_magnitude=False, timeout_ns=0, dtype=""
        )
        peer.pump(lambda: state.status is not None)
    data = {dscp for kind, dscp in recorder.seen if kind == independent.DATA}
    assert data == {PAPER[0], PAPER[5], PAPER[3]}
