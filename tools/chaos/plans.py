"""Operations of the ranks, drawn from the seed: both sides of a transfer draw the same without communication."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

# numpy's names, and the codes on mlt's wire (src/wire/element.h).
ELEMENT_CODES = {"uint8": 0, "int32": 3, "float16": 5, "float32": 7, "float64": 8}
ELEMENT_BYTES = {"uint8": 1, "int32": 4, "float16": 2, "float32": 4, "float64": 8}
FLOATS = ("float16", "float32", "float64")
# Includes bounds that a floating-point product rounds wrong.
BOUNDS = (0.0, 0.0, 0.0, 0.001, 0.05, 0.1, 0.29, 0.5, 0.6, 0.75)
TIMEOUTS = (0.4, 1.5, 4.0, 8.0, 8.0, 8.0)
ORPHAN_TIMEOUTS = (0.2, 0.6, 1.5)
TAGS = 6
FIRST_ORPHAN_TAG = 1_000

Verb = Literal["all_reduce", "all_to_all", "gather"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """One transfer, known to both ranks. ``only``: the other side posts nothing. Times in seconds.

    ``priority``: "magnitude", "important", or "critical" (every ``critical_every``-th segment, from the first on).
    ``send_bytes`` and ``receive_bytes`` differ where the sides are to disagree.
    """

    number: int
    tag: int
    generation: int
    send_bytes: int
    receive_bytes: int
    send_dtype: str
    receive_dtype: str
    bound: float
    stop: Literal["patient", "eager"]
    fill: Literal["zero", "keep"]
    deadline: float | None
    send_timeout: float
    receive_timeout: float
    priority: str
    critical_every: int
    layer: int
    only: Literal["", "send", "receive"]
    cancel_send: float | None
    cancel_receive: float | None


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a group. ``bytes``: of the tensor, or of each rank's part."""

    sequence: int
    verb: Verb
    bytes: int
    bound: float
    average: bool
    root: int
    timeout: float
    cancel_by: int | None


def operation_id(job: int, sender: int, receiver: int, number: int, *, is_receive: bool) -> int:
    """Number of one side of a transfer, which determines its contents (tests/sim/chaos/digest.h)."""
    return job << 29 | sender << 25 | receiver << 21 | number << 1 | is_receive


def collective_id(job: int, group: int, rank: int, sequence: int) -> int:
    """Number of one rank's side of a collective; bits 21 to 24 stay free for the receiving rank of a part."""
    return (1 << 10 | job) << 29 | rank << 25 | group << 16 | sequence


def size(random_: random.Random) -> int:
    """Bytes of a tensor: mostly small, some of a few MB, with many different remainders."""
    kind = random_.random()
    if kind < 0.04:
        return 0
    if kind < 0.5:
        return random_.randrange(1, 16_384)
    if kind < 0.93:
        return random_.randrange(16_384, 300_000)
    if kind < 0.96:
        return random_.choice((40_000, 400_000, 1_000_000))  # round numbers of elements
    return random_.randrange(300_000, 3_000_000)


def transfers(seed: int, job: int, sender: int, receiver: int) -> Iterator[Transfer]:
    """All transfers from one rank to another, in the order of their posts on both sides."""
    random_ = random.Random(f"{seed}/{job}/{sender}/{receiver}")
    generations = [0] * TAGS
    for number in itertools.count():
        dtype = random_.choice(("float32", "float32", "float32", "float64", "float16", "int32", "uint8"))
        bytes_ = size(random_) // ELEMENT_BYTES[dtype] * ELEMENT_BYTES[dtype]
        kind = random_.random()
        only: Literal["", "send", "receive"] = "send" if kind < 0.01 else "receive" if kind < 0.02 else ""
        disagree = "size" if 0.02 <= kind < 0.03 else "type" if 0.03 <= kind < 0.035 else ""
        is_float = dtype in FLOATS
        priority = random_.choice(("magnitude", "magnitude", "important", "critical"))
        cancels = [random_.uniform(0, 0.05) if random_.random() < 0.02 else None for _ in range(2)]
        timeouts = random_.choices(ORPHAN_TIMEOUTS if only else TIMEOUTS, k=2)
        tag = random_.randrange(TAGS)
        generation = 0 if only else generations[tag]
        if only:
            tag = FIRST_ORPHAN_TAG + number
        else:
            generations[tag] += 1
        yield Transfer(
            number=number,
            tag=tag,
            generation=generation,
            send_bytes=bytes_,
            receive_bytes=bytes_ + 64 if disagree == "size" else bytes_,
            send_dtype=dtype,
            # Of the same size, so that only the type differs.
            receive_dtype={"float32": "int32", "int32": "float32"}.get(dtype, dtype) if disagree == "type" else dtype,
            bound=random_.choice(BOUNDS) if is_float and disagree != "type" else 0.0,
            stop="eager" if random_.random() < 0.2 else "patient",
            fill="keep" if random_.random() < 0.3 else "zero",
            deadline=random_.uniform(0.01, 1.0) if random_.random() < 0.05 else None,
            send_timeout=timeouts[0],
            receive_timeout=timeouts[1],
            priority=priority,
            critical_every=random_.randrange(2, 9),
            layer=random_.randrange(4),
            only=only,
            cancel_send=cancels[0],
            cancel_receive=cancels[1],
        )


def groups(seed: int, job: int, ranks: int) -> list[list[int]]:
    """The groups of a job: all ranks, and a smaller group."""
    random_ = random.Random(f"{seed}/{job}/groups")
    smaller = random_.sample(range(ranks), max(2, ranks - 1))
    everybody = list(range(ranks))
    return [everybody] if smaller == everybody else [everybody, smaller]


def collectives(seed: int, job: int, group: int, ranks: list[int]) -> Iterator[Collective]:
    """All collectives of one group, in order."""
    random_ = random.Random(f"{seed}/{job}/group {group}")
    for sequence in itertools.count():
        verb: Verb = random_.choice(("all_reduce", "all_reduce", "all_to_all", "gather"))
        largest = random_.choice((256, 65_536, 1_500_000 if verb == "all_reduce" else 300_000))
        yield Collective(
            sequence=sequence,
            verb=verb,
            bytes=random_.randrange(1, largest // 8) * 8,
            bound=random_.choice((0.0, 0.1)) if verb == "all_reduce" else 0.0,
            average=random_.random() < 0.5,
            root=random_.choice(ranks),
            timeout=random_.choice((4.0, 8.0)),
            # The first failure of a group is permanent, so few collectives are cancelled.
            cancel_by=random_.choice(ranks) if random_.random() < 0.002 else None,
        )
