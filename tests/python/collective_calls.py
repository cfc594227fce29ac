"""Every collective in one form: what its members pass, and what they must receive. Also the member of a testbed's job
that calls them all (``python collective_calls.py RANK RANKS``)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import mlt
from mlt import Reduction

VERBS = [
    "all_reduce", "reduce_scatter", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "barrier",
]  # fmt: skip
# Each member sends to the next of the group, and receives from the one before.
SEND_RECV = "send_recv"
ALL_VERBS = [*VERBS, SEND_RECV]
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
ROOTED = ("reduce", "gather", "scatter", "broadcast")
FLOATING = ["float64", "float32", "float16", "bfloat16"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
ELEMENTS = [*FLOATING, *INTEGERS, "bool"]
UFUNCS: dict[Reduction, Any] = {
    Reduction.SUM: np.add,
    Reduction.MEAN: np.add,
    Reduction.MIN: np.minimum,
    Reduction.MAX: np.maximum,
    Reduction.PRODUCT: np.multiply,
    Reduction.AND: np.bitwise_and,
    Reduction.OR: np.bitwise_or,
    Reduction.XOR: np.bitwise_xor,
}
BITWISE = (Reduction.AND, Reduction.OR, Reduction.XOR)


def is_defined(op: Reduction, element: str) -> bool:
    """Whether elements of this type are combined by ``op``."""
    return op not in BITWISE if element in FLOATING else op != Reduction.MEAN


def encoded(values: np.ndarray, element: str) -> np.ndarray:
    """Small whole numbers as elements of a type; numpy lacks bfloat16, which is given as bits."""
    if element == "bool":
        return values > 1
    if element == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(element)


def decoded(array: np.ndarray, element: str) -> np.ndarray:
    return (array.astype(np.uint32) << 16).view(np.float32) if element == "bfloat16" else array


class SendRecv:
    """A receive from the member before and a send to the next, as one operation."""

    def __init__(
        self, context: mlt.Context, buffers: tuple[Any, Any], group: list[int], options: dict[str, Any]
    ) -> None:
        index = group.index(context.rank)
        self._operations = (
            context.post_recv(buffers[1], from_=group[index - 1], **options),
            context.post_send(buffers[0], to=group[(index + 1) % len(group)], **options),
        )

    def wait(self, seconds: float) -> mlt.Completion:
        """The completion of the receive, once both have ended. Raises the error of the first that failed."""
        ends, error = [], None
        for operation in self._operations:
            try:
                ends.append(operation.wait(seconds))
            except mlt.TransferError as failure:
                error = error or failure
        if error is not None:
            raise error
        return ends[0]

    def cancel(self) -> None:
        for operation in self._operations:
            operation.cancel()


@dataclass
class Call:
    """One call of a collective by a group of ``members`` (any number), with ``part`` elements of each for each."""

    verb: str
    members: int
    part: int = 7
    element: str = "float32"
    op: Reduction | None = None
    root: int = 0  # index in the group

    def _whole(self, index: int) -> np.ndarray:
        """The values that a member contributes: 1 to 3, so that sums and products of few are exact in every type."""
        count = self.part * (self.members if self.verb in ("reduce_scatter", "scatter", "all_to_all") else 1)
        return (np.arange(count) * 5 + index * 7 + np.arange(count) // 3) % 3 + 1

    def buffers(self, index: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Input and output of a member."""
        if self.verb == "barrier":
            return None, None
        own = encoded(self._whole(index), self.element)
        if self.verb in ("all_reduce", "broadcast"):
            return None, own
        parts = self.members if self.verb in ("all_gather", "gather", "all_to_all") else 1
        output = np.zeros(self.part * parts, own.dtype)
        is_root = index == self.root
        has_input = self.verb != "scatter" or is_root
        has_output = self.verb not in ("gather", "reduce") or is_root
        return own if has_input else None, output if has_output else None

    def expected(self, index: int) -> np.ndarray | None:
        """Decoded output of a member; None if it has none."""
        if self.buffers(index)[1] is None:
            return None
        all_ = [decoded(encoded(self._whole(i), self.element), self.element) for i in range(self.members)]
        mine = slice(index * self.part, (index + 1) * self.part)
        if self.verb == "broadcast":
            return all_[self.root]
        if self.verb == SEND_RECV:
            return all_[index - 1]
        if self.verb == "scatter":
            return all_[self.root][mine]
        if self.verb in ("all_gather", "gather"):
            return np.concatenate(all_)
        if self.verb == "all_to_all":
            return np.concatenate([one[mine] for one in all_])
        assert self.op is not None
        result: np.ndarray = UFUNCS[self.op].reduce(np.stack(all_), axis=0, dtype=all_[0].dtype)
        if self.op == Reduction.MEAN:
            result = result.astype(np.float64) / self.members
        return result[mine] if self.verb == "reduce_scatter" else result

    def post(
        self,
        context: mlt.Context,
        buffers: tuple[np.ndarray | None, np.ndarray | None],
        ranks: list[int] | None = None,
        **options: Any,
    ) -> mlt.Operation | SendRecv:
        input_, output = buffers
        if self.verb == SEND_RECV:
            group = list(range(context.world_size)) if ranks is None else ranks
            options |= {"tag": options.pop("stream", 0), "dtype": self.element if self.element == "bfloat16" else None}
            return SendRecv(context, buffers, group, options)
        options["ranks"] = ranks
        if self.verb in REDUCING and self.op is not None:
            options["op"] = self.op
        if self.verb in ROOTED:
            options["root"] = self.root if ranks is None else ranks[self.root]
        if self.verb != "barrier":
            options["dtype"] = self.element if self.element == "bfloat16" else None
        post = getattr(context, f"post_{self.verb}")
        if self.verb == "barrier":
            return post(**options)
        if self.verb in ("all_reduce", "broadcast"):
            return post(output, **options)
        if self.verb in ("gather", "reduce"):
            return post(input_, output, **options)
        return post(output, input_, **options)

    def check(self, index: int, buffers: tuple[np.ndarray | None, np.ndarray | None]) -> None:
        expected = self.expected(index)
        if expected is None or buffers[1] is None:
            assert (expected is None) == (buffers[1] is None)
            return
        got = decoded(buffers[1], self.element)
        if self.op != Reduction.MEAN:
            np.testing.assert_array_equal(got, expected)
            return
        tolerance = {"bfloat16": 8e-3, "float16": 1e-3}.get(self.element, 1e-6)
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=tolerance)


def record_push_pull(record_property: Callable[[str, object], None], failure: str, text: str) -> None:
    """Record the end of push-pulls by a failure: a cell of docs/results/collectives.md."""
    record_property("cell", ("push-pull and failures", failure, "push-pulls in progress", text))


def outcome(operation: mlt.Operation | SendRecv, seconds: float) -> tuple[str, str]:
    """The end of an operation: the exception's name, or "complete"; and its text."""
    try:
        return operation.wait(seconds).status, ""
    except mlt.TransferError as error:
        return type(error).__name__, str(error)


def all_calls(members: int) -> dict[str, Call]:
    """One call of each collective, of types and sizes that are their usual ones, and a send and receive."""
    return {
        verb: Call(verb, members, 20_000, op=Reduction.SUM if verb in REDUCING else None, root=members - 1)
        for verb in ALL_VERBS
    }


def posted(
    context: mlt.Context, ranks: list[int], first_stream: int = 0, **options: Any
) -> dict[str, tuple[Call, Any, mlt.Operation | SendRecv]]:
    """Every collective at once, each on a stream of its own: how one ends has no effect on another."""
    index = ranks.index(context.rank)
    found = {}
    for stream, (verb, call) in enumerate(all_calls(len(ranks)).items(), first_stream):
        buffers = call.buffers(index)
        found[verb] = call, buffers, call.post(context, buffers, ranks, stream=stream, **options)
    return found


def member(rank: int, ranks: int) -> None:
    """Each line of input is a list of ranks, which post every collective; the outcomes are printed as JSON. "leave"
    closes the context."""
    with mlt.Context(
        rank, ranks, master_addr="10.77.0.1", rendezvous_port=29001, connect_timeout=40,
        secret="a secret of this test only",
    ) as context:  # fmt: skip
        print(json.dumps("up"), flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            if request == "leave":
                break
            calls = posted(context, request, timeout=50)
            print(json.dumps("posted"), flush=True)
            outcomes = {}
            for verb, (call, buffers, operation) in calls.items():
                outcomes[verb] = outcome(operation, 60)
                if outcomes[verb][0] == "complete":
                    call.check(request.index(rank), buffers)
            print(json.dumps(outcomes), flush=True)
    print(json.dumps("closed"), flush=True)


if __name__ == "__main__":
    member(int(sys.argv[1]), int(sys.argv[2]))
