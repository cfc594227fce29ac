"""Jobs of real ranks over loopback sockets, for tests: in threads of this process, or in processes of their own."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from checks import in_threads, strike

import mlt
from mlt._shared.ports import free_port

START_SECONDS = 30.0
# Of jobs that lose packets: as many per tensor as on an Ethernet, a sixth of that on loopback.
ETHERNET_SEGMENT = 1_432


@contextlib.contextmanager
def local_job(
    world_size: int = 2, *, services: int = 0, hosts: Sequence[str] = (), **options: Any
) -> Iterator[list[mlt.Context]]:
    """Contexts of all ranks, in rank order, in this process; closed at the end. Services run. ``hosts``: each rank's
    address, of loopback, so that ranks with different ones seem to be on different hosts."""
    port = free_port()
    size = world_size + services
    contexts: list[mlt.Context | None] = [None] * size
    errors: list[BaseException] = []

    def open_one(rank: int) -> None:
        try:
            contexts[rank] = context = mlt.Context(
                rank,
                world_size,
                services,
                rendezvous_port=port,
                **{
                    "master_addr": "127.0.0.1",
                    "operation_timeout": 30.0,
                    "connect_timeout": START_SECONDS,
                    **({"host": hosts[rank]} if hosts else {}),
                    **options,
                },
            )
            if rank >= world_size:
                mlt.SummationService(context)
        except BaseException as error:
            errors.append(error)

    in_threads(open_one, [(rank,) for rank in range(size)])
    opened = [context for context in contexts if context is not None]
    contexts.clear()  # a test may drop one: hold no other reference
    try:
        if errors:
            raise errors[0]
        yield opened
    finally:
        for context in opened:
            context.close()


def open_rank(rank: int, port: int, *, workers: int, services: int = 0, **options: Any) -> mlt.Context:
    """The context of one rank in a process of its own."""
    place = {"master_addr": "127.0.0.1", "rendezvous_port": port, "connect_timeout": START_SECONDS}
    return mlt.Context(rank, workers, services, **{**place, **options})


class RankProcess:
    """One rank in a process of its own. ``say`` and ``hear`` exchange objects with its function."""

    def __init__(self, target: Callable[..., None], rank: int, arguments: tuple[Any, ...]) -> None:
        context = mp.get_context("spawn")
        self.rank = rank
        self._pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_enter, args=(target, theirs, rank, *arguments), daemon=True)
        self.process.start()
        theirs.close()

    def say(self, message: Any) -> None:
        self._pipe.send(message)

    def hear(self, timeout: float = START_SECONDS) -> Any:
        """The next message; raises what the rank's function raised."""
        if not self._pipe.poll(timeout):
            raise TimeoutError(f"rank {self.rank} said nothing within {timeout} s")
        message = self._pipe.recv()
        if isinstance(message, BaseException):
            raise message
        return message

    def end(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self._pipe.close()


def _enter(target: Callable[..., None], pipe: Connection, rank: int, *arguments: Any) -> None:
    try:
        target(pipe, rank, *arguments)
    except BaseException as error:
        pipe.send(error)


@contextlib.contextmanager
def paused(rank: RankProcess) -> Iterator[None]:
    """A rank whose process is stopped (SIGSTOP) within this: alive for the kernel, and silent."""
    pid = rank.process.pid
    assert pid is not None
    strike(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def process_job(target: Callable[..., None], ranks: int, *arguments: Any) -> Iterator[list[RankProcess]]:
    """``target(pipe, rank, port, *arguments)`` in one process per rank; all are killed at the end."""
    port = free_port()
    processes: list[RankProcess] = []
    try:
        for rank in range(ranks):
            processes.append(RankProcess(target, rank, (port, *arguments)))
        yield processes
    finally:
        for process in processes:
            process.end()


@contextlib.contextmanager
def takes(*, at_most: float, at_least: float = 0.0) -> Iterator[None]:
    """Fail if the block takes longer (or shorter) than the given seconds."""
    start = time.monotonic()
    yield
    seconds = time.monotonic() - start
    assert at_least <= seconds <= at_most, f"took {seconds:.3f} s, not {at_least} to {at_most} s"


def exchange(sender: mlt.Context, receiver: mlt.Context, tensor: Any, into: Any, **options: Any) -> mlt.Completion:
    """Send ``tensor`` and receive it into ``into``; the receive's completion. ``options`` are the receive's."""
    tag = options.pop("tag", 0)
    prio_func = options.pop("prio_func", None)
    dtype = options.pop("dtype", None)
    receive = receiver.post_recv(into, from_=sender.rank, tag=tag, dtype=dtype, **options)
    send = sender.post_send(tensor, prio_func, to=receiver.rank, tag=tag, dtype=dtype)
    done = receiver.wait(receive, timeout=30)
    sender.wait(send, timeout=30)
    return done


def exchange_pending(contexts: list[mlt.Context], receive: mlt.Operation, tag: int) -> None:
    """Satisfy a 4-element receive that a test left open."""
    send = contexts[0].post_send(np.ones(4, np.float32), to=1, tag=tag)
    receive.wait(10)
    send.wait(10)


def floats(megabytes: int) -> np.ndarray:
    """Float32 in [1, 2): none is the zero of a missing range."""
    return (np.random.default_rng(megabytes).random(megabytes * 2**18) + 1).astype(np.float32)
