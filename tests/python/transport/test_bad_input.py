"""Bad input is refused at once, by one exception that names rank, tensor and cause, and harms nothing else.

A refused post must raise within REFUSAL_SECONDS and lend nothing; a transfer that the other side contradicts must fail
on both sides within MISMATCH_SECONDS. After each test a good transfer still works.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from transport_jobs import exchange, local_job, takes

import mlt

REFUSAL_SECONDS = 0.5
MISMATCH_SECONDS = 2.0


@pytest.fixture(scope="module")
def job() -> Iterator[list[mlt.Context]]:
    with local_job(2, services=1) as contexts:
        yield contexts


@pytest.fixture(autouse=True)
def others_go_on(job: list[mlt.Context]) -> Iterator[None]:
    """A transfer that is under way during the test, and one after it, arrive; nothing stays lent."""
    meanwhile = np.zeros(1_000, np.float32)
    receive = job[0].post_recv(meanwhile, from_=1, tag=50_000)
    yield
    send = job[1].post_send(np.full(1_000, 3, np.float32), to=0, tag=50_000)
    receive.wait(10)
    send.wait(10)
    assert (meanwhile == 3).all()
    after = np.zeros(1_000, np.float32)
    exchange(job[0], job[1], np.ones(1_000, np.float32), after, tag=50_001)
    assert after.all()
    assert [context.engine.pinned for context in job] == [0, 0, 0]


def refused(error: type[mlt.MltError], pattern: str) -> Any:
    return pytest.raises(error, match=f"(?s)^rank [0-9]+: .*{pattern}")


BAD_LANDINGS = [
    (np.zeros((8, 8), np.float32)[:, ::2], r"float32\[8, 4\] is not C-contiguous"),
    (np.zeros((8, 8), np.float32).T[:, :3], r"float32\[8, 3\] is not C-contiguous"),
    (np.broadcast_to(np.zeros(4), (3, 4)), r"float64\[3, 4\] is not C-contiguous"),
    (np.asfortranarray(np.zeros((3, 4), np.int16)), r"int16\[3, 4\] is not C-contiguous"),
    (memoryview(bytearray(16))[::2], r"uint8\[8\] is not C-contiguous"),
    (b"read-only", r"uint8\[9\] is read-only"),
    (np.zeros(4, ">f4"), "'>f'"),
    (np.zeros(4, np.complex64), "'Zf'"),
    (np.zeros(4, "f4,i4"), "element type"),
    (np.array([object()]), "element type"),
    (np.zeros(2, np.longdouble), "element type"),
    ([1.0, 2.0], "a list is not"),
    (None, "a NoneType is not"),
    ("text", "a str is not"),
]


@pytest.mark.parametrize(("landing", "cause"), BAD_LANDINGS, ids=[cause for _, cause in BAD_LANDINGS])
def test_post_recv__rejects_a_buffer_it_cannot_fill(job: list[mlt.Context], landing: Any, cause: str) -> None:
    with takes(at_most=REFUSAL_SECONDS), refused(mlt.InvalidBufferError, f"receive of tag 77 from rank 0.*{cause}"):
        job[1].post_recv(landing, from_=0, tag=77)


def test_post_recv__rejects_a_read_only_array(job: list[mlt.Context]) -> None:
    landing = np.full((2, 3), 5, np.float32)
    landing.flags.writeable = False
    with refused(mlt.InvalidBufferError, r"tag 77 from rank 0.*float32\[2, 3\] is read-only"):
        job[1].post_recv(landing, from_=0, tag=77)
    assert (landing == 5).all()


@pytest.mark.parametrize(("landing", "cause"), BAD_LANDINGS[:5], ids=[cause for _, cause in BAD_LANDINGS[:5]])
def test_post_send__rejects_a_strided_tensor(job: list[mlt.Context], landing: Any, cause: str) -> None:
    with takes(at_most=REFUSAL_SECONDS), refused(mlt.InvalidBufferError, f"send of tag 77 to rank 1.*{cause}"):
        job[0].post_send(landing, to=1, tag=77)


def test_post__rejects_torch_tensors_that_are_not_plain_host_memory(job: list[mlt.Context]) -> None:
    torch = pytest.importorskip("torch")
    bad = [
        (torch.zeros(4, 6)[:, ::2], r"torch.float32\[4, 3\] is not C-contiguous; pass tensor.contiguous"),
        (torch.zeros(4, device="meta"), "device meta.*cpu"),
        (torch.zeros(4, dtype=torch.complex64), "torch.complex64"),
        (torch.eye(3).to_sparse(), "layout torch.sparse_coo"),
    ]
    for tensor, cause in bad:
        with takes(at_most=REFUSAL_SECONDS), refused(mlt.InvalidBufferError, f"tag 5 from rank 0.*{cause}"):
            job[1].post_recv(tensor, from_=0, tag=5)


def test_post__rejects_a_tensor_on_a_device(job: list[mlt.Context]) -> None:
    class OnDevice:
        """The attributes of a CUDA tensor that are read here."""

        device, dtype, layout, shape = "cuda:0", "torch.float32", "torch.strided", (2, 2)

        def data_ptr(self) -> int:
            raise AssertionError("the pointer of a device tensor was asked for")

        def is_contiguous(self) -> bool:
            return True

        def numel(self) -> int:
            return 4

        def element_size(self) -> int:
            return 4

    with refused(mlt.InvalidBufferError, r"torch.float32\[2, 2\] is on device cuda:0.*tensor.cpu\(\)"):
        job[0].post_send(OnDevice(), to=1)


@pytest.mark.parametrize("bound", [-0.1, 1.0, 1.5, float("nan"), float("inf"), -float("inf")])
def test_post_recv__rejects_a_loss_bound_outside_its_range(job: list[mlt.Context], bound: float) -> None:
    landing = np.full(10, 5, np.float32)
    with takes(at_most=REFUSAL_SECONDS), refused(mlt.ConfigError, r"tag 7 .*rank 0.*loss bound.*float32\[10\]"):
        job[1].post_recv(landing, bound, from_=0, tag=7)
    assert (landing == 5).all()


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "int64"])
def test_post_recv__rejects_a_loss_bound_for_integers(job: list[mlt.Context], dtype: str) -> None:
    with refused(mlt.InvalidBufferError, rf"tag 7 .*rank 0.*only floating-point.*{dtype}\[10\]"):
        job[1].post_recv(np.zeros(10, dtype), 0.1, from_=0, tag=7)


@pytest.mark.parametrize("peer", [0, 3, 99, -1, 70_000])
def test_post__rejects_an_unknown_peer(job: list[mlt.Context], peer: int) -> None:
    with takes(at_most=REFUSAL_SECONDS), refused(mlt.UnknownPeerError, rf"rank {peer} is not a peer.*ranks 0 to 2"):
        job[0].post_send(np.zeros(4), to=peer)
    with refused(mlt.UnknownPeerError, rf"rank {peer} "):
        job[0].post_recv(np.zeros(4), from_=peer)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"tag": -1}, "tag is -1"),
        ({"tag": 2**64}, "tag is 18446744073709551616"),
        ({"tag": 2**63}, "tag is 9223372036854775808"),
        ({"tag": 2**63}, "tag"),
        ({"layer": 2, "layers": 2}, "layer 2 of 2"),
        ({"layer": 0, "layers": 0}, "layer 0 of 0"),
        ({"timeout": 0.0}, "timeout is 0.0"),
        ({"timeout": float("nan")}, "timeout is nan"),
    ],
)
def test_post_send__rejects_bad_options(job: list[mlt.Context], options: dict[str, Any], cause: str) -> None:
    with pytest.raises(mlt.ConfigError, match=cause):
        job[0].post_send(np.zeros(4), to=1, **options)


@pytest.mark.parametrize("options", [{"fill": "ones"}, {"stop": "now"}, {"deadline": -1.0}])
def test_post_recv__rejects_bad_options(job: list[mlt.Context], options: dict[str, Any]) -> None:
    with pytest.raises(mlt.ConfigError, match=next(iter(options))):
        job[0].post_recv(np.zeros(4), from_=1, **options)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (np.zeros(3, bool), r"important .*\[3\].*12 segments"),
        (np.zeros((12, 1), np.uint8), r"priorities has shape \[12, 1\]"),
        (np.zeros(12, np.float32), "float32; return"),
        (
            mlt.SegmentPriorities(important=np.ones(12, bool), traffic_class=np.full(12, 8, np.uint8)),
            "classes are 0 to 7",
        ),
    ],
)
def test_post_send__rejects_a_bad_result_of_a_priority_function(
    job: list[mlt.Context], answer: Any, cause: str
) -> None:
    tensor = np.zeros(12 * job[0].segment_grid(np.zeros(1, np.float32), to=1).segment_elements, np.float32)
    with refused(
        mlt.InvalidBufferError, rf"send of tag 0 to rank 1 .*priority function: .*{cause}.*tensor of \d+ float32"
    ):
        job[0].post_send(tensor, lambda *_: answer, to=1)


def test_post_send__rejects_unknown_tag_bits(job: list[mlt.Context]) -> None:
    with refused(mlt.ConfigError, "segment priority 64 "):
        job[0].post_send(np.zeros(4), lambda *_: np.full(1, 0x40, np.uint8), to=1)


def test_post_send__a_failing_priority_function_posts_nothing(job: list[mlt.Context]) -> None:
    def fail(*_: object) -> np.ndarray:
        raise ZeroDivisionError("the user's own")

    with pytest.raises(ZeroDivisionError, match="the user's own"):
        job[0].post_send(np.zeros(4), fail, to=1)


def test_dtype__rejects_a_type_of_another_size(job: list[mlt.Context]) -> None:
    with refused(mlt.InvalidBufferError, "dtype 'float8' is not a supported element type"):
        job[0].post_send(np.zeros(4), to=1, dtype="float8")
    with refused(mlt.InvalidBufferError, "whole number of float32"):
        job[0].post_send(b"abc", to=1, dtype="float32")


@pytest.mark.parametrize("elements", [0, 9, 11, 5_000])
def test_transfer__size_mismatch_fails_both_sides(job: list[mlt.Context], elements: int) -> None:
    landing = bytearray(40)
    with takes(at_most=MISMATCH_SECONDS):
        receive = job[1].post_recv(landing, from_=0, tag=60, dtype="float32")
        send = job[0].post_send(np.ones(elements, np.float32), to=1, tag=60)
        with refused(mlt.SizeMismatchError, rf"receive of tag 60.*rank 0 sends {4 * elements} bytes.*float32\[10\]"):
            receive.wait(5)
        with refused(mlt.SizeMismatchError, rf"send of tag 60.*rank 1 receives 40 bytes.*float32\[{elements}\]"):
            send.wait(5)
    landing.extend(b"ours again")


def test_up_to__a_longer_tensor_fails_both_sides_and_the_next_works(job: list[mlt.Context]) -> None:
    landing = np.zeros(10, np.float32)
    with takes(at_most=MISMATCH_SECONDS):
        receive = job[1].post_recv(landing, from_=0, tag=63, up_to=True)
        send = job[0].post_send(np.ones(11, np.float32), to=1, tag=63)
        with refused(mlt.SizeMismatchError, r"receive of tag 63 \(up to 40 bytes.*rank 0 sends 44 bytes"):
            receive.wait(5)
        with refused(mlt.SizeMismatchError, r"send of tag 63.*rank 1 receives 40 bytes"):
            send.wait(5)
    assert not landing.any()
    assert exchange(job[0], job[1], np.ones(9, np.float32), landing, tag=63, up_to=True).bytes == 36
    with pytest.raises(TypeError, match="up_to is 'yes'; it is True or False"):
        job[1].post_recv(landing, from_=0, tag=63, up_to="yes")  # type: ignore[arg-type]


def test_transfer__type_mismatch_fails_both_sides(job: list[mlt.Context]) -> None:
    landing = bytearray(40)
    with takes(at_most=MISMATCH_SECONDS):
        receive = job[1].post_recv(landing, from_=0, tag=61, dtype="float32")
        send = job[0].post_send(np.ones(10, np.int32), to=1, tag=61)
        with refused(mlt.TypeMismatchError, r"tag 61.*rank 0 sends int32.*float32\[10\]"):
            receive.wait(5)
        with refused(mlt.TypeMismatchError, r"tag 61.*rank 1 receives float32.*int32\[10\]"):
            send.wait(5)
    landing.extend(b"ours again")


def test_poll_cq__delivers_failures_without_raising(job: list[mlt.Context]) -> None:
    receive = job[1].post_recv(np.zeros(10, np.float32), from_=0, tag=62)
    with pytest.raises(mlt.SizeMismatchError):
        job[0].post_send(np.ones(3, np.float32), to=1, tag=62).wait(5)
    with takes(at_most=MISMATCH_SECONDS):
        done: list[mlt.Completion] = []
        while not done:
            done = job[1].poll_cq()
    assert (done[0].op, done[0].status, done[0].failed) == (receive, "size_mismatch", True)
    with pytest.raises(mlt.SizeMismatchError) as caught:
        done[0].raise_if_failed()
    assert caught.value.completion is done[0]


def test_push_pull__rejects_bad_input(job: list[mlt.Context]) -> None:
    push_pull = mlt.PushPull(job[0])
    good = np.full(8, 5, np.float32)
    wide = np.zeros(16, np.float32)
    bad: list[tuple[type[mlt.MltError], Any, dict[str, Any], str]] = [
        (mlt.InvalidBufferError, np.zeros(8), {}, r"float32; convert the tensor \(tensor float64\[8\]\)"),
        (mlt.InvalidBufferError, wide[::2], {}, r"float32\[8\] is not C-contiguous"),
        (mlt.InvalidBufferError, bytes(16), {}, "read-only"),
        (mlt.InvalidBufferError, good, {"out": np.zeros(7, np.float32)}, r"`out` is float32\[7\]"),
        (mlt.InvalidBufferError, good, {"out": np.zeros(8, np.int32)}, r"`out` is int32\[8\]"),
        (mlt.InvalidBufferError, wide[:8], {"out": wide[4:12]}, "overlaps"),
        (mlt.ConfigError, good, {"loss_bound": 1.0}, "loss bound"),
        (mlt.ConfigError, good, {"loss_bound": float("nan")}, "loss bound"),
    ]
    for error, tensor, options, cause in bad:
        with takes(at_most=REFUSAL_SECONDS), refused(error, f"push-pull of key 4.*{cause}"):
            push_pull.push_pull(tensor, key=4, **options)
    for key in (-1, 2**40):
        with pytest.raises(mlt.ConfigError, match=f"key is {key}"):
            push_pull.push_pull(good, key=key)
    with pytest.raises(mlt.ConfigError, match="layer 3 of 2"):
        push_pull.push_pull(good, key=4, layer=3, layers=2)
    assert (good == 5).all()


def test_push_pull__needs_a_service_and_a_worker(job: list[mlt.Context]) -> None:
    with pytest.raises(mlt.ConfigError, match="rank 2 is a summation service"):
        mlt.PushPull(job[2])
    with pytest.raises(mlt.ConfigError, match="rank 0 is a worker"):
        mlt.SummationService(job[0])
    with (
        mlt.Context(0, 1) as alone,
        pytest.raises(mlt.ConfigError, match=r"no summation service.*mlt launch -s 1.*mlt serve"),
    ):
        mlt.PushPull(alone)


def test_push_pull__workers_that_disagree_on_the_size_fail(job: list[mlt.Context]) -> None:
    tensors = [np.full(1_000, 5, np.float32), np.full(2_000, 5, np.float32)]
    handles = [
        mlt.PushPull(context).push_pull(tensor, key=9, timeout=MISMATCH_SECONDS, name="weights")
        for context, tensor in zip(job[:2], tensors, strict=True)
    ]
    outcomes = []
    with takes(at_most=2 * MISMATCH_SECONDS):
        for handle in handles:
            try:
                handle.wait(5)
            except mlt.TransferError as error:
                outcomes.append(str(error))
    assert outcomes, "no worker was told"
    assert all("key 9 (weights)" in text for text in outcomes)
