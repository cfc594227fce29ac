"""One rank of a job under faults: posts the seed's operations and writes every post and completion to its trace.

Started by tools/chaos on a host of the testbed, with the job's description as argument (JSON). Prints "up PID" once
connected, and "drained" once its operations have ended after the file ``stop`` appeared; leaves when the file ``close``
appears. Every trace line is one system call, so SIGKILL loses no written line.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import memory
import numpy as np
import plans

import mlt
from mlt import _core, priority

WINDOW = (2, 4)  # max operations in progress: on one side of a pair; of a group
REUSE_SECONDS = (0.0, 0.5)


@dataclass
class Under:
    """An operation in progress."""

    number: int
    handle: Any
    verb: str
    block: memory.Block
    dtype: str
    stream: Stream
    more: list[memory.Block] = field(default_factory=list)  # read-only buffers of a collective


@dataclass
class Stream:
    """Sequential operations of one side of a pair, or of a member of a group."""

    kind: str  # "send", "receive", "group"
    peer: int
    items: Iterator[Any]
    window: int
    number: int = 0  # of the group
    ranks: list[int] = field(default_factory=list)
    under_way: int = 0
    ended: bool = False


class Rank:
    """Owned by one thread."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job, self.rank, self.seed, self.number = job, int(job["rank"]), int(job["seed"]), int(job["job"])
        self.folder = Path(job["folder"])
        self.trace = os.open(
            self.folder / f"{self.number:04}-{self.rank}.trace", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        self.random = random.Random(f"{self.seed}/{self.number}/rank {self.rank}")
        self.context = mlt.Context(
            peer_timeout=job["peer_timeout"], connect_timeout=job["connect_timeout"], paths=job["paths"], datapath="udp"
        )
        self.under: dict[int, Under] = {}
        self.cancels: list[tuple[int, int]] = []  # time, handle's id
        self.used_again: deque[tuple[int, int, memory.Block]] = deque()  # time limit, operation, block
        self.streams = self._streams()

    def now(self) -> int:
        """The host's CLOCK_MONOTONIC, not this rank's shifted one."""
        return time.monotonic_ns() - int(self.job["clock_offset_ns"])

    def write(self, word: str, **values: Any) -> None:
        pairs = " ".join(f"{key}={value}" for key, value in values.items() if value is not None)
        os.write(self.trace, f"{word} job={self.number} rank={self.rank} {pairs}\n".encode())

    def _streams(self) -> list[Stream]:
        found = []
        ranks = int(self.job["ranks"])
        window = random.Random(f"{self.seed}/{self.number}/window").randint(*WINDOW)
        for peer in range(ranks):
            if peer != self.rank:
                out = plans.transfers(self.seed, self.number, self.rank, peer)
                into = plans.transfers(self.seed, self.number, peer, self.rank)
                found += [Stream("send", peer, out, window), Stream("receive", peer, into, window)]
        for number, group in enumerate(plans.groups(self.seed, self.number, ranks)):
            if self.rank in group:
                items = plans.collectives(self.seed, self.number, number, group)
                found.append(Stream("group", -1, items, WINDOW[0], number, group))
        return found

    def run(self) -> None:
        self.write("life", pid=os.getpid(), t=self.now())
        for peer in range(int(self.job["ranks"])):
            if peer != self.rank:
                self.write("segment", peer=peer, bytes=self.context.engine.segment_bytes(peer))
        print(f"up {os.getpid()}", flush=True)
        stop, close = self.folder / f"{self.number:04}.stop", self.folder / f"{self.number:04}.close"
        stopping, looked = False, 0
        while not (stopping and not self.under):
            now = self.now()
            if now - looked > 20_000_000:
                stopping, looked = stopping or stop.exists(), now
            if not stopping:
                for stream in self.streams:
                    if stream.under_way < stream.window and not stream.ended:
                        self.post(stream)
            while self.cancels and self.cancels[0][0] <= now:
                self.cancel(heapq.heappop(self.cancels)[1])
            self.check_used(now)
            completions = self.context.poll_cq()
            for completion in completions:
                self.end(completion)
            if not completions:
                time.sleep(0.001)
        self.check_used(None)
        print("drained", flush=True)
        while not close.exists():
            time.sleep(0.01)
        self.write("goodbye", t=self.now())
        self.context.close()

    # Posting

    def post(self, stream: Stream) -> None:
        item = next(stream.items)
        if stream.kind == "group":
            self.post_collective(stream, item)
        elif item.only in ("", stream.kind):
            self.post_transfer(stream, item)

    def post_transfer(self, stream: Stream, item: plans.Transfer) -> None:
        is_receive = stream.kind == "receive"
        sender, receiver = (stream.peer, self.rank) if is_receive else (self.rank, stream.peer)
        number = plans.operation_id(self.number, sender, receiver, item.number, is_receive=is_receive)
        size = item.receive_bytes if is_receive else item.send_bytes
        dtype = item.receive_dtype if is_receive else item.send_dtype
        block = memory.Block(size)
        block.data[:] = memory.contents(number, 0, size)
        timeout = item.receive_timeout if is_receive else item.send_timeout
        before = self.now()
        try:
            if is_receive:
                handle = self.context.post_recv(
                    block.view(dtype), item.bound, from_=stream.peer, tag=item.tag, fill=item.fill, stop=item.stop,
                    deadline=item.deadline, timeout=timeout,
                )  # fmt: skip
            else:
                handle = self.context.post_send(
                    block.view(dtype), self.priority(item), to=stream.peer, tag=item.tag, layer=item.layer, layers=4,
                    timeout=timeout,
                )  # fmt: skip
        except mlt.MltError as error:
            self.refused(stream, number, error)
            return
        values: dict[str, Any] = {}
        if is_receive:
            deadline = 0 if item.deadline is None else round(item.deadline * 1e9)
            values = {"bound": repr(item.bound), "stop": item.stop, "fill": item.fill, "deadline": deadline}
        elif item.priority == "critical":
            values = {"critical_every": item.critical_every}
        self.write(
            "post", id=number, verb=stream.kind, peer=stream.peer, tag=item.tag, generation=item.generation, bytes=size,
            element=plans.ELEMENT_CODES[dtype], timeout=round(timeout * 1e9), before=before, after=self.now(), **values,
        )  # fmt: skip
        self.began(Under(number, handle, stream.kind, block, dtype, stream))
        delay = item.cancel_receive if is_receive else item.cancel_send
        if delay is not None:
            heapq.heappush(self.cancels, (self.now() + round(delay * 1e9), handle.id))

    @staticmethod
    def priority(item: plans.Transfer) -> priority.PriorityFunction | None:
        if item.priority == "magnitude":
            return None
        if item.priority == "important":
            return priority.all_important

        def critical(_: Any, grid: priority.SegmentGrid) -> Any:
            bits = np.full(grid.segment_count, grid.traffic_class, np.uint8)
            bits[:: item.critical_every] |= priority.CRITICAL
            return bits

        return critical

    def post_collective(self, stream: Stream, item: plans.Collective) -> None:
        number = plans.collective_id(self.number, stream.number, self.rank, item.sequence)
        count, dtype = len(stream.ranks), "float32" if item.verb == "all_reduce" else "uint8"
        options: dict[str, Any] = {"ranks": stream.ranks, "timeout": item.timeout}
        is_root = item.verb != "gather" or item.root == self.rank
        block = memory.Block(item.bytes * (1 if item.verb == "all_reduce" else count) if is_root else 0)
        parts = [memory.Block(0)]
        if item.verb == "all_reduce":
            block.view("float32")[:] = memory.summands(item.bytes, self.rank, item.sequence)
        elif item.verb == "all_to_all":
            parts = [memory.Block(item.bytes * count)]
            for i, rank in enumerate(stream.ranks):
                parts[0].data[i * item.bytes : (i + 1) * item.bytes] = memory.contents(
                    number | rank << 21, 0, item.bytes
                )
        else:
            parts = [memory.Block(item.bytes)]
            parts[0].data[:] = memory.contents(number | item.root << 21, 0, item.bytes)
        before = self.now()
        try:
            if item.verb == "all_reduce":
                handle = self.context.post_all_reduce(
                    block.view("float32"),
                    op=mlt.Reduction.MEAN if item.average else mlt.Reduction.SUM,
                    loss_bound=item.bound,
                    **options,
                )
            elif item.verb == "all_to_all":
                handle = self.context.post_all_to_all(block.data, parts[0].data, **options)
            else:
                handle = self.context.post_gather(
                    parts[0].data, block.data if is_root else None, root=item.root, **options
                )
        except mlt.MltError as error:
            self.refused(stream, number, error)
            return
        self.write(
            "post", id=number, verb=item.verb, group=",".join(map(str, stream.ranks)), sequence=item.sequence,
            bytes=block.data.size, element=plans.ELEMENT_CODES[dtype], timeout=round(item.timeout * 1e9), before=before,
            after=self.now(), bound=repr(item.bound), average=1 if item.average else None, root=item.root,
        )  # fmt: skip
        self.began(Under(number, handle, item.verb, block, dtype, stream, parts))
        if item.cancel_by == self.rank:
            heapq.heappush(self.cancels, (self.now() + 5_000_000, handle.id))

    def began(self, under: Under) -> None:
        self.under[under.handle.id] = under
        under.stream.under_way += 1

    def refused(self, stream: Stream, number: int, error: mlt.MltError) -> None:
        """End the stream: the two sides would number later posts differently."""
        stream.ended = True
        code = getattr(error.code, "value", error.code)
        self.write("refused", id=number, code=code, peer=stream.peer, t=self.now())

    def cancel(self, handle: int) -> None:
        under = self.under.get(handle)
        if under is not None:
            self.write("cancel", id=under.number, t=self.now())
            self.context.cancel(under.handle)

    # Completions

    def end(self, completion: mlt.Completion) -> None:
        seen = self.now()
        under = self.under.pop(completion.op.id, None)
        if under is None:
            self.write("end", id=completion.op.id, t=seen, status=completion.status)
            return
        under.stream.under_way -= 1
        data = under.block.data
        missing = completion.missing if under.verb == "receive" else []
        arrived, gaps = memory.digests(data, missing)
        self.write(
            "end", id=under.number, t=seen, status=completion.status, bytes=completion.bytes if under.verb in
            ("send", "receive") else data.size, missing_bytes=completion.missing_bytes,
            allowed=completion.allowed_missing_bytes, elapsed=completion.elapsed_ns, digest=arrived, gaps=gaps,
            missing=",".join(f"{offset}:{length}" for offset, length in missing) or "-", guards=under.block.guards(),
        )  # fmt: skip
        if under.stream.kind == "group" and completion.failed:
            under.stream.ended = True
        # The memory belongs to the application again, which overwrites it.
        data[:] = memory.contents(under.number, 1, data.size)
        until = self.now() + round(self.random.uniform(*REUSE_SECONDS) * 1e9)
        self.used_again.append((until, under.number, under.block))
        for block in under.more:
            block.data[:] = 0

    def check_used(self, now: int | None) -> None:
        """Check blocks returned long enough ago, or (None) all: only the application may have written to them."""
        while self.used_again and (now is None or self.used_again[0][0] <= now):
            _, number, block = self.used_again.popleft()
            self.write("later", id=number, digest=memory.digest(block.data), guards=block.guards())


def main() -> None:
    assert _core is not None
    Rank(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    main()
