"""The commands of the ranks of a measurement, over mlt and over gloo: the methods are those of ``Team.order``."""

from __future__ import annotations

import datetime
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import mlt

SMALL_BYTES, SMALL_WINDOW = 64, 256
SMALL_LIST = 64  # messages that are posted and awaited together
# Of every operation and start: what takes longer has failed.
LIMIT_SECONDS = 120.0


class Rank:
    """Measures its own process: the figures are what it added since ``connect`` began."""

    def __init__(self) -> None:
        self._before = self._own()

    def usage(self) -> dict[str, int]:
        """KiB of private memory, file descriptors and threads, added since this rank's process was forked."""
        now = self._own()
        return {name: now[name] - self._before[name] for name in now}

    def idle(self, seconds: float) -> None:
        time.sleep(seconds)

    @staticmethod
    def _own() -> dict[str, int]:
        fields = (line.split() for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines())
        kib = {words[0].rstrip(":"): int(words[1]) for words in fields if words[-1] == "kB"}
        return {
            "kib": kib["Private_Dirty"],
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
        }


class MltRank(Rank):
    def __init__(
        self,
        rank: int,
        workers: int,
        services: int,
        port: int,
        datapath: str | None,
        connects_on_use: bool | None = None,
    ) -> None:
        super().__init__()
        logging.getLogger("mlt").setLevel(logging.ERROR)  # hundreds of ranks would report one slow call
        self._rank, self._workers, self._services = rank, workers, services
        self._port, self._datapath, self._connects_on_use = port, datapath, connects_on_use
        self._service: mlt.SummationService | None = None
        self._tensors: list[Any] = []

    def connect(self) -> None:
        self._context = mlt.Context(
            self._rank,
            self._workers,
            self._services,
            master_addr="127.0.0.1",
            rendezvous_port=self._port,
            job=f"scale-{self._port}",
            connect_timeout=LIMIT_SECONDS,
            operation_timeout=LIMIT_SECONDS,
            datapath=self._datapath,
            connects_on_use=self._connects_on_use,
        )
        if self._rank >= self._workers:
            self._service = mlt.SummationService(self._context)
        elif self._services:
            self._push_pull = mlt.PushPull(self._context)

    def all_reduce(self, elements: int, repetitions: int, algorithm: str | None = None) -> list[float]:
        """Seconds of each; raises if a sum is wrong."""
        tensor = np.empty(elements, np.float32)
        seconds = []
        for _ in range(repetitions):
            tensor[:] = self._rank
            began = time.monotonic()
            self._context.all_reduce(tensor, op=mlt.Reduction.SUM, algorithm=algorithm)
            seconds.append(time.monotonic() - began)
            if not (tensor == self._workers * (self._workers - 1) // 2).all():
                raise ValueError(f"the sum is {tensor[0]} and {tensor[-1]} at the ends")
        return seconds

    def push_pull(self, keys: int, key_bytes: int) -> None:
        """One round of all keys, posted together; raises if a mean is wrong."""
        if len(self._tensors) != keys:
            self._tensors = [np.empty(key_bytes // 4, np.float32) for _ in range(keys)]
        for tensor in self._tensors:
            tensor[:] = self._rank
        handles = [self._push_pull.push_pull(tensor, key=key) for key, tensor in enumerate(self._tensors)]
        for handle in handles:
            handle.wait(LIMIT_SECONDS)
        mean = np.float32((self._workers - 1) / 2)
        for key, tensor in enumerate(self._tensors):
            if not (tensor == mean).all():
                raise ValueError(f"the mean of key {key} is {tensor[0]} and {tensor[-1]} at the ends")

    def small_messages(self, count: int) -> float:
        """Rank 0 sends, rank 1 receives; seconds."""
        buffers = [np.zeros(SMALL_BYTES, np.uint8) for _ in range(SMALL_WINDOW)]
        posted: deque[mlt.Operation] = deque()
        began = time.monotonic()
        for number in range(count):
            if len(posted) == SMALL_WINDOW:
                posted.popleft().wait()
            place = number % SMALL_WINDOW
            if self._rank == 0:
                posted.append(self._context.post_send(buffers[place], to=1, tag=place))
            else:
                posted.append(self._context.post_recv(buffers[place], from_=0, tag=place))
        while posted:
            posted.popleft().wait()
        return time.monotonic() - began

    def small_lists(self, count: int) -> float:
        """The same in lists."""
        buffers = [np.zeros(SMALL_BYTES, np.uint8) for _ in range(SMALL_WINDOW)]
        post = self._context.post_sends if self._rank == 0 else self._context.post_recvs
        lists = [
            [(buffers[place], 1 - self._rank, place) for place in range(first, first + SMALL_LIST)]
            for first in range(0, SMALL_WINDOW, SMALL_LIST)
        ]
        posted: deque[list[mlt.Operation]] = deque()
        began = time.monotonic()
        for number, first in enumerate(range(0, count, SMALL_LIST)):
            if len(posted) == len(lists):
                self._context.wait_all(posted.popleft())
            posted.append(post(lists[number % len(lists)][: count - first]))
        while posted:
            self._context.wait_all(posted.popleft())
        return time.monotonic() - began

    def counters(self) -> dict[str, int]:
        return dict(self._context.counters())

    def failures(self) -> list[str]:
        """Peers that failed, as this rank knows them."""
        peers = (rank for rank in range(self._workers + self._services) if rank != self._rank)
        found = ((rank, self._context.peer_failure(rank)) for rank in peers)
        return [f"rank {rank}: {text}" for rank, text in found if text]

    def close(self) -> None:
        self._context.close()


class SocketRank(Rank):
    """Bare UDP sockets, from Python: a datagram each way for each message, without order, repair or matching."""

    def __init__(self, rank: int, sockets: Sequence[socket.socket]) -> None:
        super().__init__()
        self._rank, self._socket = rank, sockets[rank]

    def connect(self) -> None:
        self._socket.settimeout(10.0)  # a datagram was lost
        # Space for the window, in small pieces of memory: the kernel takes twice what it is told.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 200_000)

    def small_messages(self, count: int) -> float:
        """Rank 0 sends, rank 1 receives and replies to each; seconds."""
        message, own = bytes(SMALL_BYTES), self._socket
        began = time.monotonic()
        for number in range(count):
            if self._rank == 1:
                own.recv(SMALL_BYTES)
                own.send(b"received")
                continue
            if number >= SMALL_WINDOW:
                own.recv(SMALL_BYTES)
            own.send(message)
        if self._rank == 0:
            for _ in range(min(count, SMALL_WINDOW)):
                own.recv(SMALL_BYTES)
        return time.monotonic() - began

    def close(self) -> None:
        self._socket.close()


class GlooRank(Rank):
    """torch.distributed over gloo; torch is imported before the fork."""

    def __init__(self, rank: int, workers: int, port: int) -> None:
        super().__init__()
        self._rank, self._workers, self._port = rank, workers, port

    def connect(self) -> None:
        import torch
        from torch import distributed

        self._torch, self._distributed = torch, distributed
        torch.set_num_threads(1)
        distributed.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{self._port}",
            rank=self._rank,
            world_size=self._workers,
            timeout=datetime.timedelta(seconds=LIMIT_SECONDS),
        )

    def all_reduce(self, elements: int, repetitions: int) -> list[float]:
        seconds = []
        for _ in range(repetitions):
            tensor = self._torch.full((elements,), float(self._rank))
            began = time.monotonic()
            self._distributed.all_reduce(tensor)
            seconds.append(time.monotonic() - began)
        return seconds

    def small_messages(self, count: int) -> float:
        buffers = [self._torch.zeros(SMALL_BYTES, dtype=self._torch.uint8) for _ in range(SMALL_WINDOW)]
        posted: deque[Any] = deque()
        began = time.monotonic()
        for number in range(count):
            if len(posted) == SMALL_WINDOW:
                posted.popleft().wait()
            post = self._distributed.isend if self._rank == 0 else self._distributed.irecv
            posted.append(post(buffers[number % SMALL_WINDOW], 1 - self._rank, tag=number % SMALL_WINDOW))
        while posted:
            posted.popleft().wait()
        return time.monotonic() - began

    def close(self) -> None:
        self._distributed.destroy_process_group()
