"""The measurements: each returns figures as they are stored, without a verdict."""

from __future__ import annotations

import functools
import json
import socket
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ranks import LIMIT_SECONDS, SMALL_LIST, GlooRank, MltRank, Rank, SocketRank
from team import Phase, Team

import mlt
from mlt._shared.ports import free_port

FLOATS = {"4 B": 1, "1 MiB": 1 << 18}
KEY_BYTES = 64 << 10
# By the name in the tables; None: the ranks choose, and take shared memory on one host.
DATAPATHS = {"UDP": "udp", "shared memory": None}
LISTS = f"lists of {SMALL_LIST}"
# Packets of mlt by their counters: what a rank sent.
PACKETS = ("data_packets_sent", "acks_sent", "probes_sent", "bitmaps_sent", "stops_sent")
# Parameters of a case that are figures of the same name.
IDENTITY = ("transport", "ranks", "workers", "keys", "datapath", "posts")

SIMULATION = Path(__file__).resolve().parents[2] / "build" / "default" / "tests" / "mlt_sim_scale"

Figures = dict[str, Any]


def serve(transport: str, ranks: int, services: int = 0, datapath: str | None = None) -> Callable[[int], Rank]:
    port = free_port()
    if transport == "gloo":
        import torch.distributed  # noqa: F401 - here, not in every rank

        return functools.partial(GlooRank, workers=ranks, port=port)
    if transport == "sockets":
        pair = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]  # the ranks inherit them
        for one in pair:
            one.bind(("127.0.0.1", 0))
        for one, other in zip(pair, reversed(pair), strict=True):
            one.connect(other.getsockname())
        return functools.partial(SocketRank, sockets=pair)
    _ = (mlt.Context, mlt.SummationService, mlt.PushPull)  # loaded on first use: here, not in every rank
    return functools.partial(MltRank, workers=ranks, services=services, port=port, datapath=datapath)


def job(transport: str, ranks: int, *, repetitions: int, idle_seconds: float) -> Figures:
    """A job of this size: connect, memory, all-reduces, idle."""
    with Team(ranks, serve(transport, ranks), f"{transport}, {ranks} ranks") as team:
        connect = team.order("connect", limit=LIMIT_SECONDS + 30)
        fresh = team.order("usage", limit=30)
        reduced = {}
        for size, floats in FLOATS.items():
            rounds = 1 + repetitions
            phase = team.order("all_reduce", floats, rounds, limit=LIMIT_SECONDS * rounds)
            # A round ends with its slowest rank. The first one also allocates what a rank needs of its peers.
            first, *slowest = [max(times) for times in zip(*phase.values, strict=True)]
            reduced[size] = {
                "first_seconds": first,
                "seconds": slowest,
                "cpu_seconds": phase.cpu_seconds / rounds,
            }
        used = team.order("usage", limit=30)
        before = _counters(team, transport)
        idle = team.order("idle", idle_seconds, limit=idle_seconds + 30)
        after = _counters(team, transport)
        team.order("close", limit=60)
    figures = {
        "transport": transport,
        "ranks": ranks,
        "connect_seconds": connect.seconds,
        "connect_cpu_seconds": connect.cpu_seconds,
        "kib_per_rank": _median(fresh, "kib"),
        "kib_per_rank_used": _median(used, "kib"),
        "descriptors_per_rank": _median(fresh, "descriptors"),
        "threads_per_rank": _median(fresh, "threads"),
        "all_reduce": reduced,
        "idle_core_percent": 100 * idle.cpu_seconds / idle_seconds,
    }
    if after:
        wakes = sum(after["engine_sleeps"]) - sum(before["engine_sleeps"])
        figures["idle_wakes_per_rank_second"] = wakes / ranks / idle_seconds
    return figures


def first_use(ranks: int, connects_on_use: bool, repetitions: int) -> Figures:
    """A job that calls only all-reduces of 1 MiB around a ring, which needs two connections a rank."""
    serve_rank = functools.partial(serve("mlt", ranks), connects_on_use=connects_on_use)
    with Team(ranks, serve_rank, f"{ranks} ranks, connects_on_use={connects_on_use}") as team:
        connect = team.order("connect", limit=LIMIT_SECONDS + 30)
        phases = [
            team.order("all_reduce", FLOATS["1 MiB"], 1, "ring", limit=LIMIT_SECONDS) for _ in range(1 + repetitions)
        ]
        used = team.order("usage", limit=30)
        idle = team.order("idle", 3.0, limit=33.0)
        closed = team.order("close", limit=60)
    return {
        "ranks": ranks,
        "connects_on_use": connects_on_use,
        "connect_seconds": connect.seconds,
        "connect_cpu_seconds": connect.cpu_seconds,
        "first_ring_seconds": phases[0].seconds,
        "ring_seconds": statistics.median(phase.seconds for phase in phases[1:]),
        "kib_per_rank_used": _median(used, "kib"),
        "descriptors_per_rank": _median(used, "descriptors"),
        "idle_core_percent": 100 * idle.cpu_seconds / 3.0,
        "close_seconds": closed.seconds,
    }


def key_rounds(workers: int, keys: int, *, rounds: int) -> Figures:
    """One service, ``keys`` keys of 64 KiB per worker, all posted at once."""
    with Team(workers + 1, serve("mlt", workers, 1), f"{workers} workers, {keys} keys") as team:
        team.order("connect", limit=LIMIT_SECONDS + 30)
        seconds = [
            team.order("push_pull", keys, KEY_BYTES, limit=LIMIT_SECONDS, members=range(workers)).seconds
            for _ in range(rounds)
        ]
        totals = {name: sum(values) for name, values in _counters(team, "mlt").items()}
        failures = [text for one in team.order("failures", limit=30).values for text in one]
        team.order("close", limit=60, members=range(workers))
    return {
        "workers": workers,
        "keys": keys,
        "seconds": seconds,
        "seconds_per_key": statistics.median(seconds) / keys,
        "packets": sum(totals[name] for name in PACKETS),
        "data_packets": totals["data_packets_sent"],
        "probes": totals["probes_sent"],
        "tcp_fallbacks": totals["tcp_fallback_packets_sent"],
        "failures": failures,
    }


def small_messages(transport: str, datapath: str, count: int, posts: str = "one by one") -> Figures:
    """Two ranks; ``datapath`` is one of ``DATAPATHS``, and for others than mlt only a name. ``posts``: LISTS, or one by
    one."""
    chosen = DATAPATHS.get(datapath)
    with Team(2, serve(transport, 2, datapath=chosen), f"{transport}, {datapath}, small messages") as team:
        team.order("connect", limit=LIMIT_SECONDS + 30)
        phase = team.order("small_lists" if posts == LISTS else "small_messages", count, limit=LIMIT_SECONDS)
        found = _counters(team, transport)
        team.order("close", limit=60)
    figures = {
        "transport": transport,
        "datapath": datapath,
        "posts": posts,
        "messages_per_second": count / max(phase.values),
        "cpu_microseconds_per_message": phase.cpu_seconds / count * 1e6,
    }
    if found:
        figures["probes_per_message"] = sum(found["probes_sent"]) / count
        figures["system_calls_per_message"] = sum(found["udp_runs_sent"]) / count
    return figures


def simulated_job(ranks: int) -> Figures:
    """An all-reduce by halving and doubling of so many simulated ranks, with 0.1 % loss (tests/sim/scale)."""
    if not SIMULATION.exists():
        raise RuntimeError(f"{SIMULATION} is not built: run make scale")
    done = subprocess.run([SIMULATION, "--ranks", str(ranks)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{ranks} simulated ranks: {done.stderr.strip()}")
    figures: Figures = json.loads(done.stdout)
    return figures


def _counters(team: Team, transport: str) -> dict[str, list[int]]:
    """The counters of each rank, by name: those that all ranks have, since rank 0 and services have some of their
    own."""
    if transport != "mlt":
        return {}
    of_ranks = team.order("counters", limit=30).values
    common = set.intersection(*(set(one) for one in of_ranks))
    return {name: [one[name] for one in of_ranks] for name in sorted(common)}


def _median(phase: Phase, name: str) -> float:
    return statistics.median(one[name] for one in phase.values)
