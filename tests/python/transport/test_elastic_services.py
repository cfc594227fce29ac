"""``mlt serve`` in an elastic job one of whose workers hangs: it goes on with the others."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing.connection import Connection

import numpy as np
from elastic_jobs import coordinator
from transport_jobs import RankProcess, takes

import mlt
from mlt.elastic import Membership

SECONDS = 30.0


def worker(pipe: Connection, _: int, place: str) -> None:
    """A sum in each epoch, then the next epoch at each word."""
    with Membership(place) as membership:
        while True:
            context = membership.next_epoch(operation_timeout=SECONDS)
            assert context is not None
            ones = np.ones(1_000, np.float32)
            mlt.PushPull(context).push_pull(ones, key=1).wait(SECONDS)
            pipe.send((membership.epoch, context.world_size, context.services))
            if pipe.recv() == "leave":
                return


def test_service__outlives_a_worker_that_hangs() -> None:
    with coordinator(first_workers=2, first_services=1, min_services=1, wait_seconds=3.0) as running:
        place = str(running.place)
        own = {name: value for name, value in os.environ.items() if not name.startswith("MLT_")}
        service = subprocess.Popen(
            [sys.executable, "-m", "mlt.cli.main", "serve"],
            env={**own, "MLT_ELASTIC": place, "COLUMNS": "200"},
            stderr=subprocess.PIPE,
            text=True,
        )
        workers = [RankProcess(worker, name, (place,)) for name in range(2)]
        try:
            assert [one.hear(SECONDS) for one in workers] == [(1, 2, 1)] * 2
            with takes(at_least=2.5, at_most=12.0):
                workers[0].say("next")  # the other one hangs, and its connections stay
                assert workers[0].hear(SECONDS) == (2, 1, 1)
            workers[0].say("leave")
            _, errors = service.communicate(timeout=SECONDS)
            assert service.returncode == 0, errors
            assert "epoch 2" in errors
        finally:
            service.kill()
            for one in workers:
                one.end()
