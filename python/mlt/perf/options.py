"""Options of a measurement. Everything is validated here, before any process or socket exists.

Sizes are bytes, rates bits per second, times seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args, get_origin, get_type_hints

from mlt._shared.json_lines import quoted
from mlt._shared.similar_names import did_you_mean
from mlt._shared.units import format_loss, format_rate
from mlt.collectives import ALGORITHMS, PARTED_ALGORITHMS, ROOTED_ALGORITHMS
from mlt.errors import ConfigError
from mlt.options.faults import Faults
from mlt.perf.problem import BadOptionError

# Algorithms that each pattern may name.
CHOICES = {
    "allreduce": ALGORITHMS,
    "broadcast": ROOTED_ALGORITHMS,
    "reduce": ROOTED_ALGORITHMS,
    "allgather": PARTED_ALGORITHMS,
    "reducescatter": PARTED_ALGORITHMS,
}
PATTERNS = ("p2p", "incast", "alltoall", *CHOICES)
TRANSPORTS = ("tcp", "gloo", "mpi", "mpi-shm", "raw-udp")
ALL = "all"
OURS = "mlt"
STOPS = ("patient", "eager")
PRIORITIES = ("magnitude", "none")
AUTOMATIC = "automatic"
DATAPATHS = ("auto", "udp", "vma", "xdp")

DEFAULT_SIZES = (64 << 10, 1 << 20, 25 << 20)
MIN_BYTES, MAX_BYTES = 8, 4 << 30
MAX_RANKS, MAX_PATHS = 64, 16
MAX_SEGMENT_BYTES = 8_960  # PROTOCOL.md 3.2.7
MAX_ROUNDS = 1_000_000
MIN_RATE = 1_000_000
# A run between two hosts: limits for its options on the slowest network.
START_SECONDS = 90.0
MIN_RUN_SECONDS, MAX_RUN_SECONDS = 600.0, 86_400.0
# Max length of an error about options from another host.
MAX_ERROR = 300
# Max number of sizes, loss bounds or transports of one run.
MAX_SEVERAL = 64


def default_rounds(size: int) -> int:
    """A few seconds' worth on a fast network: enough for p99.9 if a round is short."""
    if size >= 16 << 20:
        return 20
    return 200 if size >= 1 << 20 else 1_000


@dataclass(frozen=True, kw_only=True)
class Options:
    """One run of ``mlt perf``. ``rounds`` None: by size. ``rate``: offered by the application, for every transport.

    ``loss_bounds``, ``algorithms`` (of ``CHOICES``), ``stop``, ``priority``, ``segment_bytes``, ``line_rate`` and
    ``faults`` apply to mlt only. ``compare`` may contain "all": then transports that are not installed are named and
    left out, while a missing transport requested by name fails the run. ``pin`` gives each rank one core, and is off by
    default: it slows down a library with several threads per rank (gloo's all-reduce several times).
    """

    pattern: str = "p2p"
    sizes: tuple[int, ...] = DEFAULT_SIZES
    ranks: int = 2
    rounds: int | None = None
    turns: int = 5
    loss_bounds: tuple[float, ...] = (0.0,)
    stop: str = "patient"
    priority: str = "magnitude"
    algorithms: tuple[str, ...] = (AUTOMATIC,)
    compare: tuple[str, ...] = ()
    segment_bytes: int | None = None
    paths: int = 1
    datapath: str = "auto"
    rate: int | None = None
    line_rate: int | None = None
    faults: str = ""
    pin: bool = False
    timeout: float = 60.0

    def __post_init__(self) -> None:
        _choice("pattern", self.pattern, PATTERNS)
        _choice("stop", self.stop, STOPS)
        _choice("priority", self.priority, PRIORITIES)
        _choice("datapath", self.datapath, DATAPATHS)
        for transport in self.compare:
            _choice("compare", transport, (*TRANSPORTS, ALL))
        self._check_algorithms()
        self._check_numbers()
        self._check_sizes()
        try:
            Faults.parse(self.faults)
        except ConfigError as error:
            raise BadOptionError(str(error)) from None

    def _check_algorithms(self) -> None:
        if not self.algorithms or len(set(self.algorithms)) != len(self.algorithms):
            raise BadOptionError("--algorithm: expected one or more algorithms, which differ")
        if self.pattern not in CHOICES and self.algorithms != (AUTOMATIC,):
            raise BadOptionError(
                f"--algorithm {','.join(self.algorithms)}: {self.pattern} has no such choice; {', '.join(CHOICES)} have"
            )
        for algorithm in self.algorithms:
            _choice("algorithm", algorithm, (AUTOMATIC, *CHOICES.get(self.pattern, ())))

    def _check_numbers(self) -> None:
        minimum = 2
        if not minimum <= self.ranks <= MAX_RANKS:
            raise BadOptionError(f"--ranks {self.ranks}: expected {minimum} to {MAX_RANKS}")
        if self.pattern == "p2p" and self.ranks != minimum:
            raise BadOptionError(
                f"--ranks {self.ranks}: pattern p2p has 2 ranks; incast has one receiver and many senders"
            )
        if self.rounds is not None and not 1 <= self.rounds <= MAX_ROUNDS:
            raise BadOptionError(f"--rounds {self.rounds}: expected 1 to {MAX_ROUNDS:,}")
        if not 1 <= self.turns <= 1_000:
            raise BadOptionError(f"--turns {self.turns}: expected 1 to 1,000")
        for bound in self.loss_bounds:
            if not (math.isfinite(bound) and 0 <= bound < 1):
                raise BadOptionError(f"--loss-bound {format_loss(bound)}: expected 0 or more, and less than 100%")
        if not self.loss_bounds or len(set(self.loss_bounds)) != len(self.loss_bounds):
            raise BadOptionError("--loss-bound: expected one or more bounds, which differ")
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise BadOptionError(f"--timeout {self.timeout:g}: expected more than 0 s")
        for name, rate in (("--rate", self.rate), ("--line-rate", self.line_rate)):
            if rate is not None and rate < MIN_RATE:
                raise BadOptionError(f"{name} {format_rate(rate)}: expected 1mbit or more")
        if self.segment_bytes is not None and (
            not 8 <= self.segment_bytes <= MAX_SEGMENT_BYTES or self.segment_bytes % 8
        ):
            raise BadOptionError(
                f"--segment-bytes {self.segment_bytes}: expected a multiple of 8, up to {MAX_SEGMENT_BYTES:,}"
            )
        if not 1 <= self.paths <= MAX_PATHS:
            raise BadOptionError(f"--paths {self.paths}: expected 1 to {MAX_PATHS}")
        if self.pattern == "broadcast" and self.loss_bounds != (0.0,):
            raise BadOptionError("--loss-bound: a broadcast loses nothing; expected 0")
        if self.pattern not in ("p2p", "incast"):  # a collective decides itself
            for name, value, default in (("priority", self.priority, PRIORITIES[0]), ("stop", self.stop, STOPS[0])):
                if value != default:
                    raise BadOptionError(f"--{name} {value}: {self.pattern} has no such choice; p2p and incast have")

    def _check_sizes(self) -> None:
        if not self.sizes:
            raise BadOptionError("--size: expected one or more sizes")
        for size in self.sizes:
            if not MIN_BYTES <= size <= MAX_BYTES or size % 4:
                raise BadOptionError(f"--size {size}: expected a multiple of 4 from {MIN_BYTES} B to 4 GiB")
            if self.pattern in ("alltoall", "allgather", "reducescatter") and size % (4 * self.ranks):
                raise BadOptionError(
                    f"--size {size}: cannot be divided among {self.ranks} ranks in whole elements of 4 bytes; expected "
                    f"a multiple of {4 * self.ranks}"
                )

    @property
    def context_arguments(self) -> dict[str, Any]:
        """Arguments of mlt's Context about paths, beyond its defaults."""
        given: dict[str, Any] = {} if self.paths == 1 else {"paths": self.paths}
        return given if self.datapath == DATAPATHS[0] else {**given, "datapath": self.datapath}

    @property
    def transports(self) -> tuple[str, ...]:
        """The other transports to run, each once, in the order of TRANSPORTS."""
        return tuple(transport for transport in TRANSPORTS if transport in self.compare or ALL in self.compare)

    def is_optional(self, transport: str) -> bool:
        """Whether the run continues without ``transport``: it was not requested by name."""
        return transport not in self.compare

    def rounds_of(self, size: int) -> int:
        """Timed rounds of one transport at one size."""
        return self.rounds if self.rounds is not None else default_rounds(size)

    @property
    def longest_seconds(self) -> float:
        """Max duration of a run with these options on a network that carries ``MIN_RATE``."""
        entrants = len(self.loss_bounds) * len(self.algorithms) + len(self.transports)
        seconds = START_SECONDS * 3 * (1 + len(self.transports))
        for size in self.sizes:
            pace = size * self.ranks * 8 / (self.rate or MIN_RATE)
            rounds = (self.rounds_of(size) + self.turns) * (1.0 + 2 * pace)
            seconds += entrants * (rounds + (2 + self.turns) * self.timeout)
        return min(max(seconds, MIN_RUN_SECONDS), MAX_RUN_SECONDS)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; ``Options.read`` is the inverse."""
        return asdict(self)

    @classmethod
    def read(cls, raw: object) -> Options:
        """Options from another host's JSON, validated like any other. Raises BadOptionError."""
        if not isinstance(raw, dict):
            raise BadOptionError("options of another program than mlt perf")
        made: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
        kinds = get_type_hints(cls)
        for name, value in made.items():
            if name not in kinds or not _fits(value, kinds[name]):
                text = f"option {quoted(name)} {quoted(value)}: not one of this version of mlt perf"
                raise BadOptionError(f"{text}; install the same mlt release on all hosts")
        try:
            return cls(**made)
        except BadOptionError as error:
            raise BadOptionError(quoted(str(error), MAX_ERROR)) from None


def _fits(value: object, kind: Any) -> bool:
    """Whether ``value``, read from JSON, has the type ``kind`` of a field of ``Options``."""
    if get_origin(kind) is tuple:
        return (
            isinstance(value, tuple)
            and len(value) <= MAX_SEVERAL
            and all(_fits(one, get_args(kind)[0]) for one in value)
        )
    if get_args(kind):  # X | None
        return any(_fits(value, one) for one in get_args(kind))
    return type(value) in (int, float) if kind is float else type(value) is kind


def _choice(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise BadOptionError(f"--{name} {value!r}: expected one of {', '.join(allowed)}{did_you_mean(value, allowed)}")
