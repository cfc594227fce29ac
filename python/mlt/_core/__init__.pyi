"""Types of the native module. ``tests/python/transport/test_core_stub.py`` holds them against the module itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

PROTOCOL_VERSION: int

_Status = Literal[
    "complete",
    "within_bound",
    "deadline",
    "size_mismatch",
    "type_mismatch",
    "peer_failed",
    "timed_out",
    "cancelled",
]

_Kind = Literal[
    "send",
    "recv",
    "all_reduce",
    "all_to_all",
    "gather",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "scatter",
    "barrier",
    "push_pull",
]

class TensorInfo:
    @property
    def address(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def elements(self) -> int: ...
    @property
    def element_bytes(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def floating_point(self) -> bool: ...
    @property
    def shape(self) -> tuple[int, ...]: ...

def tensor_info(tensor: Any, dtype: str = "", writable: bool = False) -> TensorInfo: ...
def sum_of_squares(tensor: Any, dtype: str = "") -> float: ...
def clear(tensor: Any) -> None: ...

class Completion:
    @property
    def operation(self) -> int: ...
    @property
    def kind(self) -> _Kind: ...
    @property
    def failed_peer(self) -> int: ...
    @property
    def is_send(self) -> bool: ...
    @property
    def status(self) -> _Status: ...
    @property
    def peer(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def missing_bytes(self) -> int: ...
    @property
    def allowed_missing_bytes(self) -> int: ...
    @property
    def repaired_segments(self) -> int: ...
    @property
    def elapsed_ns(self) -> int: ...
    @property
    def missing(self) -> list[tuple[int, int]]: ...
    @property
    def error(self) -> str: ...
    @property
    def failed(self) -> bool: ...
    @property
    def handle(self) -> Any: ...

@dataclass(kw_only=True)
class FaultOptions:
    drop: float = ...
    duplicate: float = ...
    reorder: float = ...
    corrupt: float = ...
    delay_ns: int = ...
    jitter_ns: int = ...
    seed: int = ...
    control: bool = ...

@dataclass(kw_only=True)
class PathOptions:
    host: str = ...
    interface: str = ...
    udp_port: int = ...
    flow_label: int = ...
    segments: list[str] = ...
    segments_to: list[tuple[int, list[str]]] = ...

@dataclass(kw_only=True)
class Options:
    rank: int = ...
    ranks: int = ...
    job: int = ...
    secret: bytes = ...  # cannot be read
    insecure: bool = ...
    host: str = ...
    udp_port: int = ...
    paths: list[PathOptions] = ...
    control_port: int = ...
    segment_bytes: int = ...
    line_rate_bits_per_second: float = ...
    receive_buffer_bytes: int = ...
    operation_timeout_ns: int = ...
    peer_timeout_ns: int = ...
    suspended_timeout_ns: int = ...
    spin_us: int = ...
    shares_by_rate: bool = ...
    checksums: bool = ...
    erasure_correction: bool = ...
    connects_on_use: bool = ...
    max_operations: int = ...
    max_tags: int = ...
    early_segments: int = ...
    early_transfers: int = ...
    max_window_mib: int = ...
    busy_poll_us: int = ...
    data_dscp: list[int] = ...
    control_dscp: int = ...
    datapath: str = ...
    faults: FaultOptions = ...

class Reduction(Enum):
    SUM = 0
    MEAN = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4
    AND = 5
    OR = 6
    XOR = 7

class Algorithm(Enum):
    AUTOMATIC = 0
    DIRECT = 1
    CENTRAL = 2
    RING = 3
    HALVING = 4
    CHAIN = 5
    TWO_LEVEL = 6

class PathStatus:
    @property
    def path(self) -> int: ...
    @property
    def local(self) -> str: ...
    @property
    def packets_sent(self) -> int: ...
    @property
    def packets_reported(self) -> int: ...
    @property
    def loss(self) -> float: ...
    @property
    def rtt_ns(self) -> int: ...
    @property
    def share(self) -> float: ...
    @property
    def silent(self) -> bool: ...
    @property
    def resting(self) -> bool: ...
    @property
    def runs_sent(self) -> int: ...
    @property
    def runs_failed(self) -> int: ...

class Engine:
    def __init__(self, options: Options) -> None: ...
    @property
    def data_dscp(self) -> list[int]: ...
    @property
    def control_dscp(self) -> int: ...
    @property
    def control_port(self) -> int: ...
    @property
    def udp_port(self) -> int: ...
    @property
    def receive_buffer_bytes(self) -> int: ...
    @property
    def wanted_receive_buffer_bytes(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def pinned(self) -> int: ...
    def connect(self, peers: list[tuple[int, str, int]], timeout_ns: int) -> None: ...
    def close(self, failure: str = "") -> None: ...
    def close_at_exit(self, failure: str = "") -> None: ...
    def segment_count(self, peer: int, total_bytes: int) -> int: ...
    def segment_bytes(self, peer: int) -> int: ...
    def paths(self, peer: int) -> list[PathStatus]: ...
    def awaited_ranks(self, operation: int) -> list[int]: ...
    def is_peer_up(self, peer: int) -> bool: ...
    def has_peer_left(self, peer: int) -> bool: ...
    def peer_failure(self, peer: int) -> str: ...
    def rate_bits_per_second(self, peer: int) -> float: ...
    def traffic_class(self, layer: int, layers: int) -> int: ...
    def counters(self) -> dict[str, int]: ...
    def post_send(
        self,
        tensor: Any,
        to: int,
        tag: int,
        layer: int,
        layers: int,
        priorities: Any | None,
        by_magnitude: bool,
        timeout_ns: int,
        dtype: str,
    ) -> int: ...
    def post_recv(
        self,
        tensor: Any,
        from_: int,
        tag: int,
        loss_bound: float,
        keep_missing: bool,
        eager: bool,
        deadline_ns: int,
        timeout_ns: int,
        dtype: str,
        up_to: bool = ...,
    ) -> int: ...
    def check_sends(self, transfers: Sequence[tuple[Any, int] | tuple[Any, int, int]], dtype: str) -> None: ...
    def post_sends(
        self,
        transfers: Sequence[tuple[Any, int] | tuple[Any, int, int]],
        layer: int,
        layers: int,
        priorities: list[Any] | None,
        by_magnitude: bool,
        timeout_ns: int,
        dtype: str,
    ) -> list[int]: ...
    def post_recvs(
        self,
        transfers: Sequence[tuple[Any, int] | tuple[Any, int, int]],
        loss_bound: float,
        keep_missing: bool,
        eager: bool,
        deadline_ns: int,
        timeout_ns: int,
        dtype: str,
        up_to: bool,
    ) -> list[int]: ...
    def post_all_reduce(
        self,
        tensor: Any,
        reduction: Reduction,
        algorithm: Algorithm,
        lossy_results: bool,
        ranks: Sequence[int],
        stream: int,
        loss_bound: float,
        layer: int,
        layers: int,
        timeout_ns: int,
        dtype: str,
        check_finite: bool = ...,
    ) -> int: ...
    def post_all_to_all(
        self,
        output: Any,
        input: Any,
        output_parts: list[int],
        input_parts: list[int],
        ranks: Sequence[int],
        stream: int,
        loss_bound: float,
        layer: int,
        layers: int,
        timeout_ns: int,
        dtype: str,
        check_finite: bool = ...,
    ) -> int: ...
    def post_gather(
        self,
        input: Any,
        output: Any | None,
        root: int,
        ranks: Sequence[int],
        stream: int,
        loss_bound: float,
        layer: int,
        layers: int,
        timeout_ns: int,
        dtype: str,
        check_finite: bool = ...,
    ) -> int: ...
    def post_all_gather(
        self,
        output: Any,
        input: Any,
        algorithm: Algorithm,
        ranks: Sequence[int],
        stream: int,
        loss_bound: float,
        layer: int,
        layers: int,
        timeout_ns: int,
        dtype: str,
        check_finite: bool = ...,
    ) -> int: ...
    def post_reduce_scatter(
        self,
        output: Any,
        input: Any,
        reduction: Reduction,
        algorithm: Algorithm,
        ranks: Sequence[int],
        stream: int,
        loss_bound: float,
        layer: int,
        layers: int,
        timeout_ns: int,
        dtype: str,
        check_finite: bool = ...,
    ) -> int: ...
    def post_broadcast(
        self,
        tensor: Any,
        root: int,
        algorithm: Algorithm,
        ranks: Sequence[int],
        stream: int,
        loss_bound: float,
        layer: int,
        layers: int,
        timeout_ns: int,
        dtype: str,
        check_finite: bool = ...,
    ) -> int: ...
    def post_reduce(
        self,
        input: Any,
        output: Any | None,
        root: int,
        reduction: Reduction,
        algorithm: Algorithm,
        ranks: Sequence[int],
        stream: int,
        loss_bound: float,
        layer: int,
        layers: int,
        timeout_ns: int,
        dtype: str,
        check_finite: bool = ...,
    ) -> int: ...
    def post_scatter(
        self,
        output: Any,
        input: Any | None,
        root: int,
        ranks: Sequence[int],
        stream: int,
        loss_bound: float,
        layer: int,
        layers: int,
        timeout_ns: int,
        dtype: str,
        check_finite: bool = ...,
    ) -> int: ...
    def post_barrier(
        self, ranks: Sequence[int], stream: int, layer: int, layers: int, timeout_ns: int, end_of_group: str = ""
    ) -> int: ...
    def cancel(self, operation: int, reason: str = "") -> None: ...
    def poll(self, max_completions: int) -> list[Completion]: ...
    def wait(
        self, operation: int, timeout_ns: int, on_quiet: Callable[[int], None] | None = None
    ) -> Completion | None: ...
    def wait_all(
        self, operations: Sequence[int], timeout_ns: int, on_quiet: Callable[[int], None] | None = None
    ) -> list[Completion] | None: ...
    def watch(self, operation: int) -> bool: ...
    def next_watched(self, timeout_ns: int) -> Completion | None: ...
    def is_done(self, operation: int) -> bool | None: ...
    def set_hosts(self, hosts: Sequence[int]) -> None: ...
    def use_services(
        self, ranks: Sequence[int], workers: int, max_dead_services: int = ..., loads: Sequence[float] = ...
    ) -> None: ...
    def push_pull(
        self,
        tensor: Any,
        out: Any | None,
        key: int,
        loss_bound: float,
        lossy_results: bool,
        average: bool,
        layer: int,
        layers: int,
        timeout_ns: int,
        handle: Any,
    ) -> int: ...
    def serve(self, workers: int, max_dead_workers: int = ..., max_wait_ns: int = ...) -> None: ...
    def take_notices(self) -> list[str]: ...
    def take_exclusion(self) -> str: ...
    def wait_workers_gone(self, timeout_ns: int) -> bool: ...

def simulate_transfers(
    *,
    hosts: int,
    switches: int,
    cables: Sequence[tuple[int, int, float, int]],
    transfers: Sequence[tuple[int, int, int, int, Sequence[int]]],
    ways: Sequence[tuple[int, int, Sequence[Sequence[int]]]] = ...,
    line_rates: Sequence[float] = ...,
    buffers: Sequence[int] = ...,
    paths: int = 1,
    queue_limit_bytes: int = 2_000_000,
    queue_threshold_bytes: int = 200_000,
    loss: float = 0.0,
    loss_bound: float = 0.0,
    seed: int = 1,
    segment_bytes: int = 1_432,
    limit_ns: int = 60_000_000_000,
    progress: Callable[[int], object] | None = None,
) -> dict[str, Any]: ...
def simulate_port(
    *,
    classes: Sequence[tuple[int, int, float, float]],
    packets: int,
    burst_packets: int = 1,
    senders: int = 1,
    packet_bytes: int = 1_500,
    port_rate: float = 12.5e9,
    nic_rate: float = 12.5e9,
    seed: int = 1,
) -> list[tuple[int, int, int, int, int]]: ...
