"""PROTOCOL.md suffices: an endpoint written from it alone and the engine understand each other."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

import independent_endpoint as independent
import numpy as np
import pytest
from engine_pair import FLOAT32, SECONDS, connected
from independent_endpoint import IndependentEndpoint

from mlt import _core


@pytest.fixture
def pair() -> Iterator[tuple[IndependentEndpoint, _core.Engine]]:
    with connected() as both:
        yield both


def values(count: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(count).astype(np.float32)


def send(engine: _core.Engine, tensor: np.ndarray, tag: int, priorities: np.ndarray | None = None) -> int:
    return engine.post_send(
        tensor, to=0, tag=tag, layer=0, layers=1, priorities=priorities, by_magnitude=False, timeout_ns=0, dtype=""
    )


def receive(engine: _core.Engine, tensor: np.ndarray, tag: int, loss_bound: float = 0.0) -> int:
    return engine.post_recv(
        tensor,
        from_=0,
        tag=tag,
        loss_bound=loss_bound,
        keep_missing=False,
        eager=False,
        deadline_ns=0,
        timeout_ns=0,
        dtype="",
    )


def done(engine: _core.Engine, operation: int) -> _core.Completion:
    completion = engine.wait(operation, 5 * SECONDS)
    assert completion is not None
    return completion


def kinds(peer: IndependentEndpoint) -> list[int]:
    return [message.kind for message in peer.heard]


def test_hello__segment_size_is_the_smaller_one(pair: tuple[IndependentEndpoint, _core.Engine]) -> None:
    peer, engine = pair
    assert engine.segment_bytes(0) == peer.segment_bytes == 1_024


def test_receive__every_byte(pair: tuple[IndependentEndpoint, _core.Engine]) -> None:
    peer, engine = pair
    for iteration in range(3):  # the same tag again: generations (5.2.1)
        tensor = values(30_000 + iteration)
        receive_state = peer.post_receive(5, tensor.nbytes, element=FLOAT32)
        operation = send(engine, tensor, 5)
        peer.pump(lambda state=receive_state: state.status is not None)  # type: ignore[misc]
        assert bytes(receive_state.data) == tensor.tobytes()
        assert done(engine, operation).status == "complete"
    assert {message.generation for message in peer.heard} == {0, 1, 2}
    assert engine.counters()["acks_received"] > 0


def test_receive__lost_segments_are_repaired(pair: tuple[IndependentEndpoint, _core.Engine]) -> None:
    peer, engine = pair
    tensor = values(30_000)
    state = peer.post_receive(1, tensor.nbytes, element=FLOAT32)
    peer.lose_in = lambda m: m.kind == independent.DATA and m.round < 2 and m.offset // 1_024 % 5 == 2
    operation = send(engine, tensor, 1)
    peer.pump(lambda: state.status is not None)
    assert bytes(state.data) == tensor.tobytes()
    completion = done(engine, operation)
    assert completion.status == "complete"
    assert completion.repaired_segments > 0
    assert max(message.round for message in peer.heard) >= 2


def test_receive__lost_marker_is_probed_for(pair: tuple[IndependentEndpoint, _core.Engine]) -> None:
    peer, engine = pair
    tensor = values(5_000)
    state = peer.post_receive(1, tensor.nbytes, element=FLOAT32)
    peer.lose_in = lambda m: m.kind == independent.DATA and bool(m.flags & independent.END_OF_ROUND) and m.round == 0
    operation = send(engine, tensor, 1)
    peer.pump(lambda: state.status is not None)
    assert independent.PROBE in kinds(peer)
    assert bytes(state.data) == tensor.tobytes()
    assert done(engine, operation).status == "complete"


def test_receive__loss_within_the_bound_is_reported(pair: tuple[IndependentEndpoint, _core.Engine]) -> None:
    peer, engine = pair
    tensor = values(25_600)  # 100 segments
    state = peer.post_receive(1, tensor.nbytes, element=FLOAT32, allowed=tensor.nbytes // 10)
    peer.lose_in = lambda m: m.kind == independent.DATA and m.offset // 1_024 in {3, 50}
    operation = send(engine, tensor, 1)
    peer.pump(lambda: state.status is not None)
    completion = done(engine, operation)
    assert completion.status == "within_bound"
    assert completion.missing_bytes == 2 * 1_024


def test_receive__critical_segment_is_never_missing(pair: tuple[IndependentEndpoint, _core.Engine]) -> None:
    peer, engine = pair
    tensor = values(2_560)  # 10 segments
    priorities = np.full(10, 0x08, np.uint8)
    priorities[4] = 0x18
    state = peer.post_receive(1, tensor.nbytes, element=FLOAT32, allowed=tensor.nbytes // 2)
    first = {4: True, 7: True}
    peer.lose_in = lambda m: m.kind == independent.DATA and first.pop(m.offset // 1_024, False)
    operation = send(engine, tensor, 1, priorities)
    peer.pump(lambda: state.status is not None)
    assert state.critical_total == len(state.critical) == 1
    assert any(m.kind == independent.PROBE and m.flags & independent.PROBE_CRITICAL for m in peer.heard)  # 6.5.3
    assert done(engine, operation).status == "complete"


def test_receive__not_posted_yet(pair: tuple[IndependentEndpoint, _core.Engine]) -> None:
    peer, engine = pair
    tensor = values(51_200)  # 200 segments, of which 64 may be sent early (6.4.1)
    operation = send(engine, tensor, 1)
    peer.pump(lambda: kinds(peer).count(independent.PROBE) >= 2)
    assert kinds(peer).count(independent.DATA) == 64
    assert all(m.flags & independent.ACK_ONLY for m in peer.heard if m.kind == independent.PROBE)
    state = peer.post_receive(1, tensor.nbytes, element=FLOAT32)
    peer.pump(lambda: state.status is not None)
    assert bytes(state.data) == tensor.tobytes()
    assert done(engine, operation).status == "complete"


def test_receive__datagrams_of_control_are_eaten(pair: tuple[IndependentEndpoint, _core.Engine]) -> None:
    peer, engine = pair
    tensor = values(5_000)
    state = peer.post_receive(1, tensor.nbytes, element=FLOAT32)
    peer.lose_in = lambda m: m.kind == independent.PROBE or (
        m.kind == independent.DATA and m.round == 0 and m.offset > 18_000
    )
    operation = send(engine, tensor, 1)
    peer.pump(lambda: state.status is not None)
    assert any(m.kind == independent.PROBE and m.over_tcp for m in peer.heard)  # 9.1.1
    assert bytes(state.data) == tensor.tobytes()
    assert done(engine, operation).status == "complete"  # the STOP went over TCP (9.1.3)


def test_abort__goes_over_tcp(pair: tuple[IndependentEndpoint, _core.Engine]) -> None:
    peer, engine = pair
    operation = send(engine, values(5_000), 9)
    engine.cancel(operation)
    peer.pump(lambda: independent.ABORT in kinds(peer))
    abort = next(message for message in peer.heard if message.kind == independent.ABORT)
    assert (abort.over_tcp, abort.tag, abort.generation) == (True, 9, 0)
    assert (abort.cause, abort.path_bytes) == (1, 0)  # 8.1.8
    assert done(engine, operation).status == "cancelled"


@pytest.mark.parametrize("posted_first", [True, False])
def test_send__every_byte_despite_losses(pair: tuple[IndependentEndpoint, _core.Engine], posted_first: bool) -> None:
    peer, engine = pair
    tensor, into = values(40_000), np.zeros(40_000, np.float32)
    peer.lose_out = lambda segment: segment % 7 == 3
    operation = receive(engine, into, 2) if posted_first else None
    state = peer.post_send(2, tensor.tobytes(), element=FLOAT32)
    if operation is None:
        peer.pump(lambda: any(m.flags & independent.NOT_POSTED for m in peer.heard if m.kind == independent.BITMAP))
        operation = receive(engine, into, 2)  # what came early was kept (7.3.1)
    peer.pump(lambda: state.status is not None)
    assert (state.status, state.missing, state.round) == (0, 0, 1)
    assert done(engine, operation).status == "complete"
    assert into.tobytes() == tensor.tobytes()


def test_send__stopped_within_the_bound(pair: tuple[IndependentEndpoint, _core.Engine]) -> None:
    peer, engine = pair
    tensor, into = values(25_600), np.ones(25_600, np.float32)
    peer.lose_out = lambda segment: segment in {1, 98}
    operation = receive(engine, into, 2, loss_bound=0.02)
    state = peer.post_send(2, tensor.tobytes(), element=FLOAT32)
    peer.pump(lambda: state.status is not None)
    assert (state.status, state.missing, state.round) == (1, 2 * 1_024, 0)
    completion = done(engine, operation)
    assert completion.missing == [(1_024, 1_024), (98 * 1_024, 1_024)]
    assert not into[256:512].any()  # filled with zeros (7.7.3)


@pytest.mark.parametrize(("elements", "element", "status"), [(2_559, FLOAT32, 3), (2_560, FLOAT32 - 4, 4)])
def test_send__mismatch_is_told(
    pair: tuple[IndependentEndpoint, _core.Engine], elements: int, element: int, status: int
) -> None:
    peer, engine = pair
    operation = receive(engine, np.zeros(elements, np.float32), 2)
    state = peer.post_send(2, bytes(4 * 2_560), element=element)
    peer.pump(lambda: state.status is not None)
    assert state.status == status
    assert done(engine, operation).status == {3: "size_mismatch", 4: "type_mismatch"}[status]


def test_cookie__any_other_is_counted_and_gets_no_reply(pair: tuple[IndependentEndpoint, _core.Engine]) -> None:
    peer, engine = pair
    into = np.zeros(256, np.float32)
    receive(engine, into, 2)
    right = peer.peer_cookie
    for bit in (16, 40, 63):
        peer.peer_cookie = right ^ 1 << bit
        peer.post_send(2 + bit, bytes(1_024), element=FLOAT32)
    peer.sends.clear()
    peer.pump(lambda: engine.counters()["drop_bad_cookie"] >= 3)
    peer.peer_cookie = right
    assert peer.heard == []
    assert engine.counters()["data_packets_received"] == 0


def test_goodbye__outcomes_come_first(pair: tuple[IndependentEndpoint, _core.Engine]) -> None:
    peer, engine = pair
    operation = receive(engine, np.zeros(256, np.float32), 2)
    state = peer.post_send(2, bytes(1_024), element=FLOAT32)
    done(engine, operation)
    peer.lose_in = lambda message: message.kind == independent.STOP
    closing = threading.Thread(target=engine.close)
    closing.start()
    peer.pump(lambda: peer.gone)
    closing.join()
    assert peer.gone
    assert state.status == 0  # 10.1.1


def test_mtu_probe__is_replied_to_at_once_at_any_size(pair: tuple[IndependentEndpoint, _core.Engine]) -> None:
    peer, _ = pair
    for size in (24, 25, 1_000, 1_472):
        fields = struct.pack("<II", size * 7, size)
        peer.say(peer.prefix(independent.MTU_PROBE) + fields + bytes(size - 24))
        peer.pump(lambda: bool(peer.heard))
        (reply,) = peer.heard
        assert (reply.kind, reply.timestamp, reply.total) == (independent.MTU_REPLY, size * 7, size)
        peer.heard.clear()


def test_send__past_a_path_that_drops_long_datagrams_ends_with_the_limit_named(
    pair: tuple[IndependentEndpoint, _core.Engine],
) -> None:
    peer, engine = pair
    tensor = values(20_000)
    peer.post_receive(5, tensor.nbytes, element=FLOAT32)
    peer.lose_in = lambda message: peer.size_in > 900
    operation = send(engine, tensor, 5)
    peer.pump(lambda: any(message.kind == independent.ABORT for message in peer.heard))
    completion = done(engine, operation)
    assert "MTU mismatch" in completion.error
    assert "924 bytes" in completion.error  # 896 bytes of datagram, 28 of headers
    assert dict(engine.counters())["mtu_limits_found"] == 1


@pytest.mark.parametrize(("count", "lost"), [(3_000, {0, 11}), (70_000, {0, 1, 2, 138, 150, 273}), (100, {0})])
def test_send__parity_restores_what_was_lost(
    pair: tuple[IndependentEndpoint, _core.Engine], count: int, lost: set[int]
) -> None:
    """Sums by the clauses alone."""
    peer, engine = pair
    peer.peer_early = 10**6
    tensor, target = values(count), np.zeros(count, np.float32)
    operation = receive(engine, target, 3)
    peer.lose_out = lost.__contains__
    state = peer.post_send(3, tensor.tobytes(), element=FLOAT32, parities=4)
    peer.pump(lambda: state.status is not None)
    assert (state.status, state.round) == (0, 0)
    assert done(engine, operation).status == "complete"
    assert target.tobytes() == tensor.tobytes()
    counters = engine.counters()
    assert counters["segments_restored"] == len(lost)
    assert counters["bitmaps_sent"] == 0
